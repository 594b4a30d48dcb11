"""A backend that is named runs or raises; the sentence says what clashes and what would work."""

import dataclasses

import pytest
import torch

from vitrail.attention import attend, backends
from vitrail.attention.backends import Capability, Refused, Request, resolve

from .cases import ON_CPU

CPU = Request("cpu", torch.float32, batch=2, heads=3, queries=16, keys=16, width=8)
AMPERE = dataclasses.replace(CPU, device="cuda", dtype=torch.bfloat16, compute=(8, 0))


def changed(request: Request, **changes) -> Request:
    return dataclasses.replace(request, **changes)


def test_these_backends_train_on_a_cpu_and_no_other():
    assert set(ON_CPU) == {"eager", "reference", "sdpa", "sdpa_flash", "sdpa_math"}


@pytest.mark.parametrize("name", backends.names())
def test_a_backend_goes_by_the_name_of_its_file(name):
    assert backends.load(name).name == name
    assert backends.load(name) is backends.load(name)


@pytest.mark.parametrize("name", ON_CPU)
def test_resolve_returns_the_backend_that_was_named_and_no_other(name):
    assert resolve(CPU, name) is backends.load(name)
    assert resolve(CPU, backends.load(name)) is backends.load(name)


@pytest.mark.parametrize(
    "request_, clash",
    [
        (changed(CPU, dropout=True), "drop attention weights"),
        (changed(CPU, bias=True, bias_grad=True), "give the gradient of a bias"),
        (changed(CPU, device="mps"), "run on mps"),
        (changed(AMPERE, masks=frozenset({"padding"})), "honour a padding mask"),
        (changed(AMPERE, masks=frozenset({"mask"})), "honour an attention mask"),
        (changed(AMPERE, bias=True), "add a bias to the scores"),
        (changed(AMPERE, dtype=torch.float32), "compute in float32"),
        (changed(AMPERE, dtype=torch.float64), "compute in float64"),
        (changed(AMPERE, compute=(7, 5)), r"run on compute capability 7\.5"),
        (changed(AMPERE, width=288), r"take head width 288 \(at most 256\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flash_says_what_it_cannot_do_and_who_can(request_, clash):
    with pytest.raises(Refused) as refusal:
        resolve(request_, "sdpa_flash")
    assert refusal.match(f"^backend=sdpa_flash cannot .*{clash}.*; .*reference.* can$")
    assert "\n" not in str(refusal.value)
    way_out = str(refusal.value).split("; ")[-1]
    assert "sdpa_flash" not in way_out
    for name in way_out.removesuffix(" can").split(", "):
        assert resolve(request_, name).name == name


@pytest.mark.parametrize(
    "request_",
    [
        CPU,
        changed(CPU, masks=frozenset({"padding"})),
        changed(CPU, masks=frozenset({"mask"}), bias=True),
        changed(CPU, dtype=torch.float64, width=6),
        changed(CPU, bias=True, bias_grad=False, masks=frozenset({"mask"})),
        AMPERE,
        changed(AMPERE, dtype=torch.float16, width=256),
        changed(AMPERE, dropout=True),
        changed(AMPERE, compute=(9, 0)),
        changed(AMPERE, compute=(12, 0)),
    ],
    ids=str,
)
def test_flash_takes_what_its_kernel_takes(request_):
    assert resolve(request_, "sdpa_flash").name == "sdpa_flash"


def test_a_refusal_lists_every_clash_at_once():
    request = changed(AMPERE, dtype=torch.float32, masks=frozenset({"mask"}), width=300)
    with pytest.raises(Refused) as refusal:
        resolve(request, "sdpa_flash")
    for clash in ("float32", "an attention mask", "head width 300"):
        assert clash in str(refusal.value)


def test_resolving_reads_neither_tensors_nor_the_machine(monkeypatch):
    # CUDA requests are decided on a machine that has none, and the same one always the same way.
    monkeypatch.setattr(torch.cuda, "get_device_capability", None)
    request = changed(AMPERE, compute=(9, 0))
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


@pytest.mark.parametrize("name", ["", "..mask", "reference.py", "__init__"])
def test_nothing_but_a_file_of_the_folder_is_a_backend(name):
    with pytest.raises(ValueError, match="does not exist"):
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
    everything = changed(
        CPU, masks=frozenset({"mask"}), bias=True, bias_grad=True, dropout=True, width=4096
    )
    assert Capability().missing(everything) == []
    assert Capability(backward=False).missing(CPU) == ["compute gradients"]
    assert Capability(backward=False).missing(changed(CPU, backward=False)) == []


@pytest.mark.parametrize(
    "width, rules",
    [
        (16, None),
        (64, None),
        (8, "at least 16"),
        (72, "at most 64"),
        (20, "a multiple of 8"),
        (66, "at most 64, a multiple of 8"),
    ],
)
def test_a_head_width_is_refused_with_the_rules_it_breaks(width, rules):
    capability = Capability(min_width=16, max_width=64, multiple_of={torch.float32: 8})
    wanted = [] if rules is None else [f"take head width {width} ({rules})"]
    assert capability.missing(changed(CPU, width=width)) == wanted


def test_the_multiple_of_a_head_width_may_differ_by_dtype():
    capability = Capability(multiple_of={torch.float32: 4, torch.float16: 8})
    assert capability.missing(changed(CPU, width=12)) == []
    assert capability.missing(changed(CPU, width=12, dtype=torch.float16)) != []
    assert capability.missing(changed(CPU, width=3, dtype=torch.float64)) == []
