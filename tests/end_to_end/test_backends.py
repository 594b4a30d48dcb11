"""Which backend computes a run: proved before it, seen in it, and remembered after it."""

import re

import pytest

from vitrail.attention import backends

from .calls import Answer, read

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def layer(answer: Answer) -> dict:
    [only] = answer.receipt["layers"].values()
    return only


def test_a_receipt_tells_what_was_asked_proved_and_seen(train):
    run = train("backend=sdpa_flash", "precision=32-true")
    only, kernels = layer(run), run.receipt["kernels"]
    assert (only["requested"], only["chosen"], only["why"]) == ("sdpa_flash", "sdpa_flash", "named")
    assert only["requests"][0]["dtype"] == "float32"
    assert (only["requests"][0]["queries"], only["requests"][0]["masks"]) == (16, [])
    parts = (only["pattern"], only["position"], only["scale"])
    assert parts == ("Full()", "LayerPosition", "0.353553")
    [verdict] = only["gate"]
    assert set(verdict["errors"]) == {"out", "dq", "dk", "dv"}
    assert all(0 < error <= verdict["allowed"][name] for name, error in verdict["errors"].items())
    assert kernels["forward"][FLASH] == kernels["backward"][f"{FLASH}_backward"] == 1


def test_the_gate_can_be_left_out_and_the_receipt_and_the_screen_say_so(train):
    answer = train("gate=off")
    assert answer.line("gate") == "off (gate=false)"
    assert layer(answer)["gate"] == "off"


def test_a_backend_that_fails_the_gate_stops_the_run_before_data_is_read(train, monkeypatch):
    eager = type(backends.load("eager"))
    honest = eager.__call__
    monkeypatch.setattr(eager, "__call__", lambda *a, **given: 1.1 * honest(*a, **given))
    answer = train("data=image_folder", "data.root=nowhere")
    assert answer.code == 1
    assert re.search(r"error: backend=eager fails the gate: (out|d[qkv]) is", answer.err)
    assert answer.err.count("\n") == 1


def test_auto_says_its_times_keeps_its_choice_and_can_be_overruled(train, resume, command):
    first = train("backend=auto")
    chosen = layer(first)
    assert chosen["requested"] == "auto"
    assert {"eager", "reference", "sdpa_flash", "sdpa_math"} <= set(chosen["times_ms"])
    assert chosen["rejected"]["sdpa"].startswith("by name only")
    assert f"{chosen['chosen']} in 1 layer (auto: " in first.line("attention")
    saved = read(first.best)["hyper_parameters"]["backends"]
    assert set(saved.values()) == {chosen["chosen"]}

    kept = f"{chosen['chosen']} in 1 layer (auto: chosen in training)"
    assert command("eval", f"ckpt_path={first.best}").line("attention") == kept
    other = command("eval", f"ckpt_path={first.best}", "backend=sdpa_math")
    assert other.line("attention") == "sdpa_math in 1 layer"
    again = resume(first.last, "trainer.max_epochs=2")
    assert again.line("attention") == kept
    assert layer(again)["why"] == "chosen in training"
    assert again.receipt["from_step"] == 20
    [before] = again.receipt["earlier"]
    assert before["layers"]["blocks.0.attn"] == chosen, "what the first part measured is kept"
    assert before["kernels"]["forward"]


@pytest.mark.parametrize(
    "precision, checkpointing", [("bf16-mixed", False), ("32-true", True), ("bf16-mixed", True)]
)
def test_the_promise_holds_in_bf16_and_with_activations_computed_again(
    train, precision, checkpointing
):
    again = f"model.grad_checkpointing={str(checkpointing).lower()}"
    answer = train("backend=sdpa_flash", f"precision={precision}", again)
    assert answer.code == 0
    assert answer.receipt["kernels"]["backward"].get(FLASH, 0) == int(checkpointing)


def test_asking_for_the_backends_prints_a_row_for_each_and_leaves_nothing(train, tmp_path):
    answer = train("backend=?", "model.attention_dropout=0.1")
    assert (answer.code, answer.err) == (0, "")
    rows = [line.split("│")[1:4] for line in answer.out.splitlines() if "│" in line]
    told = {name.strip(): (here.strip(), why.strip()) for name, here, why in rows if name.strip()}
    assert set(told) == {"auto", *backends.names()}
    assert told["eager"][0] == "yes"
    assert told["sdpa_flash"] == ("no", "cannot drop attention weights")
    assert told["sdpa_cudnn"] == ("no", "cannot run on cpu")
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "sdpa_flash"])
def test_the_promise_holds_in_a_compiled_run(train, backend):
    answer = train(f"backend={backend}", "compile=true")
    assert answer.code == 0
    assert (FLASH in answer.receipt["kernels"]["forward"]) == (backend == "sdpa_flash")


@pytest.mark.slow
def test_a_compiled_run_that_breaks_its_promise_is_stopped(train, monkeypatch):
    flash, eager = backends.load("sdpa_flash"), type(backends.load("eager"))
    monkeypatch.setattr(eager, "__call__", lambda self, *a, **given: flash(*a, **given))
    answer = train("backend=eager", "compile=true")
    assert answer.code == 1
    assert f"backend=eager rules out {FLASH}" in answer.err
