"""Every command that README and the pages in docs/ show is taken, and every picture is there."""

import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from vitrail.configuration import check_config
from vitrail.run.plan import Plan
from vitrail.startup import configs, register

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FROM_A_RUN = ("ckpt_path=", "into=", "compare=")  # its folder is nowhere here


def commands() -> Iterator[tuple[str, ...]]:
    """The words of each, from `train.py` on: those in blocks, and those between backticks."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^(?:\$ |time |\w+=\w+ )*python (.+)$", text, re.MULTILINE):
            yield tuple(shlex.split(line, comments=True))
        for line in re.findall(r"`python ([^`…]+)`", text):
            yield tuple(shlex.split(line))


SHOWN = sorted({words for words in commands() if words[0] in ("train.py", "eval.py", "bench.py")})


def test_there_are_commands_of_each_program():
    assert {words[0] for words in SHOWN} == {"train.py", "eval.py", "bench.py"}


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_a_command_that_is_shown_is_taken(words):
    program, *overrides = (word for word in words if word != "-m")
    register()
    for job in jobs(overrides):
        with initialize_config_dir(str(configs()), version_base="1.3"):
            config = compose(program.removesuffix(".py"), job)
        check_config(config)
        if not any(word.startswith(FROM_A_RUN) for word in overrides):
            Plan.asking(config, training=True)


def jobs(overrides: list[str]) -> Iterator[list[str]]:
    """What a sweep makes of `key=a,b`, each combination."""
    choices = []
    for word in overrides:
        if word.startswith("compare="):  # several folders are no sweep
            word = "{}=[{}]".format(*word.split("=", 1))
        [override] = OverridesParser.create().parse_overrides([word])
        values = override.sweep_string_iterator() if override.is_sweep_override() else ()
        choices.append([f"{override.key_or_group}={value}" for value in values] or [word])
    for combination in product(*choices):
        yield list(combination)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_only_pictures_that_are_there(page):
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
        assert (page.parent / picture).is_file(), picture
