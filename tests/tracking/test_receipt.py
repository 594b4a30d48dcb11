"""receipt.json says of each layer what was asked, what ran and why."""

import json
from dataclasses import replace

import torch

from vitrail.attention import Grid, backends
from vitrail.attention.backends import Request
from vitrail.attention.patterns import GridPattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.selection.gate import GateResult
from vitrail.attention.selection.layers import LayerPlan
from vitrail.tracking.environment import describe
from vitrail.tracking.kernel_watch import SeenKernels
from vitrail.tracking.receipt import Receipt, earlier_parts

ASKED = Request("cpu", torch.bfloat16, batch=8, heads=3, queries=65, keys=65, width=64)
PATTERN = GridPattern(Full(), Grid(8, 8, 1))


def receipt(**layers) -> Receipt:
    return Receipt(precision="bf16-mixed", compiled=False, layers=layers)


NAMED = LayerPlan((ASKED,), "sdpa", backends.load("sdpa"), "named")
CHOSEN = LayerPlan(
    (
        replace(ASKED, dtype=torch.float32, compute=(9, 0)),
        replace(ASKED, queries=1, masks=frozenset({"pattern", "padding"}), pattern=PATTERN),
    ),
    requested="auto",
    backend=backends.load("eager"),
    why="7.9 ms, sdpa_flash 53 ms",
    pattern="Window(size=(4, 4), shift=(2, 2))",
    position="Bias",
    scale="learned",
    rejected={"flex": "cannot compute gradients", "flash_attn": "cannot run on cpu"},
    times={"eager": 0.0079, "sdpa_flash": 0.053},
    gate=(GateResult({"out": 0.1}, {"out": 0.004}, {"out": 0.018}, True, 0.03),),
)


def test_it_says_per_layer_what_was_asked_and_what_ran(tmp_path):
    seen = SeenKernels(step=0, forward={"aten::bmm": 24}, backward={"aten::bmm": 48})
    replace(receipt(a=NAMED, b=CHOSEN), kernels=seen).write(tmp_path / "receipt.json")
    written = json.loads((tmp_path / "receipt.json").read_text())
    assert (written["precision"], written["compiled"]) == ("bf16-mixed", False)
    assert written["kernels"] == vars(seen)
    named, chosen = written["layers"]["a"], written["layers"]["b"]
    assert (named["requests"][0]["dtype"], named["gate"]) == ("bfloat16", "off")
    whole, prefix = chosen.pop("requests")
    assert (whole["dtype"], whole["compute"], whole["masks"]) == ("float32", [9, 0], [])
    assert (prefix["queries"], prefix["masks"]) == (1, ["padding", "pattern"])
    assert prefix["pattern"] == str(PATTERN)
    assert chosen == {
        "requested": "auto",
        "chosen": "eager",
        "pattern": "Window(size=(4, 4), shift=(2, 2))",
        "position": "Bias",
        "scale": "learned",
        "variant": None,
        "why": "7.9 ms, sdpa_flash 53 ms",
        "rejected": {"flex": "cannot compute gradients", "flash_attn": "cannot run on cpu"},
        "times_ms": {"eager": 7.9, "sdpa_flash": 53.0},
        "gate": [{"errors": {"out": 0.004}, "allowed": {"out": 0.018}, "seconds": 0.03}],
    }


def test_what_computed_earlier_parts_of_a_run_is_kept(tmp_path):
    path = tmp_path / "receipt.json"
    assert earlier_parts(path) == []
    for step in (0, 20, 40):
        replace(receipt(a=NAMED), from_step=step, earlier=earlier_parts(path)).write(path)
    written = json.loads(path.read_text())
    assert [part["from_step"] for part in (*written["earlier"], written)] == [0, 20, 40]
    assert not any("earlier" in part for part in written["earlier"])
    path.write_text("{")
    assert earlier_parts(path) == []


def test_as_a_table_it_has_one_row_a_layer_of_plain_values():
    rows = receipt(a=NAMED, b=CHOSEN).rows()
    assert [row["layer"] for row in rows] == ["a", "b"]
    assert rows[0].keys() == rows[1].keys()
    assert rows[1]["rejected"] == "flex: cannot compute gradients; flash_attn: cannot run on cpu"
    assert rows[1]["times_ms"] == "eager: 7.9; sdpa_flash: 53.0"
    assert rows[1]["gate"] == "out: 4.0e-03 of 1.8e-02"
    assert rows[0]["gate"] == "off"
    assert rows[1]["compute"] == "[9, 0]"
    assert rows[0]["dtype"] == "bfloat16"


def test_the_environment_names_what_decides_speed_and_results():
    environment = describe()
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["cpu"]["threads"] == torch.get_num_threads()
    assert environment["cpu"]["name"]
    assert (environment["gpu"] is None) == (not torch.cuda.is_available())
    assert json.loads(json.dumps(environment)) == environment
