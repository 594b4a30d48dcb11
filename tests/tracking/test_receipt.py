import json
from dataclasses import dataclass, replace

import torch

from vitrail.tracking.environment import describe
from vitrail.tracking.kernel_watch import SeenKernels
from vitrail.tracking.receipt import LayerReceipt, Receipt


@dataclass(frozen=True)
class Asked:
    """What a layer might ask for; a receipt knows none of the names."""

    dtype: torch.dtype = torch.bfloat16
    heads: int = 3
    queries: int = 65
    bias: bool = False
    compute: tuple[int, int] | None = None


def receipt(**layers) -> Receipt:
    return Receipt(environment=describe(), precision="bf16-mixed", compiled=False, layers=layers)


NAMED = LayerReceipt(Asked(), requested="sdpa", chosen="sdpa", why="named", rejected={})
CHOSEN = LayerReceipt(
    Asked(dtype=torch.float32, compute=(9, 0)),
    requested="auto",
    chosen="eager",
    why="7.9 ms, sdpa 53 ms",
    rejected={"flex": "cannot compute gradients", "flash_attn": "cannot run on cpu"},
)


def test_it_says_per_layer_what_was_asked_and_what_ran(tmp_path):
    receipt(**{"blocks.0.attn": NAMED, "blocks.1.attn": CHOSEN}).write(tmp_path / "receipt.json")
    written = json.loads((tmp_path / "receipt.json").read_text())
    assert written["precision"] == "bf16-mixed"
    assert written["compiled"] is False
    assert written["kernels"] is None
    assert written["layers"]["blocks.0.attn"]["request"]["dtype"] == "bfloat16"
    assert written["layers"]["blocks.1.attn"] == {
        "request": {
            "dtype": "float32",
            "heads": 3,
            "queries": 65,
            "bias": False,
            "compute": [9, 0],
        },
        "requested": "auto",
        "chosen": "eager",
        "why": "7.9 ms, sdpa 53 ms",
        "rejected": {"flex": "cannot compute gradients", "flash_attn": "cannot run on cpu"},
    }


def test_kernels_are_added_when_they_have_been_seen(tmp_path):
    seen = SeenKernels(step=0, forward={"aten::bmm": 24}, backward={"aten::bmm": 48})
    replace(receipt(a=NAMED), kernels=seen).write(tmp_path / "receipt.json")
    written = json.loads((tmp_path / "receipt.json").read_text())
    assert written["kernels"] == {
        "step": 0,
        "forward": {"aten::bmm": 24},
        "backward": {"aten::bmm": 48},
    }


def test_as_a_table_it_has_one_row_a_layer_of_plain_values():
    rows = receipt(a=NAMED, b=CHOSEN).rows()
    assert [row["layer"] for row in rows] == ["a", "b"]
    assert rows[0].keys() == rows[1].keys()
    assert rows[1]["rejected"] == "flex: cannot compute gradients; flash_attn: cannot run on cpu"
    assert rows[1]["compute"] == "[9, 0]"
    assert rows[0]["dtype"] == "bfloat16"


def test_the_environment_names_what_decides_speed_and_results():
    environment = describe()
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["cpu"]["threads"] == torch.get_num_threads()
    assert environment["cpu"]["name"]
    assert (environment["gpu"] is None) == (not torch.cuda.is_available())
    assert json.loads(json.dumps(environment)) == environment
