"""The flash-attn package: what it is handed, which generation serves, and what is refused.

Its kernels are stand-ins with the published signatures; test_gpu.py asks the real ones.
"""

import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.attention import Grid, Mask, MultiHeadAttention2d, attend, backends
from vitrail.attention.backends import Refused, Request, flash_attn, resolve
from vitrail.attention.backends.flash_attn import FORCED

from .cases import KINDS, seen_while
from .flash_attn_stubs import MODULES, VERSIONS, forget, install, install_on_a_hopper
from .oracle import assert_near, attention, with_gradients
from .test_contract import check

HOPPER = Request(
    "cuda", torch.bfloat16, batch=2, heads=3, queries=197, keys=197, width=64, compute=(9, 0)
)
AMPERE = replace(HOPPER, compute=(8, 0))
WIDE_ADA = replace(HOPPER, compute=(8, 9), width=256, dropout=0.1)
BLACKWELL, CONSUMER = replace(HOPPER, compute=(10, 0)), replace(HOPPER, compute=(12, 0))

each_generation = pytest.mark.parametrize("generation", sorted(MODULES))


@pytest.fixture
def calls(generation, monkeypatch) -> list[dict]:
    """What the only generation here is given, on what passes for a Hopper."""
    return install_on_a_hopper(monkeypatch, generation)


def drawn(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape or (2, 3, 15, 8)).to(torch.bfloat16) for _ in "qkv"]


@each_generation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("grid", [Grid(1, 1, 1), Grid(3, 5, 1), Grid(8, 8)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_through_any_generation_it_is_attention_or_refused(calls, kind, grid, dtype):
    check("flash_attn", kind, grid, dtype)
    assert len(calls) == (kind in ("no mask", "padding"))


@each_generation
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_kernel_is_handed_tokens_before_heads_and_every_knob(calls, deterministic):
    q, k, v = drawn()
    torch.use_deterministic_algorithms(deterministic)
    try:
        attend(q, k, v, scale=0.3, backend="flash_attn")
    finally:
        torch.use_deterministic_algorithms(False)
    (call,) = calls
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        assert torch.equal(call[name], tensor.transpose(1, 2))
    assert (call["softmax_scale"], call["causal"]) == (0.3, False)
    assert call["deterministic"] is deterministic
    assert call.get("dropout_p", 0.0) == 0.0


@pytest.mark.parametrize("generation", ["FA2"])
def test_dropout_reaches_the_generation_that_has_it(calls):
    for mask in (None, Mask(valid=torch.ones(2, 15, dtype=torch.bool))):
        attend(*drawn(), mask=mask, dropout_p=0.25, backend="flash_attn")
    assert [call["dropout_p"] for call in calls] == [0.25, 0.25]


@each_generation
def test_under_padding_queries_stay_and_real_keys_are_packed(calls):
    q, k, v = drawn(3, 3, 5, 8)
    valid = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
    attend(q, k, v, mask=Mask(valid=valid), backend="flash_attn")
    (call,) = calls
    assert call["cu_seqlens_q"].tolist() == [0, 5, 10, 15]
    # The second sample has no real key, and looks at all of its own rather than at none.
    assert call["cu_seqlens_k"].tolist() == [0, 3, 8, 12]
    assert (call["max_seqlen_q"], call["max_seqlen_k"]) == (5, 5)
    assert torch.equal(call["q"], q.transpose(1, 2).flatten(0, 1))
    assert torch.equal(call["k"][:3], k.transpose(1, 2)[0, valid[0]])
    assert torch.equal(call["v"][8:12], v.transpose(1, 2)[2, valid[2]])


@each_generation
@pytest.mark.usefixtures("calls")
def test_rubbish_in_padding_reaches_neither_outputs_nor_gradients():
    q, k, v = drawn(2, 3, 6, 8)
    valid = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0]]).bool()
    results = []
    for rubbish in (0.0, float("nan"), float("inf")):
        k, v = (tensor.masked_fill(~valid[:, None, :, None], rubbish) for tensor in (k, v))
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        out = attend(*leaves, mask=Mask(valid=valid), backend="flash_attn")
        results.append(with_gradients(out, leaves))
        assert all(torch.isfinite(tensor).all() for tensor in results[-1])
    torch.testing.assert_close(results[1:], results[:1] * 2, atol=0, rtol=0)


