"""Two-dimensional multi-head attention: torch only, usable from a notebook.

```python
layer = SelfAttention2d(64, 4)               # a drop-in layer for a feature map
y = layer(torch.randn(2, 64, 7, 9))          # (B, C, H, W) -> (B, C, H, W)
```
"""

from vitrail.attention.attention import MultiHeadAttention2d, SelfAttention2d, attend
from vitrail.attention.grid import Grid
from vitrail.attention.mask import Mask
from vitrail.attention.packed import attend_packed

__all__ = [
    "Grid",
    "Mask",
    "MultiHeadAttention2d",
    "SelfAttention2d",
    "attend",
    "attend_packed",
]
