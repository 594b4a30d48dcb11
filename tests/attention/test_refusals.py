"""A backend that is named runs or raises; the sentence says what clashes and what would work."""

import dataclasses

import pytest
import torch

from vitrail.attention import attend, backends
from vitrail.attention.backends import Capability, Refused, Request, resolve

from .cases import ON_CPU

CPU = Request("cpu", torch.float32, batch=2, heads=3, queries=16, keys=16, width=8)
AMPERE = Request("cuda", torch.bfloat16, 2, 3, queries=197, keys=197, width=64, compute=(8, 0))
KEYS, DENSE, ALL = map(frozenset, (["padding"], ["mask"], ["padding", "mask", "pattern"]))


def changed(request: Request, **changes) -> Request:
    return dataclasses.replace(request, **changes)


def gpu(**changes) -> Request:
    return changed(AMPERE, **changes)


def test_these_backends_train_on_a_cpu_and_no_other():
    assert set(ON_CPU) == {"eager", "reference", "sdpa", "sdpa_flash", "sdpa_math"}


@pytest.mark.parametrize("name", backends.names())
def test_a_backend_goes_by_the_name_of_its_file_and_is_resolved_to_no_other(name):
    backend = backends.load(name)
    assert backend.name == name
    assert backend is backends.load(name)
    if name in ON_CPU:
        assert resolve(CPU, name) is resolve(CPU, backend) is backend


