"""What does not fit together is refused at the edge, before a kernel reads what is not there."""

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, SelfAttention2d, attend
from vitrail.attention.attention import head_width
from vitrail.attention.positions.rope import Rope, RopeMixed
from vitrail.attention.positions.sincos import SinCos

from .cases import ON_CPU
from .oracle import assert_near, attention

Q = torch.randn(2, 3, 15, 8)

each_backend = pytest.mark.parametrize("backend", [*ON_CPU, "auto"])


@each_backend
@pytest.mark.parametrize(
    "k, v",
    [
        (Q[:, :, :-1], Q),
        (Q, Q[:, :, :-1]),
        (Q[:1], Q),
        (Q[:, :1], Q[:, :1]),
        (Q[..., :4], Q),
        (Q, torch.cat([Q, Q], -1)),
        (Q[0], Q),
    ],
    ids=lambda tensor: str(tuple(tensor.shape)),
)
def test_tensors_that_do_not_fit_together_are_refused(backend, k, v):
    with pytest.raises(ValueError, match=r"^q \(2, 3, 15, 8\), k .* do not fit together; q is"):
        attend(Q, k, v, backend=backend)


@each_backend
@pytest.mark.parametrize("k, v", [(Q.half(), Q), (Q, Q.to("meta"))], ids=["dtype", "device"])
def test_one_dtype_and_one_device_for_all_three(backend, k, v):
    with pytest.raises(ValueError, match="one dtype and one device"):
        attend(Q, k, v, backend=backend)


@each_backend
@pytest.mark.parametrize(
    "given, message",
    [
        ({"mask": torch.ones(1, 1, 15, 14, dtype=torch.bool)}, r"mask= .* \(1\|2, 1\|3, 15, 15\)"),
        ({"mask": torch.ones(3, 1, 15, 15, dtype=torch.bool)}, r"mask= .* \(1\|2, 1\|3, 15, 15\)"),
        ({"mask": Mask(valid=torch.ones(2, 14, dtype=torch.bool))}, r"valid=\) .* \(2, 15\)"),
        ({"bias": torch.ones(1, 2, 15, 15)}, r"bias= has shape \(1, 2, 15, 15\)"),
        ({"mask": torch.ones(1, 1, 15, 15, dtype=torch.bool, device="meta")}, "mask= lies on meta"),
        ({"bias": torch.ones(1, 1, 15, 15, device="meta")}, "bias= lies on meta and q on cpu"),
        ({"scale": float("nan")}, "scale must be a finite number, got nan"),
        ({"scale": torch.ones(3, 1, 1)}, r"must be a finite number, got (?s:.*); multiply q by a"),
        ({"dropout_p": -0.1}, r"dropout must be in \[0, 1\), got -0.1"),
        ({"dropout_p": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
    ids=str,
)
def test_what_is_given_beside_them_must_fit_too(backend, given, message):
    with pytest.raises(ValueError, match=message):
        attend(Q, Q, Q, backend=backend, **given)


@each_backend
def test_any_layout_in_memory_is_computed(backend):
    qkv = [torch.randn(2, 3, 8, 15).transpose(-1, -2)] * 3  # channels first
    assert_near("output", attend(*qkv, backend=backend), attention(*qkv))


def test_a_layers_dropout_is_a_share():
    for share in (-0.1, 1.0, 1.5):
        with pytest.raises(ValueError, match=rf"dropout must be in \[0, 1\), got {share}"):
            MultiHeadAttention2d(24, 3, dropout=share)


@pytest.mark.parametrize("kind", [Rope, RopeMixed, SinCos])
@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_wavelengths_are_spaced_by_a_number_above_zero(kind, temperature):
    with pytest.raises(ValueError, match=r"position\.temperature must be a number above 0"):
        kind(temperature=temperature)


@pytest.mark.parametrize("layer", [MultiHeadAttention2d, SelfAttention2d])
def test_heads_that_do_not_divide_the_width_are_refused_when_the_layer_is_built(layer):
    with pytest.raises(ValueError, match=r"heads=3; use 2, 4 or 5 heads$"):
        layer(100, 3)


@pytest.mark.parametrize(
    "dim, heads, way_out",
    [
        (100, 3, "^dim=100 does not split over heads=3; use 2, 4 or 5 heads"),
        (192, 5, "use 3, 4 or 6 heads"),
        (64, 0, "use 1, 2 or 4 heads"),
        (64, -2, "use 1, 2 or 4 heads"),
        (64, 100, "use 16, 32 or 64 heads"),
        (7, 3, "use 1 or 7 heads"),
        (1, 2, "use 1 head"),
        (0, 2, r"dim must be >= 1, got -?\d"),
        (-8, 2, r"dim must be >= 1, got -?\d"),
    ],
)
def test_the_way_out_names_heads_that_do_divide(dim, heads, way_out):
    with pytest.raises(ValueError, match=f"{way_out}$"):
        head_width(dim, heads)


def test_token_prefix_plus_row_times_cols_plus_col_lies_at_row_and_col():
    grid = Grid(3, 5, 4)
    image = torch.arange(grid.area).reshape(grid.rows, grid.cols)
    rows, cols = grid.coordinates()
    for token in range(grid.prefix, grid.tokens):
        place = token - grid.prefix
        assert image[rows[place], cols[place]] == place
    assert (grid.area, grid.tokens) == (15, 19)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (-1, 3), (2, 2, -1)])
def test_an_empty_grid_is_refused(sizes):
    with pytest.raises(ValueError, match=r"^Grid\(rows=.* is empty; use at least one row"):
        Grid(*sizes)
