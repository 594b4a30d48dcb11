"""What every position of the folder's listing must do, whatever it does besides."""

import importlib
import pkgutil

import pytest
import torch

from vitrail.attention import Grid, MultiHeadAttention2d, positions
from vitrail.attention.positions import OnGrid, Position
from vitrail.attention.positions.decomposed import resample_axis
from vitrail.attention.positions.learned import resample_table
from vitrail.attention.positions.none import NoPosition
from vitrail.attention.positions.relative import resample_relative
from vitrail.model import ViT

DIM, HEADS = 24, 3
FILES = sorted(module.name for module in pkgutil.iter_modules(positions.__path__))


def positions_of(file: str) -> list[type[Position]]:
    module = importlib.import_module(f"{positions.__name__}.{file}")
    return [
        member
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, Position)
        and member.__module__ == module.__name__
    ]


POSITIONS = [kind for file in FILES for kind in positions_of(file)]
GRIDS = (Grid(1, 1), Grid(3, 5), Grid(3, 5, 1), Grid(7, 2, 5))

TELLING = [kind for kind in POSITIONS if kind is not NoPosition]
VIT = {"image_size": (16, 24), "patch_size": 8, "dim": 24, "depth": 3, "heads": 3, "num_classes": 5}

each_position = pytest.mark.parametrize("kind", POSITIONS, ids=lambda kind: kind.__name__)
each_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)


