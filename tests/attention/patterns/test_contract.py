"""What every pattern of the folder's listing must do, whatever it shows."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from vitrail.attention import Grid, MultiHeadAttention2d, backends, patterns
from vitrail.attention.backends import Request
from vitrail.attention.patterns import Call, GridPattern, Pattern
from vitrail.attention.selection.requests import requests_of

from ..cases import BATCH, HEADS, ON_CPU, PREFIXES, WIDTH, Kind, mask_and_bias
from ..oracle import assert_near, assert_same, with_gradients
from .examples import EXAMPLES, dense, regrouped

# One token; less than a window or a kernel; sizes that do not divide, with windows cut at both
# ends; and enough for several tiles of a neighbourhood.
SHAPES = ((1, 1), (2, 3), (5, 7), (12, 19))
MASKS = {
    "no mask": Kind(),
    "padding": Kind(padded=True),
    "mask": Kind(mask=(BATCH, HEADS)),
    "padding, mask and bias": Kind(padded=True, mask=(BATCH, 1), bias=(1, HEADS), cut=True),
}
DIM = HEADS * WIDTH
CPU = torch.device("cpu")

each_example = pytest.mark.parametrize("pattern", EXAMPLES, ids=str)


def whole_call(kind: str, grid: Grid, dtype: torch.dtype) -> Call:
    """q, k and v that want gradients, and masks of that kind; sample 1 is all padding."""
    mask, bias = mask_and_bias(MASKS[kind], grid, dtype)
    q, k, v = torch.randn(3, BATCH, HEADS, grid.tokens, WIDTH, dtype=dtype)
    leaves = [leaf.requires_grad_() for leaf in (q, k, v)]
    return Call(*leaves, mask, bias if bias is None else bias.requires_grad_())


def tile_bias_of(pattern: Pattern, grid: Grid, dtype: torch.dtype) -> torch.Tensor:
    tokens = pattern.tile(grid).tokens
    return torch.randn(1, HEADS, tokens, tokens, dtype=dtype, requires_grad=True)


def build(pattern: Pattern, backend: str = "reference", **options) -> MultiHeadAttention2d:
    torch.manual_seed(0)
    return MultiHeadAttention2d(DIM, HEADS, pattern=pattern, backend=backend, **options)


def some_padding(grid: Grid) -> torch.Tensor:
    """(2, rows, cols) bool: the last columns of sample 0 and all of sample 1 are padding."""
    valid = torch.ones(2, grid.rows, grid.cols, dtype=torch.bool)
    valid[0, :, grid.cols // 2 :] = False
    valid[1] = False
    return valid


@pytest.mark.parametrize("name", patterns.names())
def test_a_file_of_the_folder_holds_one_pattern_with_examples(name):
    pattern = patterns.load(name)
    assert issubclass(pattern, Pattern)
    assert {type(example) for example in pattern.examples()} == {pattern}


@each_example
def test_a_pattern_is_a_value_that_a_request_can_be_told_apart_by(pattern):
    assert len({GridPattern(pattern, Grid(3, 5, prefix)) for prefix in (1, 2, 1)}) == 2


@each_example
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_rule_lets_a_token_see_itself_and_prefix_tokens_and_takes_single_numbers(
    pattern, shape
):
    grid = Grid(*shape, 2)
    rule = GridPattern(pattern, grid)
    visible = rule.visible(CPU)[0, 0]
    assert visible.diagonal().all()
    assert visible[:2].all()
    assert visible[:, :2].all()
    single = torch.vmap(torch.vmap(rule.sees, (None, 0)), (0, None))
    tokens = torch.arange(grid.tokens)
    assert torch.equal(single(tokens, tokens), visible)


@each_example
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_that_see_each_other_lie_at_different_places_of_one_tile(pattern, shape):
    grid = Grid(*shape, 3)
    tile = pattern.tile(grid)
    assert tile.prefix == 3
    assert tile.rows <= grid.rows
    assert tile.cols <= grid.cols
    places = pattern.places(grid, CPU)
    visible = GridPattern(pattern, Grid(*shape)).visible(CPU)[0, 0]
    for place, axis, size in zip(places, grid.coordinates(), (tile.rows, tile.cols), strict=True):
        assert ((place >= 0) & (place < size)).all()
        apart = (place[:, None] - place[None]) - (axis[:, None] - axis[None])
        assert (apart[visible] == 0).all(), "places in a tile are as far apart as on the map"


@each_example
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_smaller_calls_equal_one_call_with_a_mask_forward_and_backward(pattern, shape, kind):
    torch.manual_seed(0)
    for prefix in PREFIXES:
        grid = Grid(*shape, prefix)
        whole = whole_call(kind, grid, torch.float64)
        for tile_bias in (None, tile_bias_of(pattern, grid, torch.float64)):
            leaves = [whole.q, whole.k, whole.v, whole.bias, tile_bias]
            leaves = [leaf for leaf in leaves if leaf is not None]
            out, slow = (way(pattern, whole, tile_bias, grid) for way in (regrouped, dense))
            assert_same(out, leaves, slow, leaves, f" with {prefix} prefix tokens")


@each_example
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("backend", ON_CPU)
def test_every_kernel_computes_the_calls_alike_forward_and_backward(pattern, kind, backend):
    torch.manual_seed(0)
    grid = Grid(5, 11, 1)
    whole = whole_call(kind, grid, torch.float32)
    if whole.bias is not None:
        whole = replace(whole, bias=whole.bias.detach())  # flash gives it no gradient
    tile_bias = tile_bias_of(pattern, grid, torch.float32).detach()
    out = regrouped(pattern, whole, tile_bias, grid, backend)
    leaves = [whole.q, whole.k, whole.v]
    assert_same(out, leaves, dense(pattern, whole, tile_bias, grid), leaves)


@pytest.mark.slow
@each_example
@pytest.mark.parametrize("backend", sorted({*backends.names()} - {*ON_CPU}))
def test_a_backend_that_does_not_train_here_computes_the_calls_that_it_takes(pattern, backend):
    torch.manual_seed(0)
    grid = Grid(5, 11, 1)
    whole = whole_call("padding", grid, torch.float32)
    whole = replace(whole, q=whole.q.detach(), k=whole.k.detach(), v=whole.v.detach())
    with torch.no_grad():
        calls = pattern.split(whole, None, grid)
        asked = [Request.of(call.q, call.k, call.v, call.mask, call.bias, 0.0) for call in calls]
        if not all(backend in backends.permitted(request) for request in asked):
            pytest.skip(f"{backend} does not take such calls here")
        out = regrouped(pattern, whole, None, grid, backend)
        assert_near("output", out, dense(pattern, whole, None, grid).double())


@each_example
@pytest.mark.parametrize("prefix", [0, 2])
def test_who_sees_nothing_gets_zeros_and_sends_no_gradient(pattern, prefix):
    torch.manual_seed(0)
    grid = Grid(5, 7, prefix)
    whole = whole_call("padding, mask and bias", grid, torch.float32)
    out = regrouped(pattern, whole, None, grid)
    gradient = torch.autograd.grad(out.square().sum(), whole.q)[0]
    visible = whole.mask.visible(out.device) & GridPattern(pattern, grid).visible(out.device)
    dead = ~(visible & (whole.bias > float("-inf"))).any(-1)
    assert dead.any()
    assert (out[dead] == 0).all()
    assert (gradient[dead] == 0).all()


@each_example
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf")])
def test_what_lies_in_padding_reaches_no_output_and_no_gradient(pattern, rubbish):
    grid = Grid(5, 11, 1)
    layer = build(pattern, qk_norm=True)
    valid = some_padding(grid)
    hidden = torch.cat([torch.zeros(2, 1, dtype=torch.bool), ~valid.flatten(1)], dim=1)
    x = torch.randn(2, grid.tokens, DIM)
    sides = [
        with_gradients(layer(content, grid, valid=valid), layer.parameters())
        for content in (x, x.masked_fill(hidden[..., None], rubbish))
    ]
    torch.testing.assert_close(*sides, atol=0, rtol=0)


@each_example
def test_a_sample_that_is_all_padding_harms_no_other_sample(pattern):
    grid = Grid(5, 11)
    layer = build(pattern)
    valid = some_padding(grid)
    x = torch.randn(2, grid.tokens, DIM)
    out = layer(x, grid, valid=valid)
    alone = layer(x[:1], grid, valid=valid[:1])
    torch.testing.assert_close(out[:1], alone, atol=1e-6, rtol=0)
    assert torch.equal(out[1], layer.proj.bias.expand_as(out[1]))


@each_example
@pytest.mark.parametrize("padded", [False, True])
def test_the_calls_of_a_layer_are_planned_on_the_meta_device(pattern, padded, asked):
    grid = Grid(5, 11, 1)
    valid = some_padding(grid) if padded else None
    build(pattern)(torch.randn(2, grid.tokens, DIM), grid, valid=valid)
    said = tuple(dict.fromkeys(asked))
    with torch.device("meta"):
        model = build(pattern)
        x = torch.empty(2, grid.tokens, DIM)
    model.forward = lambda x, valid: type(model).forward(model, x, grid, valid=valid)
    valid = None if valid is None else valid.to("meta")
    where = {"device": CPU, "dtype": torch.float32, "training": True}
    planned = requests_of(model, x, valid, **where)
    assert list(planned.values()) == [said]


def check_one_graph(pattern: Pattern, grid: Grid, **given) -> None:
    """A compiled layer breaks nowhere and equals itself, forward and backward."""
    layer = build(pattern, backend="eager")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, grid.tokens, DIM)
    sides = [
        with_gradients(call(x, grid, **given), layer.parameters()) for call in (layer, compiled)
    ]
    torch.testing.assert_close(*sides, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("fresh_graphs")
@pytest.mark.parametrize("name", patterns.names())
def test_torch_compile_takes_a_layer_as_one_graph(name):
    grid = Grid(5, 11, 1)
    check_one_graph(patterns.load(name).examples()[0], grid, valid=some_padding(grid))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_graphs")
@each_example
def test_torch_compile_takes_masks_and_biases_too(pattern):
    grid = Grid(5, 11, 1)
    mask = torch.rand(grid.tokens, grid.tokens) > 0.4
    bias = torch.randn(2, 1, grid.tokens, grid.tokens)
    check_one_graph(pattern, grid, valid=some_padding(grid), mask=mask, bias=bias)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_graphs")
@each_example
def test_a_few_grids_make_no_more_graphs_than_there_are_grids(pattern):
    counter = CompileCounter()
    layer = build(pattern, backend="eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for rows, cols in [(3, 5), (4, 6)] * 3 + [(5, 7), (2, 9), (3, 5)]:
        grid = Grid(rows, cols, 1)
        x = torch.randn(2, grid.tokens, DIM)
        torch.testing.assert_close(compiled(x, grid), layer(x, grid), atol=1e-5, rtol=1e-5)
    assert counter.frame_count <= 4
