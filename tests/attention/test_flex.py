"""FlexAttention on a CPU: forward alone, and how masks and biases become its rules and blocks.

Compiling takes seconds a call, so most tests run its own uncompiled form, and the slow ones the
kernel.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend, backends
from vitrail.attention.backends import Refused, Request, flex, resolve
from vitrail.attention.backends.flex import BLOCK, block_mask
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.neighborhood import Neighborhood
from vitrail.attention.patterns.raster import Raster
from vitrail.attention.patterns.window import Window

from .cases import BATCH, HEADS, KINDS, WIDTH, mask_and_bias, seen_while
from .oracle import assert_near, attention, dead_rows

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NEAR = GridPattern(Neighborhood(3), Grid(3, 5, 1))


@pytest.fixture
def uncompiled(monkeypatch) -> None:
    """The form that torch keeps for looking into: the same rules, and scores written out."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex, "_compiled", torch_flex.flex_attention)


def check(mask: Mask, bias: torch.Tensor | None, tokens: int, dtype: torch.dtype) -> None:
    """Forward equals float64's and dead rows are 0, without gradients."""
    q, k, v = (torch.randn(BATCH, tokens, HEADS, WIDTH).to(dtype).transpose(1, 2) for _ in "qkv")
    with torch.no_grad():
        out = attend(q, k, v, mask=mask, bias=bias, backend="flex")
    visible = mask.visible(CPU)
    assert out.dtype == dtype
    assert_near("output", out, attention(q, k, v, visible=visible, bias=bias))
    dead = dead_rows(visible, bias, (BATCH, HEADS, tokens, tokens))
    assert (out[dead] == 0).all()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(3, 5, 1), Grid(12, 16, 5)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_forward_equals_float64_under_every_mask(kind, grid, dtype):
    torch.manual_seed(0)
    check(*mask_and_bias(KINDS[kind], grid, dtype), grid.tokens, dtype)


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", ["no mask", "padding", "padding, mask and bias"])
@pytest.mark.parametrize("pattern", [Window(2, shift=1), Neighborhood(3), Raster()], ids=str)
def test_a_pattern_is_one_more_rule(pattern, kind):
    torch.manual_seed(0)
    grid = Grid(3, 5, 1)
    mask, bias = mask_and_bias(KINDS[kind], grid, torch.float32)
    check(replace(mask, pattern=GridPattern(pattern, grid)), bias, grid.tokens, torch.float32)


