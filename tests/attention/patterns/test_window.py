"""Windows: torchvision's and timm's Swin attention, and windows that the map's edge cuts off."""

import pytest
import torch
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn
from torchvision.models.swin_transformer import ShiftedWindowAttention

from vitrail.attention import Grid, Mask, MultiHeadAttention2d
from vitrail.attention.patterns import Call, GridPattern
from vitrail.attention.patterns.window import Window
from vitrail.attention.positions.relative import RelativeBias

from .examples import check_regrouped

DIM, HEADS = 24, 3
CPU = torch.device("cpu")

# Maps that the size divides: rows x cols, size, shift. In the last two a window covers an axis.
DIVIDED = [
    ((6, 9), (3, 3), (0, 0)),
    ((6, 9), (3, 3), (1, 1)),
    ((8, 12), (4, 4), (2, 2)),
    ((4, 12), (2, 6), (1, 5)),
    ((4, 12), (4, 4), (2, 2)),
    ((3, 8), (3, 8), (1, 3)),
]
# Maps that it does not divide, or where it is larger than the map.
CUT = [
    ((5, 7), (3, 3), (0, 0)),
    ((5, 7), (3, 3), (1, 2)),
    ((7, 10), (4, 3), (2, 1)),
    ((2, 9), (4, 4), (2, 2)),
    ((1, 1), (7, 7), (3, 3)),
]


def ours_like(theirs: nn.Module, size: tuple[int, int], shift: tuple[int, int]):
    """Our layer with the weights of another library's window attention."""
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.2)
    parts = {"pattern": Window(size, shift), "position": RelativeBias(Grid(*size))}
    layer = MultiHeadAttention2d(DIM, HEADS, **parts, backend="reference")
    weights = {
        f"position.{name}" if name.startswith("relative") else name: parameter
        for name, parameter in theirs.named_parameters()
    }
    layer.load_state_dict(weights)
    return layer


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("shape, size, shift", DIVIDED)
def test_shifted_window_attention_is_torchvisions_and_timms(library, shape, size, shift):
    torch.manual_seed(0)
    if library == "torchvision":
        theirs = weights = ShiftedWindowAttention(DIM, [*size], [*shift], HEADS)
    else:
        block = SwinTransformerBlock(DIM, shape, HEADS, window_size=size, shift_size=shift)
        theirs, weights = block._attn, block.attn
    layer = ours_like(weights, size, shift)
    x = torch.randn(2, *shape, DIM, requires_grad=True)
    out = layer(x.flatten(1, 2), Grid(*shape)).unflatten(1, shape)
    sides = [[y, *torch.autograd.grad(y.square().mean(), x)] for y in (out, theirs(x))]
    torch.testing.assert_close(*sides, atol=1e-5, rtol=0)


def padded_then_rolled(shape, size, shift) -> Tensor:
    """(N, N) bool as Swin has it: pad, roll, cut into windows, part what only the roll joined."""
    labels = []
    for length, window, step in zip(shape, size, shift, strict=True):
        places = torch.arange(-(-length // window) * window)
        step = 0 if window >= len(places) else step
        region = (places >= len(places) - step).long()  # what the roll brought round from the front
        labels.append(torch.roll(2 * (places // window) + region, step))
    rows, cols = labels[0][: shape[0]], labels[1][: shape[1]]
    label = (rows[:, None] * 1000 + cols[None, :]).flatten()
    return label[:, None] == label[None, :]


@pytest.mark.parametrize("shape, size, shift", DIVIDED + CUT)
def test_a_window_is_what_padding_and_rolling_make_of_it(shape, size, shift):
    visible = GridPattern(Window(size, shift), Grid(*shape)).visible(CPU)
    assert torch.equal(visible[0, 0], padded_then_rolled(shape, size, shift))


@pytest.mark.parametrize("shape, size, shift", DIVIDED)
def test_there_is_no_mask_where_no_window_is_cut_off(shape, size, shift):
    grid = Grid(*shape, 2)
    q = torch.randn(2, HEADS, grid.tokens, 8)
    groups, prefix = Window(size, shift).split(Call(q, q, q, Mask(), None), None, grid)
    cut = any(step and n > window for n, window, step in zip(shape, size, shift, strict=True))
    assert groups.mask.kinds == ({"padding"} if cut else set())
    assert prefix.mask.kinds == set()
    assert groups.q.shape[2] == size[0] * size[1]
    assert groups.k.shape[2] == 2 + size[0] * size[1]
    assert prefix.q.shape[2] == 2
    assert prefix.k.shape[2] == grid.tokens


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("shape, size, shift", DIVIDED + CUT)
def test_windows_equal_one_call_with_a_mask(shape, size, shift, prefix):
    check_regrouped(Window(size, shift), Grid(*shape, prefix))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": 0}, "size=0 must be whole numbers from 1 on"),
        ({"size": (3, 0)}, r"size=\(3, 0\) must be"),
        ({"size": (3, 4, 5)}, r"\(3, 4, 5\) must be .* one for both axes, or rows and columns"),
        ({"size": 2.5}, "size=2.5 must be"),
        ({"size": 3, "shift": -1}, "shift=-1 must be whole numbers from 0 on"),
        ({"size": 3, "shift": 3}, "shift=3 moves windows of size=3 .*use a smaller shift"),
        ({"size": (3, 5), "shift": 4}, r"shift=4 moves windows of size=\(3, 5\)"),
    ],
)
def test_a_window_that_cannot_be_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        Window(**options)
    assert "\n" not in str(refusal.value)


def test_numbers_and_lists_mean_the_same_window():
    assert len({Window(3, shift=1), Window([3, 3], shift=[1, 1])}) == 1