@pytest.mark.parametrize(
    "name, request_, clash",
    [
        ("sdpa_flash", changed(CPU, dropout=True), "drop attention weights"),
        ("sdpa_flash", changed(CPU, bias=True, bias_grad=True), "give the gradient of a bias"),
        ("sdpa_flash", changed(CPU, device="mps"), "run on mps"),
        ("sdpa_flash", gpu(masks=KEYS), "honour a padding mask"),
        ("sdpa_flash", gpu(masks=DENSE), "honour an attention mask"),
        ("sdpa_flash", gpu(bias=True), "add a bias to the scores"),
        ("sdpa_flash", gpu(dtype=torch.float32), "compute in float32"),
        ("sdpa_flash", gpu(dtype=torch.float64), "compute in float64"),
        ("sdpa_flash", gpu(compute=(7, 5)), r"run on compute capability 7\.5"),
        ("sdpa_flash", gpu(width=288), r"take head width 288 \(at most 256\)"),
        ("sdpa_flash", gpu(width=200, compute=(8, 6)), r"gradients at head width 200 on .* 8\.6"),
        (
            "sdpa_flash",
            gpu(width=256, dropout=0.1, compute=(12, 0)),
            r"head width 256 with dropout on compute capability 12\.0",
        ),
        ("sdpa_efficient", gpu(dtype=torch.float64), "compute in float64"),
        ("sdpa_efficient", gpu(compute=(7, 5)), "compute in bfloat16 below compute capability"),
        ("sdpa_efficient", gpu(compute=(3, 7)), r"run on compute capability 3\.7"),
        ("sdpa_efficient", gpu(width=20), r"take head width 20 \(a multiple of 8\)"),
        ("sdpa_efficient", gpu(dtype=torch.float32, width=6), r"width 6 \(a multiple of 4\)"),
        (
            "sdpa_efficient",
            gpu(bias=True, bias_grad=True, backward=False),
            "give the gradient of a bias alone, without that of q, k or v",
        ),
        ("sdpa_cudnn", gpu(dtype=torch.float32), "compute in float32"),
        ("sdpa_cudnn", gpu(compute=(7, 5)), r"run on compute capability 7\.5"),
        ("sdpa_cudnn", gpu(width=136), r"take head width 136 \(at most 128\)"),
        ("sdpa_cudnn", gpu(width=12), r"take head width 12 \(a multiple of 8\)"),
        ("sdpa_cudnn", gpu(bias=True, bias_grad=True), "give the gradient of a bias"),
        ("sdpa_cudnn", gpu(dropout=0.1), r"drop 0\.1 of the weights \(in steps of 1/16 only\)"),
        ("sdpa_cudnn", gpu(dropout=0.5, queries=1), "drop weights of a single query"),
        ("sdpa_cudnn", gpu(keys=1), "look at a single key"),
        (
            "sdpa_cudnn",
            gpu(masks=KEYS, queries=64, keys=64),
            r"give gradients under a mask of 64 keys \(NaN, pytorch#196678\)",
        ),
        ("sdpa_cudnn", gpu(bias=True, queries=5, keys=192), "under a mask of 192 keys"),
        ("sdpa_cudnn", gpu(queries=1), r"a single query \(NaN, cudnn-frontend#1072\)"),
        ("flex", changed(CPU, dropout=0.1, backward=False), "drop attention weights"),
        ("flex", changed(CPU, dtype=torch.float64, backward=False), "compute in float64"),
        ("flex", changed(CPU, device="mps", backward=False), "run on mps"),
        ("flex", gpu(compute=(7, 5), width=16), r"run on compute capability 7\.5"),
        ("flex", gpu(compute=(9, 0), width=8), r"take head width 8 \(at least 16\)"),
        ("flex", gpu(compute=(9, 0), dtype=torch.float64), "compute in float64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_backend_says_what_it_cannot_do_and_who_can(name, request_, clash):
    with pytest.raises(Refused) as refusal:
        resolve(request_, name)
    assert refusal.match(f"^backend={name} cannot .*{clash}.*; .*reference.* can$")
    assert "\n" not in str(refusal.value)
    way_out = str(refusal.value).split("; ")[-1].removesuffix(" can").split(", ")
    assert name not in way_out
    for other in way_out:
        assert resolve(request_, other).name == other


@pytest.mark.parametrize(
    "name, request_",
    [
        ("sdpa_flash", CPU),
        ("sdpa_flash", changed(CPU, masks=KEYS)),
        ("sdpa_flash", changed(CPU, masks=DENSE, bias=True)),
        ("sdpa_flash", changed(CPU, dtype=torch.float64, width=6)),
        ("sdpa_flash", gpu()),
        ("sdpa_flash", gpu(dtype=torch.float16, width=256)),
        ("sdpa_flash", gpu(dropout=True)),
        ("sdpa_flash", gpu(compute=(9, 0))),
        ("sdpa_flash", gpu(compute=(12, 0))),
        ("sdpa_flash", gpu(width=192, dropout=0.1, compute=(8, 6))),
        ("sdpa_flash", gpu(width=256, compute=(8, 9))),
        ("sdpa_flash", gpu(width=200, backward=False, compute=(8, 9))),
        ("sdpa_flash", gpu(width=200, dropout=0.1, compute=(9, 0))),
        ("sdpa_efficient", gpu()),
        ("sdpa_efficient", gpu(masks=ALL, bias=True, bias_grad=True)),
        ("sdpa_efficient", gpu(dtype=torch.float32, width=36, dropout=0.1)),
        ("sdpa_efficient", gpu(dtype=torch.float16, compute=(7, 5), width=264)),
        ("sdpa_efficient", gpu(dtype=torch.float32, compute=(5, 0))),
        ("sdpa_cudnn", gpu()),
        ("sdpa_cudnn", gpu(masks=ALL, bias=True, dropout=0.125)),
        ("sdpa_cudnn", gpu(width=128, dtype=torch.float16, compute=(12, 0))),
        ("sdpa_cudnn", gpu(masks=KEYS, queries=256, keys=256)),
        ("sdpa_cudnn", gpu(masks=KEYS, queries=64, keys=64, backward=False)),
        ("sdpa_cudnn", gpu(queries=64, keys=64)),
        ("sdpa_cudnn", gpu(queries=1, backward=False)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_takes_what_torchs_source_says_it_takes(name, request_):
    assert resolve(request_, name).name == name


def test_a_refusal_lists_every_clash_at_once():
    request = gpu(dtype=torch.float32, masks=DENSE, width=300)
    with pytest.raises(Refused) as refusal:
        resolve(request, "sdpa_flash")
    for clash in ("float32", "an attention mask", "head width 300"):
        assert clash in str(refusal.value)


def test_resolving_reads_neither_tensors_nor_the_machine(monkeypatch):
    # CUDA requests are decided on a machine that has none, and the same one always the same way.
    monkeypatch.setattr(torch.cuda, "get_device_capability", None)
    request = gpu(compute=(9, 0))
    assert resolve(request, "sdpa_flash") is resolve(request, "sdpa_flash")
    assert hash(request) == hash(changed(request))


@pytest.mark.parametrize(
    "misspelt, near",
    [("refernce", "reference"), ("sdpa_flsh", "sdpa_flash"), ("egaer", "eager"), ("SDPA", None)],
)
def test_a_misspelt_backend_is_answered_with_the_near_name_and_all_names(misspelt, near):
    with pytest.raises(ValueError, match=f"backend={misspelt} does not exist") as error:
        backends.load(misspelt)
    if near:
        assert f"did you mean {near}?" in str(error.value)
    for name in backends.names():
        assert name in str(error.value)


@pytest.mark.parametrize("name", ["", "..mask", "reference.py", "__init__", None, 3, ["eager"]])
def test_nothing_but_a_file_of_the_folder_is_a_backend(name):
    with pytest.raises((ValueError, TypeError), match=r"does not exist|unhashable"):
        backends.load(name)


def test_a_request_that_no_backend_can_serve_says_so(monkeypatch):
    for name in backends.names():
        monkeypatch.setattr(backends.load(name), "refuse", lambda _: ["do this"], raising=False)
    with pytest.raises(Refused, match=r"^backend=eager cannot do this; no backend can$"):
        resolve(CPU, "eager")


def test_a_call_is_refused_as_its_request_is():
    q = torch.randn(2, 3, 16, 8)
    bias = torch.zeros(1, 3, 16, 16, requires_grad=True)
    with pytest.raises(Refused, match="gradient of a bias"):
        attend(q, q, q, bias=bias, backend="sdpa_flash")
    with torch.no_grad():
        attend(q, q, q, bias=bias, backend="sdpa_flash")
    with pytest.raises(Refused, match="drop attention weights"):
        attend(q, q, q, dropout_p=0.1, backend="sdpa_flash")


def test_a_capability_lacks_nothing_by_default():
    everything = changed(CPU, masks=DENSE, bias=True, bias_grad=True, dropout=True, width=4096)
    assert Capability().missing(everything) == []
    assert Capability(backward=False).missing(CPU) == ["compute gradients"]
    assert Capability(backward=False).missing(changed(CPU, backward=False)) == []


@pytest.mark.parametrize(
    "width, dtype, rules",
    [
        (16, torch.float32, None),
        (64, torch.float32, None),
        (8, torch.float32, "at least 16"),
        (72, torch.float32, "at most 64"),
        (20, torch.float32, "a multiple of 8"),
        (66, torch.float32, "at most 64, a multiple of 8"),
        (20, torch.float16, None),  # whose widths are multiples of another number
        (22, torch.float16, "a multiple of 4"),
        (17, torch.float64, None),
    ],
)
def test_a_head_width_is_refused_with_the_rules_it_breaks(width, dtype, rules):
    multiples = {torch.float32: 8, torch.float16: 4}
    capability = Capability(min_width=16, max_width=64, multiple_of=multiples)
    wanted = [] if rules is None else [f"take head width {width} ({rules})"]
    assert capability.missing(changed(CPU, width=width, dtype=dtype)) == wanted