@pytest.mark.usefixtures("uncompiled")
def test_one_query_may_look_at_many_keys_at_a_scale_of_ones_own():
    q, (k, v) = torch.randn(2, 3, 1, 8), torch.randn(2, 2, 3, 15, 8)
    mask = Mask(valid=torch.rand(2, 15) > 0.4)
    with torch.no_grad():
        out = attend(q, k, v, mask=mask, scale=0.1, backend="flex")
    assert_near("output", out, attention(q, k, v, visible=mask.visible(CPU), scale=0.1))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    queries=st.integers(1, 300),
    keys=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    parts=st.sets(st.sampled_from(["valid", "allowed"]), min_size=1),
    density=st.sampled_from([0.0, 0.002, 0.5, 1.0]),
)
def test_listed_blocks_hold_every_visible_pair_and_full_ones_nothing_else(
    queries, keys, seed, parts, density
):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"valid": (2, keys), "allowed": (1, 3, queries, keys)}
    drawn = {
        name: torch.rand(shapes[name], generator=generator) < density for name in sorted(parts)
    }
    mask = Mask(**drawn)
    blocks = block_mask(mask, queries, keys, CPU, cached=False)
    assert blocks.shape[-2:] == (queries, keys)
    visible = mask.visible(CPU)
    visible = visible.expand(*visible.shape[:2], queries, keys)
    partial = listed(blocks.kv_num_blocks, blocks.kv_indices)
    full = listed(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    assert not (partial & full).any()
    for row, part_of_rows in enumerate(visible.split(BLOCK, 2)):
        for column, part in enumerate(part_of_rows.split(BLOCK, 3)):
            listed_here, full_here = ((x[:, :, row, column]) for x in (partial | full, full))
            whole = part.flatten(2).all(-1) & (part[0, 0].numel() == BLOCK**2)
            assert (listed_here | ~part.flatten(2).any(-1)).all()
            assert (whole | ~full_here).all()


def listed(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """(B, h, blocks of queries, blocks of keys) bool, from torch's lists."""
    there = torch.zeros(*indices.shape[:3], indices.shape[-1], dtype=torch.bool)
    among_the_first = torch.arange(indices.shape[-1]) < counts[..., None]
    return there.scatter(-1, indices.long(), among_the_first)


def test_blocks_in_which_nothing_is_visible_are_left_out():
    grid = Grid(32, 16)  # 512 tokens, four blocks of eight rows each
    blocks = block_mask(Mask(pattern=GridPattern(Window(8), grid)), 512, 512, CPU, cached=True)
    assert listed(blocks.kv_num_blocks, blocks.kv_indices)[0, 0].equal(torch.eye(4).bool())
    half = torch.arange(512) < 256
    blocks = block_mask(Mask(valid=half[None]), 512, 512, CPU, cached=True)
    assert listed(blocks.full_kv_num_blocks, blocks.full_kv_indices).sum().item() == 8
    assert blocks.kv_num_blocks.sum().item() == 0


@pytest.mark.usefixtures("uncompiled")
def test_a_patterns_blocks_are_made_once_for_equal_patterns(monkeypatch):
    made, visible = [], GridPattern.visible
    monkeypatch.setattr(
        GridPattern, "visible", lambda rule, device: made.append(rule) or visible(rule, device)
    )
    q, valid = torch.randn(2, 3, 15, 8), torch.ones(2, 15, dtype=torch.bool)

    def rule() -> GridPattern:
        return GridPattern(Window((2, 4), shift=1), Grid(3, 5))  # which no other test has

    with torch.inference_mode():
        for _ in range(3):
            attend(q, q, q, mask=Mask(pattern=rule()), backend="flex")
    for _ in range(3):
        out = attend(q, q, q, mask=Mask(pattern=rule(), valid=valid), backend="flex")
    assert len(made) == 1
    assert_near("output", out, attention(q, q, q, visible=rule().visible(CPU)))
    # What was made in inference may be saved for a backward pass later.
    blocks = block_mask(Mask(pattern=rule()), 15, 15, CPU, cached=True)
    assert not blocks.kv_indices.is_inference()


@pytest.mark.parametrize("needs", ["q", "k", "v"])
def test_training_on_a_cpu_is_refused_for_real(needs):
    given = {name: torch.randn(2, 3, 16, 8, requires_grad=name == needs) for name in "qkv"}
    with pytest.raises(Refused, match=r"^backend=flex cannot compute gradients; eager, .* can$"):
        attend(**given, backend="flex")


@pytest.mark.parametrize("compute", [(8, 0), (9, 0), (12, 0)])
def test_on_cuda_it_trains_under_every_mask_with_a_learned_bias(compute, monkeypatch):
    monkeypatch.setattr(flex, "missing_tool", lambda _: None)
    masks = frozenset({"padding", "mask", "pattern"})
    request = Request(
        "cuda", torch.bfloat16, 2, 3, 197, 197, 64, masks, NEAR, True, True, compute=compute
    )
    assert resolve(request, "flex").name == "flex"
    assert flex.BACKEND.kernels(request).required == {"triton_tem_fused_*flex_attention*"}


def test_a_machine_without_a_compiler_is_told_so(monkeypatch):
    request = Request("cpu", torch.float32, 2, 3, 16, 16, 8, backward=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    lack = r"be compiled without a C\+\+ compiler \(no-such-compiler, or what CXX names\); "
    with pytest.raises(Refused, match=lack):
        resolve(request, "flex")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert flex.BACKEND.refuse(request) == ["be compiled without a processor with AVX2"]
    monkeypatch.setattr(flex.importlib.util, "find_spec", lambda _: None)
    assert flex.missing_tool("cuda") == "Triton"


@pytest.mark.usefixtures("fresh_graphs")
def test_past_its_limit_torch_raises_and_does_not_run_something_else(monkeypatch):
    quick = torch.compile(torch_flex.flex_attention, fullgraph=True, dynamic=False, backend="eager")
    monkeypatch.setattr(flex, "_kernel", lambda _: quick)
    monkeypatch.setattr(flex, "KINDS_OF_CALLS", 1)
    with torch.no_grad():
        attend(*torch.randn(3, 1, 1, 4, 8), backend="flex")
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            attend(*torch.randn(3, 1, 1, 5, 8), backend="flex")


def check_layer(compiled_with: str) -> None:
    """A compiled layer under every kind of mask equals the reference."""
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(24, 3, backend="flex", pattern=Raster())
    compiled = torch.compile(layer, fullgraph=True, backend=compiled_with)
    valid = torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, -1] = False
    mask = torch.rand(16, 16) > 0.4
    mask[1] = False
    given = {"valid": valid, "mask": mask, "bias": torch.randn(1, 3, 16, 16)}
    x = torch.randn(2, 16, 24)
    with torch.no_grad():
        out = compiled(x, Grid(3, 5, 1), **given)
        layer.backend = backends.load("reference")
        torch.testing.assert_close(out, layer(x, Grid(3, 5, 1), **given), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("fresh_graphs")
def test_inside_anothers_graph_it_is_traced_in_and_compiled_no_second_time(monkeypatch):
    monkeypatch.setattr(flex, "_compiled", None)
    check_layer("aot_eager")


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no C++ compiler here"
)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    "kind, grid, dtype",
    [
        ("no mask", Grid(3, 5), torch.bfloat16),
        ("padding", Grid(12, 16, 5), torch.float32),
        ("padding, mask and bias", Grid(3, 5, 1), torch.float16),
    ],
)
def test_the_compiled_kernel_equals_float64_and_is_the_one_that_runs(kind, grid, dtype):
    torch.manual_seed(0)
    mask, bias = mask_and_bias(KINDS[kind], grid, dtype)
    check(mask, bias, grid.tokens, dtype)
    q, k, v = torch.randn(3, BATCH, HEADS, grid.tokens, WIDTH).to(dtype)
    promise = flex.BACKEND.kernels(Request.of(q, k, v, mask, bias, 0.0))
    with torch.no_grad():
        seen = seen_while(lambda: attend(q, k, v, mask=mask, bias=bias, backend="flex"))
    (region,) = promise.required
    assert any(name.startswith(region.rstrip("*")) for name in seen)
    assert not promise.forbidden & seen


PROVED = """
import torch
from vitrail.attention import backends
from vitrail.attention.selection.gate import prove
kind = "cpu", torch.float32, 2, 2, 60, 60, 16, frozenset({"padding"})
request = backends.Request(*kind, backward=False)
prove(request, backends.load("flex"))
"""


@pytest.mark.slow
@needs_compiler
def test_a_kernel_that_was_compiled_for_other_instructions_is_not_run_again(tmp_path):
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for instructions in ({"ATEN_CPU_CAPABILITY": "avx2"}, {}):
        environment = os.environ | cache | instructions
        subprocess.run([sys.executable, "-c", PROVED], env=environment, check=True)


@pytest.mark.slow
@needs_compiler
def test_the_compiled_kernel_takes_patterns_at_several_lengths():
    for grid in (Grid(14, 20, 1), Grid(9, 7), Grid(5, 6, 2)):
        check(Mask(pattern=GridPattern(Neighborhood(5), grid)), None, grid.tokens, torch.float32)


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("fresh_graphs")
def test_a_compiled_layer_equals_the_reference():
    check_layer("inductor")
