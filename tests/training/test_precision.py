from typing import get_args

import pytest
import torch
from lightning_fabric.plugins.precision import precision as lightning

from vitrail.training.precision import (
    ALIASES,
    DTYPES,
    Arithmetic,
    Hardware,
    attention_dtype,
    choose,
)

CUDA = Hardware("cuda", "NVIDIA H200", "tensor cores")
OLD_CUDA = Hardware("cuda", "Tesla T4", None)
CPU = Hardware("cpu", "this x86_64 CPU", "amx_bf16")
OLD_CPU = Hardware("cpu", "this x86_64 CPU", None)
MPS = Hardware("mps", "this mps device", None)


@pytest.mark.parametrize(
    "asked, hardware, name, reason",
    [
        ("auto", CUDA, "bf16-mixed", "NVIDIA H200 computes bf16 natively (tensor cores)"),
        ("auto", OLD_CUDA, "32-true", "Tesla T4 is not known to compute bf16 natively"),
        ("auto", CPU, "bf16-mixed", "this x86_64 CPU computes bf16 natively (amx_bf16)"),
        ("auto", OLD_CPU, "32-true", "this x86_64 CPU is not known to compute bf16 natively"),
        ("auto", MPS, "32-true", "this mps device is not known to compute bf16 natively"),
        ("bf16", OLD_CPU, "bf16-mixed", "asked for; this x86_64 CPU emulates bf16 in software"),
    ],
)
def test_auto_is_bf16_where_the_hardware_computes_it_and_says_why(asked, hardware, name, reason):
    assert choose(asked, hardware) == (name, reason)


def test_every_name_of_lightnings_is_known_and_no_other():
    assert set(DTYPES) == set(get_args(lightning._PRECISION_INPUT_STR))
    assert ALIASES == lightning._PRECISION_INPUT_STR_ALIAS_CONVERSION


@pytest.mark.parametrize(
    "asked, name",
    [(name, name) for name in DTYPES if not name.startswith("transformer")]
    + [*ALIASES.items(), (16, "16-mixed"), (32, "32-true")],
)
def test_a_name_that_was_asked_for_is_kept_and_short_forms_are_lightnings(asked, name):
    assert choose(asked, CUDA) == (name, "asked for")


@pytest.mark.parametrize(
    "precision, hardware, message",
    [
        ("16-mixed", CPU, "precision=16-mixed computes in fp16, .* use bf16-mixed"),
        (16, OLD_CPU, "precision=16 computes in fp16, .* use 32-true"),
        ("16-true", CPU, "precision=16-true computes in fp16"),
        ("64-true", MPS, "which Apple's GPUs lack; use 32-true"),
        ("transformer-engine", CPU, "NVIDIA GPUs alone"),
        ("bf16-mixd", CUDA, "precision must be bf16-mixed.*, got bf16-mixd"),
        ("fp8", CUDA, "precision must be auto or 32-true or .*, got fp8"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_with_the_way_out(precision, hardware, message):
    with pytest.raises(ValueError, match=message) as refusal:
        choose(precision, hardware)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "capabilities, native",
    [
        ({"amx_bf16": True, "avx512_bf16": True}, "amx_bf16 and avx512_bf16"),
        ({"amx_bf16": False, "avx512_f": True}, None),
        ({"neon": True, "bf16": True}, "bf16"),
    ],
)
def test_a_cpu_is_described_by_its_instructions(capabilities, native, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert Hardware.of(torch.device("cpu")).bf16 == native


@pytest.mark.parametrize("native", [True, False])
def test_emulated_bf16_of_a_gpu_does_not_count(native, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or native
    )
    assert Hardware.of(torch.device("cuda")).bf16 == ("tensor cores" if native else None)


@pytest.mark.parametrize("name", [name for name in DTYPES if not name.startswith("transformer")])
def test_names_mean_in_a_bare_loop_what_lightning_makes_of_them(name):
    arithmetic, layer = Arithmetic.of(name), torch.nn.Linear(2, 2)
    with arithmetic.casting("cpu"):
        computed = layer.to(arithmetic.dtype)(torch.ones(1, 2, dtype=arithmetic.dtype)).dtype
    assert computed == attention_dtype(name)
    assert arithmetic.scaled == (name == "16-mixed")


def test_a_bare_loop_has_no_layers_of_transformer_engine():
    assert attention_dtype("transformer-engine-float16") == torch.float16
    with pytest.raises(ValueError, match="use bf16-mixed or 32-true"):
        Arithmetic.of("transformer-engine")
