"""The README shows the house as it stands."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
PACKAGE = ROOT / "src" / "vitrail"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tree_has_a_line_for_each_file_that_says_what_the_file_says(path):
    subject = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0].rstrip(".")
    name = f"{path.parent.name}/" if path.name == "__init__.py" else path.name
    lines = [line.split(maxsplit=1) for line in README]
    assert [name, subject] in lines


def test_every_name_in_the_tree_is_a_file_or_a_folder():
    start = README.index("src/vitrail/") + 1
    names = [line.split()[0] for line in README[start : README.index("```", start)]]
    there = {path.name for path in FILES} | {f"{path.parent.name}/" for path in FILES}
    assert not [name for name in names if name not in there]
