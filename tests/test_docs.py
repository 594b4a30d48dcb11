"""What the pages in docs/ say of the code is what the code says of itself."""

import re
from pathlib import Path

import pytest
import torch

from vitrail.attention import backends
from vitrail.attention.backends import EVERYWHERE, FLOATS, Capability

DOCS = Path(__file__).parents[1] / "docs"
SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}


def row(name: str, device: str, can: Capability) -> str:
    """A backend's line in the table of docs/attention.md."""
    where = "anything" if device == EVERYWHERE else device
    if can.compute is not None:
        where += " sm{}{}+".format(*can.compute)
    dtypes = "all" if can.dtypes == FLOATS else " ".join(SHORT[d] for d in SHORT if d in can.dtypes)
    masks = "all" if can.masks == set(backends.MASKS) else ", ".join(sorted(can.masks)) or "none"
    bias = "no" if not can.bias else "learned" if can.bias_grad else "fixed"
    steps = ", ".join(
        f"{rule} {'/'.join(SHORT[d] for d in SHORT if can.multiple_of.get(d) == step)}"
        for rule, step in (
            (f"multiple of {step}", step) for step in sorted(set(can.multiple_of.values()))
        )
    )
    ends = [f"≥ {can.min_width}"] * (can.min_width > 1) + [f"≤ {can.max_width}"] * bool(
        can.max_width
    )
    width = ", ".join([*ends, *([steps] if steps else [])]) or "any"
    answers = ("yes" if can.dropout else "no", "yes" if can.backward else "no")
    return " | ".join([f"| `{name}`", where, dtypes, width, masks, bias, *answers]) + " |"


ROWS = [
    row(name, device, can)
    for name in backends.names()
    for device, can in backends.load(name).capabilities.items()
]


@pytest.mark.parametrize("line", ROWS)
def test_the_table_of_backends_says_what_each_declares(line):
    assert line in (DOCS / "attention.md").read_text().splitlines()


def test_the_table_has_no_backend_that_is_not_there():
    page = (DOCS / "attention.md").read_text()
    table = page[page.index("| backend | runs on |") :].partition("\n\n")[0].splitlines()[2:]
    assert table == ROWS


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_shows_only_pictures_that_are_there(page):
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
        assert (DOCS / picture).is_file(), picture
