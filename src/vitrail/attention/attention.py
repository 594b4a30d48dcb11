"""Multi-head attention over a grid of tokens: the formula, and modules that hold its weights."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vitrail.attention import backends
from vitrail.attention.backends import Backend, Request
from vitrail.attention.backends.reference import attention_weights
from vitrail.attention.grid import Grid
from vitrail.attention.mask import Mask, check_call, check_dropout, valid_tokens, with_four_axes
from vitrail.attention.patterns import Call, Pattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.positions import Position
from vitrail.attention.positions.none import NoPosition
from vitrail.attention.scale import LEARNED, kernel_scale, log_scale, score_scale
from vitrail.errors import UserError


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    backend: str | Backend = "sdpa",
) -> Tensor:
    """softmax(q k^T * scale + bias, over what may be seen) v, by the backend that is named.

    Args:
        q: (B, h, N, d).
        k: (B, h, M, d). What hidden keys and values hold must be finite: the layers see to that.
        v: (B, h, M, d'), no wider than q and k.
        mask: a `Mask`, or bool (1|B, 1|h, N, M), True = may be seen.
        bias: the same shape, float, added to the scaled scores, -inf allowed.
        scale: d**-0.5 unless given (Vaswani et al. 2017, eq. 1).
        dropout_p: share of attention weights dropped, in [0, 1).
        backend: the kernel, by name; nothing else is ever put in its place.

    Returns:
        (B, h, N, d'); 0, without a gradient, in rows that may see nothing.

    Raises:
        UserError: tensors that do not fit together.
        Refused: a backend that cannot serve the call.
    """
    if not isinstance(mask, Mask):
        mask = Mask(allowed=mask)
    kernel = _kernel(q, k, v, mask, bias, scale, dropout_p, backend)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    narrower = q.shape[-1] - v.shape[-1]
    if narrower:  # fused kernels take one width for all three
        v = F.pad(v, (0, narrower))
    out = kernel(q, k, v, mask=mask, bias=bias, scale=scale, dropout_p=dropout_p)
    return out[..., :-narrower] if narrower else out


# Kernels of calls that were checked, by all that the checks and the backend's refusal depend on.
_checked: dict[tuple, Backend] = {}
MOST_CHECKED = 1024


def _kernel(q, k, v, mask, bias, scale, dropout_p, backend) -> Backend:
    """The backend for these arguments of `attend`, which are checked where they are new."""
    if torch.compiler.is_compiling():  # once a graph, and shapes may be symbols without a hash
        return _checked_kernel(q, k, v, mask, bias, scale, dropout_p, backend)
    tensors = (
        None if one is None else (one.shape, one.dtype, one.device, one.requires_grad)
        for one in (q, k, v, mask.valid, mask.allowed, bias)
    )
    call = (backend, mask.pattern, scale, dropout_p, torch.is_grad_enabled(), *tensors)
    kernel = _checked.get(call)
    if kernel is None:
        kernel = _checked_kernel(q, k, v, mask, bias, scale, dropout_p, backend)
        if len(_checked) >= MOST_CHECKED:
            _checked.clear()
        _checked[call] = kernel
    return kernel


def _checked_kernel(q, k, v, mask, bias, scale, dropout_p, backend) -> Backend:
    check_call(q, k, v, mask, bias, scale, dropout_p)
    return backends.resolve(Request.of(q, k, v, mask, bias, dropout_p), backend)


class MultiHeadAttention2d(nn.Module):
    """Self-attention on tokens (B, N, dim) that lie on a `Grid`; weights have timm's names.

    Args:
        dim: width of a token.
        heads: must divide `dim`, or UserError names those that do.
        pattern: who sees whom on the grid.
        position: one that speaks inside attention, such as `Rope`; absolute ones are added to the
            tokens at a model's entrance and do nothing here.
        backend: the kernel, by name.
        scale: d**-0.5 of the head width d unless given, or "learned" by each head.
        dropout: share of attention weights dropped in training.
        qkv_bias, qk_norm: whether the projections to q, k and v have a bias, and whether q and k
            are normalised.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        pattern: Pattern = Full(),  # noqa: B008 (frozen)
        position: Position = NoPosition(),  # noqa: B008 (frozen)
        backend: str = "sdpa",
        scale: float | str | None = None,
        dropout: float = 0.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
    ):
        super().__init__()
        check_dropout(dropout)
        self.heads, self.width = heads, head_width(dim, heads)
        self.scale = kernel_scale(scale, self.width)
        self.log_scale = log_scale(heads, self.width) if scale == LEARNED else None
        self.dropout = dropout
        self.backend = backends.load(backend)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(self.width, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.width, eps=1e-6) if qk_norm else nn.Identity()
        self.pattern = pattern
        self.position = position.layer(heads, self.width)
        self.proj = nn.Linear(dim, dim)

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        *,
        valid: Tensor | None = None,
        mask: Tensor | Mask | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(B, N, dim) -> (B, N, dim) with N = grid.tokens, prefix tokens first.

        Args:
            valid: (B, rows, cols) or (B, rows * cols) bool, True = real; other content cannot leak.
            mask: (N, N) or (B, 1|h, N, N) bool, True = the query (row) may see the key (column); or
                a `Mask` that a model has made once for all its layers, in place of `valid` too.
            bias: like mask, float, added to the scaled scores.

        Several masks combine by AND. Raises UserError for those that do not fit x and the grid.
        """
        whole, tile_bias = self._project(x, grid, valid, mask, bias)
        knobs = {
            "scale": self.scale,
            "dropout_p": self.dropout if self.training else 0.0,
            "backend": self.backend,
        }
        calls = self.pattern.split(whole, tile_bias, grid)
        outs = [attend(c.q, c.k, c.v, mask=c.mask, bias=c.bias, **knobs) for c in calls]
        return self.proj(rearrange(self.pattern.join(outs, grid), "b h n d -> b n (h d)"))

    def weights(self, x: Tensor, grid: Grid, *, valid=None, mask=None, bias=None) -> Tensor:
        """(B, h, N, N): how much each token takes of each other's v, for the arguments of a call.

        By the reference formula, in at least fp32, whatever the backend; without dropout. Rows add
        up to 1, and to 0 where a token may see nothing.
        """
        whole, tile_bias = self._project(x, grid, valid, mask, bias)
        # Weights are what comes of v = identity, which a pattern splits and joins like any other v.
        identity = torch.eye(grid.tokens, device=x.device).expand(x.shape[0], 1, -1, -1)
        outs = []
        with backends.without_autocast(x.device.type):
            for c in self.pattern.split(replace(whole, v=identity), tile_bias, grid):
                out = attention_weights(c.q, c.k, mask=c.mask, bias=c.bias, scale=self.scale)
                # A call that was not split has its weights already, and N³ operations to save.
                outs.append(out if c.v is identity else out @ c.v.to(out.dtype))
        return self.pattern.join(outs, grid)

    def _project(self, x, grid, valid, mask, bias) -> tuple[Call, Tensor | None]:
        """The whole call before a pattern splits it, and the bias of each tile."""
        batch, tokens, _ = x.shape
        if tokens != grid.tokens:
            raise UserError(
                f"x has {tokens} tokens and {grid} has {grid.tokens}; give the grid of these tokens"
            )
        if not isinstance(mask, Mask):
            allowed = with_four_axes("mask", mask, batch, self.heads, tokens)
            mask = Mask(valid=valid_tokens(valid, grid, batch), allowed=allowed)
        elif valid is not None:
            raise UserError("a Mask holds valid= too; give valid= or a Mask, not both")
        bias = with_four_axes("bias", bias, batch, self.heads, tokens)
        if mask.valid is not None:
            x = x.masked_fill(~mask.valid[..., None], 0.0)
        q, k, v = rearrange(self.qkv(x), "b n (s h d) -> s b h n d", s=3, h=self.heads)
        q, k = self.position.rotate(self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype), grid)
        tile, places = self.pattern.tile(grid), self.pattern.places(grid, x.device)
        q, k = self.position.widen(q, k, tile, places, score_scale(self.log_scale, self.scale))
        if self.log_scale is not None:  # which kernels get with the queries
            q = (q * score_scale(self.log_scale, 1.0)).to(q.dtype)
        return Call(q, k, v, mask, bias), self.position.bias(tile)


class SelfAttention2d(MultiHeadAttention2d):
    """The same layer for a feature map, (B, C, H, W) -> (B, C, H, W), read row by row."""

    def forward(self, x: Tensor, *, valid=None, mask=None, bias=None) -> Tensor:
        """valid: (B, H, W) bool, True = real; mask, bias: as for `MultiHeadAttention2d`."""
        tokens = super().forward(*_tokens(x), valid=valid, mask=mask, bias=bias)
        return rearrange(tokens, "b (h w) c -> b c h w", h=x.shape[-2])

    def weights(self, x: Tensor, *, valid=None, mask=None, bias=None) -> Tensor:
        """(B, h, H * W, H * W), see `MultiHeadAttention2d.weights`."""
        return super().weights(*_tokens(x), valid=valid, mask=mask, bias=bias)


def _tokens(x: Tensor) -> tuple[Tensor, Grid]:
    """(B, C, H, W) -> (B, H * W, C), row by row, and their grid."""
    return rearrange(x, "b c h w -> b (h w) c"), Grid(*x.shape[-2:])


def head_width(dim: int, heads: int) -> int:
    """dim / heads, or UserError with the nearest head counts that divide dim."""
    if heads > 0 and dim > 0 and dim % heads == 0:
        return dim // heads
    divisors = [n for n in range(1, dim + 1) if dim % n == 0]
    near = sorted(sorted(divisors, key=lambda n: (abs(n - heads), -n))[:3])
    if not near:
        raise UserError(f"dim must be >= 1, got {dim}")
    *others, last = map(str, near)
    choice = f"{', '.join(others)} or {last} heads" if others else "1 head"
    raise UserError(f"dim={dim} does not split over heads={heads}; use {choice}")