class Model(torch.nn.Module):
    """The two places where a position speaks: at the entrance and in one attention layer."""

    def __init__(self, kind: type[Position], grid: Grid, backend: str = "sdpa"):
        super().__init__()
        self.position = kind().for_grid(grid)
        self.pos_embed = self.position.table(DIM)
        self.attn = MultiHeadAttention2d(DIM, HEADS, position=self.position, backend=backend)

    def forward(self, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        return self.attn(self.position.embed(x, self.pos_embed, grid), grid)


def build(kind: type[Position], grid: Grid) -> Model:
    """Equal for equal arguments, and with tables that show: some begin as zeros."""
    torch.manual_seed(0)
    model = Model(kind, grid)
    for table in (model.pos_embed, *model.attn.position.parameters()):
        if table is not None:
            torch.nn.init.normal_(table)
    return model


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_the_folder_holds_a_position(file):
    assert positions_of(file)


@each_position
@each_grid
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_turning_keeps_shape_dtype_and_length_and_leaves_prefix_tokens_alone(kind, grid, dtype):
    layer = kind().for_grid(grid).layer(HEADS, DIM // HEADS)
    q, k = torch.randn(2, 2, HEADS, grid.tokens, DIM // HEADS).to(dtype)
    for before, after in zip((q, k), layer.rotate(q, k, grid), strict=True):
        assert after.shape == before.shape
        assert after.dtype == dtype
        assert torch.equal(after[:, :, : grid.prefix], before[:, :, : grid.prefix])
        lengths = (x.float().norm(dim=-1) for x in (after, before))
        near = {"atol": 0, "rtol": 4 * torch.finfo(dtype).eps} if dtype.itemsize == 2 else {}
        torch.testing.assert_close(*lengths, **near)


@each_position
@each_grid
def test_a_bias_is_none_or_one_number_a_head_and_pair(kind, grid):
    bias = kind().for_grid(grid).layer(HEADS, DIM // HEADS).bias(grid)
    assert bias is None or bias.shape == (1, HEADS, grid.tokens, grid.tokens)


@each_position
@each_grid
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_widening_keeps_what_there_is_and_leaves_prefix_tokens_alone(kind, grid, dtype):
    layer = build(kind, grid).attn.position
    q, k = torch.randn(2, 2, HEADS, grid.tokens, DIM // HEADS).to(dtype)
    wide = layer.widen(q, k, grid, grid.coordinates(), scale=0.5)
    assert wide[0].shape == wide[1].shape
    for before, after in zip((q, k), wide, strict=True):
        assert after.dtype == dtype
        assert torch.equal(after[..., : before.shape[-1]], before)
        assert not after[:, :, : grid.prefix, before.shape[-1] :].any()


@each_position
def test_a_layer_of_tables_as_large_as_the_grid_asks_for_one(kind):
    if issubclass(kind, OnGrid):
        way_out = rf"{kind.__name__}\(grid=Grid\(7, 7\)\)"
        with pytest.raises(ValueError, match=f"^position=.* {way_out}$"):
            kind().layer(HEADS, 8)
    else:
        kind().layer(HEADS, 8)


@each_position
def test_every_layer_learns_tables_of_its_own(kind):
    told = kind().for_grid(Grid(3, 5, 1))
    first, second = told.layer(HEADS, 8), told.layer(HEADS, 8)
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert ours is not theirs
        assert not torch.equal(ours, theirs) or not ours.any()  # drawn anew, or zeros


@each_position
def test_a_vit_has_the_tables_in_every_block_none_decays_and_other_sizes_are_taken(kind):
    model = ViT(**VIT, position=kind())
    position = kind().for_grid(Grid(2, 3, 1))
    names = {name for name, _ in position.layer(HEADS, 8).named_parameters()}
    tables = {f"blocks.{i}.attn.position.{name}" for i in range(3) for name in names}
    parameters = dict(model.named_parameters())
    assert {name for name in parameters if "position" in name} == tables
    assert tables | ({"pos_embed"} & parameters.keys()) <= model.no_weight_decay()
    assert model(torch.randn(2, 3, 32, 16)).isfinite().all()


@each_position
def test_a_position_is_a_value_that_telling_it_a_grid_does_not_change(kind):
    fresh = kind()
    told = fresh.for_grid(Grid(3, 5))
    assert fresh == kind()
    assert hash(told) == hash(fresh.for_grid(Grid(3, 5)))


@each_position
@pytest.mark.parametrize("grid", [Grid(3, 5, 1), Grid(4, 4, 1)], ids=str)
def test_gradients_reach_every_row_of_every_table_on_its_grid_and_on_another(kind, grid):
    model = build(kind, Grid(3, 5, 1))
    model(torch.randn(2, grid.tokens, DIM), grid).square().sum().backward()
    for table in (model.pos_embed, *model.attn.position.parameters()):
        if table is not None:
            assert torch.isfinite(table.grad).all()
            assert (table.grad.abs().sum(-1) > 0).all()


@each_position
@pytest.mark.parametrize("grid", [Grid(3, 5), Grid(1, 15), Grid(5, 3), Grid(2, 9)], ids=str)
def test_a_model_built_for_one_grid_runs_on_others(kind, grid):
    model = build(kind, Grid(4, 4))
    assert torch.isfinite(model(torch.randn(2, grid.tokens, DIM), grid)).all()


CHANGES = {
    "columns": (Grid(3, 5), lambda image: image.roll(1, 2)),
    "rows": (Grid(3, 5), lambda image: image.roll(1, 1)),
    "transposed": (Grid(4, 4), lambda image: image.transpose(1, 2)),
}


@pytest.mark.parametrize("kind", TELLING, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("grid, change", CHANGES.values(), ids=CHANGES)
def test_a_position_tells_rows_and_columns_apart(kind, grid, change):
    model = build(kind, grid)
    x = torch.randn(1, grid.tokens, DIM)

    def changed(tokens):
        return change(tokens.unflatten(1, (grid.rows, grid.cols))).flatten(1, 2)

    assert not torch.allclose(model(changed(x), grid), changed(model(x, grid)), atol=1e-4)


def test_no_position_tells_nothing():
    grid = Grid(3, 5)
    model = build(NoPosition, grid)
    x = torch.randn(1, grid.tokens, DIM)
    order = torch.randperm(15)
    mixed = model(x[:, order], grid)
    torch.testing.assert_close(mixed, model(x, grid)[:, order], atol=1e-6, rtol=0)


@each_position
@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_the_formula_runs_on_the_meta_device_where_operations_are_counted(kind, backend):
    with torch.device("meta"):
        model = Model(kind, Grid(3, 5), backend)
        for grid in (Grid(3, 5), Grid(4, 7)):
            x = torch.empty(1, grid.tokens, DIM)
            assert model(x, grid).shape == x.shape


@each_position
@pytest.mark.usefixtures("fresh_graphs")
def test_a_compiled_layer_equals_the_layer(kind):
    grid = Grid(3, 5, 1)
    model = build(kind, grid)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, grid.tokens, DIM)
    torch.testing.assert_close(compiled(x, grid), model(x, grid))


RESAMPLED = {
    "learned": ((1, 15, 12), lambda table: resample_table(table, Grid(3, 5), Grid(4, 4))),
    "relative": ((45, 3), lambda table: resample_relative(table, Grid(3, 5), Grid(4, 4))),
    "decomposed": ((9, 8), lambda table: resample_axis(table, 7)),
}


@pytest.mark.parametrize("shape, resample", RESAMPLED.values(), ids=RESAMPLED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_table_of_halves_is_resampled_in_fp32_and_keeps_its_dtype(shape, resample, dtype):
    table = torch.randn(shape).to(dtype)
    assert torch.equal(resample(table), resample(table.float()).to(dtype))
    torch.testing.assert_close(
        resample(table.double()), resample(table.float()).double(), atol=1e-5, rtol=0
    )
