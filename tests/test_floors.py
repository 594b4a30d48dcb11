"""The house has floors: a file imports only from lower ones, and rooms on one floor stay apart."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# From the ground up. A room is a folder or a file; a longer name takes
# its files out of a shorter: attention/ alone has floors inside.
FLOORS = [
    {"vitrail"},
    {"vitrail.errors"},
    {"vitrail.configuration", "vitrail.startup", "vitrail.attention.grid"},
    {"vitrail.attention.mask"},
    {"vitrail.attention.backends", "vitrail.attention.patterns", "vitrail.attention.positions"},
    {"vitrail.attention"},
    {"vitrail.attention.selection"},
    {"vitrail.attention.maps"},
    {"vitrail.model"},
    {"vitrail.training", "vitrail.data", "vitrail.tracking"},
    {"vitrail.run"},
    {"vitrail.bench"},
    {"vitrail.cli"},
]
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
FRAMEWORKS = {"hydra", "lightning", "omegaconf", "pytorch_lightning", "wandb"}

FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def room_of(module: str) -> str:
    """The longest name of a room that the module lies in."""
    parents = [module.rsplit(".", n)[0] for n in range(module.count(".") + 1)]
    return next((parent for parent in parents if parent in HEIGHT and parent != "vitrail"), module)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name of the module"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in MODULES else node.module


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_has_a_floor_and_imports_only_from_lower_ones(path):
    room = room_of(module_of(path))
    assert room in HEIGHT, f"{room} has no floor; give it one in FLOORS"
    for line, name in imports(path):
        if name.split(".")[0] == "vitrail" and (other := room_of(name)) != room:
            assert HEIGHT[other] < HEIGHT[room], (
                f"{path}:{line} imports {name} from above or beside"
            )


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if module_of(path).startswith(("vitrail.attention", "vitrail.model"))],
    ids=named,
)
def test_attention_and_model_know_no_framework_above_torch(path):
    for line, name in imports(path):
        assert name.split(".")[0] not in FRAMEWORKS, f"{path}:{line} imports {name}"