@each_generation
@pytest.mark.usefixtures("calls")
def test_one_query_may_look_at_many_padded_keys():
    q, k, v = drawn()
    mask = Mask(valid=torch.rand(2, 15) > 0.4)
    out = attend(q[:, :, :1], k, v, mask=mask, backend="flash_attn")
    assert_near("output", out, attention(q[:, :, :1], k, v, visible=mask.visible(q.device)))


@each_generation
@pytest.mark.usefixtures("calls", "fresh_graphs")
def test_a_layer_that_calls_it_is_one_graph():
    torch.manual_seed(0)
    layer = MultiHeadAttention2d(24, 3, backend="flash_attn").to(torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(2, 15, 24).to(torch.bfloat16)
    # The stand-in for packed tokens reads values, which the real one leaves to the GPU.
    assert torch.equal(compiled(x, Grid(3, 5)), layer(x, Grid(3, 5)))


@pytest.mark.parametrize(
    "installed, request_, chosen",
    [
        ("FA2", AMPERE, "FA2"),
        ("FA2", HOPPER, "FA2"),
        ("FA2", BLACKWELL, "FA2"),
        ("FA2", CONSUMER, "FA2"),
        ("FA3", HOPPER, "FA3"),
        ("FA4", HOPPER, "FA4"),
        ("FA4", BLACKWELL, "FA4"),
        ("FA2 FA3", HOPPER, "FA3"),
        ("FA2 FA3", AMPERE, "FA2"),
        ("FA2 FA4", BLACKWELL, "FA4"),
        ("FA2 FA4", CONSUMER, "FA2"),
        ("FA3 FA4", HOPPER, "FA3"),
        ("FA3 FA4", BLACKWELL, "FA4"),
        ("FA2 FA3 FA4", replace(HOPPER, compute=(8, 9)), "FA2"),
        # Only FA2 drops, and only FA2 takes this width on Blackwell.
        ("FA2 FA3 FA4", replace(HOPPER, dropout=0.1), "FA2"),
        ("FA2 FA4", replace(BLACKWELL, width=192), "FA2"),
        ("FA2 FA4", replace(BLACKWELL, width=256), "FA4"),
    ],
)
def test_what_is_installed_and_the_gpu_decide_the_generation(
    installed, request_, chosen, monkeypatch
):
    install(monkeypatch, *installed.split())
    backend = resolve(request_, "flash_attn")
    assert backend.variant(request_) == f"{chosen} {VERSIONS[chosen]}"


@pytest.mark.parametrize("forced", ["FA2", "FA3", "FA4"])
def test_a_generation_can_be_forced(forced, monkeypatch):
    install(monkeypatch, *MODULES)
    monkeypatch.setenv(FORCED, forced)
    assert resolve(HOPPER, "flash_attn").variant(HOPPER) == f"{forced} {VERSIONS[forced]}"


@pytest.mark.parametrize(
    "installed, forced, request_, clash",
    [
        ("", None, HOPPER, re.escape(flash_attn.ABSENT)),
        ("FA2", "FA3", HOPPER, "run FA3, which is not installed"),
        ("FA2", "FA5", HOPPER, rf"run {FORCED}=FA5 \(there are FA2, FA3, FA4\)"),
        ("FA3", None, AMPERE, r"run FA3 on compute capability 8\.0"),
        ("FA2 FA3", "FA3", AMPERE, r"run FA3 on compute capability 8\.0"),
        ("FA4", None, CONSUMER, r"run FA4 on compute capability 12\.0"),
        ("FA3", None, replace(HOPPER, dropout=0.1), "drop attention weights with FA3"),
        ("FA4", None, replace(BLACKWELL, width=192), r"192 with FA4 on .* \(at most 128, or 256\)"),
        ("FA2", None, WIDE_ADA, r"train head width 256 with dropout on compute capability 8\.9"),
        ("FA2", None, replace(HOPPER, dtype=torch.float32), "compute in float32"),
        ("FA2", None, replace(HOPPER, compute=(7, 5)), r"run on compute capability 7\.5"),
        ("FA2", None, replace(HOPPER, width=264), r"take head width 264 \(at most 256\)"),
        ("FA2", None, replace(HOPPER, width=12), r"take head width 12 \(a multiple of 8\)"),
        ("FA2", None, replace(HOPPER, bias=True), "add a bias to the scores"),
        ("FA2", None, replace(HOPPER, masks=frozenset({"mask"})), "honour an attention mask"),
        ("FA2", None, replace(HOPPER, masks=frozenset({"pattern"})), "honour a pattern"),
    ],
)
def test_it_says_what_it_cannot_do_and_who_can(installed, forced, request_, clash, monkeypatch):
    install(monkeypatch, *installed.split())
    if forced:
        monkeypatch.setenv(FORCED, forced)
    sentence = rf"^backend=flash_attn cannot .*{clash}.*; .*reference.* can$"
    with pytest.raises(Refused, match=sentence):
        resolve(request_, "flash_attn")
    assert flash_attn.BACKEND.variant(request_) is None


@each_generation
def test_each_generation_promises_its_own_operator(generation, monkeypatch):
    install(monkeypatch, generation)
    operators = {
        "FA2": "flash_attn::_flash_attn_*forward",
        "FA3": "flash_attn_3::fwd",
        "FA4": "FlashAttn*Func",
    }
    assert flash_attn.BACKEND.kernels(HOPPER).required == {operators[generation]}


def test_the_name_of_an_autograd_function_is_what_a_profiler_sees_of_it():
    # FA4 has no operator of torch's; its promise rests on this.
    class FlashAttnFunc(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    assert "FlashAttnFunc" in seen_while(lambda: FlashAttnFunc.apply(torch.ones(2)))


def test_the_extra_that_a_refusal_names_exists():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    (extra,) = re.findall(r"vitrail\[(\w+)\]", flash_attn.ABSENT)
    assert any(needed.startswith("flash-attn") for needed in extras[extra])


@pytest.mark.parametrize(
    "broken, reason",
    [
        ('raise ImportError("libx.so: undefined symbol: _ZN3c10\\nmore")', "libx.so: undefined"),
        ('raise OSError("libcudart.so.12: cannot open shared object file")', "libcudart.so.12"),
        ('raise RuntimeError("built for another torch")', "built for another torch"),
        ("__version__ = '1.0.9'", "has no attribute 'flash_attn_func'"),
    ],
)
def test_a_package_that_does_not_import_is_a_refusal_in_one_line(
    broken, reason, tmp_path, monkeypatch
):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    for module in MODULES.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(flash_attn, "_version", lambda _: None)
    forget(monkeypatch)
    with pytest.raises(Refused) as refusal:
        resolve(AMPERE, "flash_attn")
    assert refusal.match(rf"^backend=flash_attn cannot import flash_attn \(.*{reason}.*\); .* can$")
    assert "\n" not in str(refusal.value)
    assert "flash_attn" not in backends.permitted(AMPERE)
    assert resolve(AMPERE, "sdpa_flash").name == "sdpa_flash"
    sys.modules.pop("flash_attn", None)


def test_a_broken_package_hurts_nobody_who_does_not_use_it_and_a_cpu_imports_none(tmp_path):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text('raise ImportError("undefined symbol")')
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch, vitrail\n"
        "from vitrail.attention import attend, backends\n"
        "q = torch.ones(1, 1, 4, 8, dtype=torch.bfloat16)\n"
        "attend(q, q, q, backend='sdpa')\n"
        "backends.permitted(backends.Request('cpu', torch.float32, 1, 1, 4, 4, 8))\n"
        "try: attend(q, q, q, backend='flash_attn')\n"
        "except backends.Refused as refusal: print(refusal)\n"
        "assert not {'flash_attn', 'flash_attn_interface'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("backend=flash_attn cannot run on cpu; eager, ")
