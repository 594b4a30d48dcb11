"""The commands as a person calls them, and one small run that many tests look at."""

import contextlib
import functools
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from vitrail import cli
from vitrail.training.classifier import Classifier

from .calls import ROOT, SMALL, Answer, launch

COMMANDS = {"train": cli.train, "eval": cli.evaluate, "bench": cli.bench}


@contextlib.contextmanager
def own_logging() -> Iterator[None]:
    """Hydra configures the root logger for every command; put it back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        for handler in root.handlers:
            if handler not in handlers:
                handler.close()
        root.handlers[:], root.level = handlers, level


@pytest.fixture
def command(tmp_path, monkeypatch, capfd) -> Callable[..., Answer]:
    """command("eval", "split=val", …, place=folder): a command called in this process."""

    def call(name: str, *overrides: str, place: Path = tmp_path) -> Answer:
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", [str(ROOT / f"{name}.py"), *overrides])
        capfd.readouterr()
        code = 0
        with own_logging():
            try:
                COMMANDS[name]()
            except SystemExit as end:
                code = end.code
        out, err = capfd.readouterr()
        return Answer(code, out, err, place)

    return call


@pytest.fixture
def train(command) -> Callable[..., Answer]:
    """train("seed=1", …): a small model, one epoch of digits, no W&B unless asked."""

    def call(*overrides: str, place: Path | None = None) -> Answer:
        logger = () if any(word.startswith("logger=") for word in overrides) else ("logger=none",)
        where = {} if place is None else {"place": place}
        return command("train", *SMALL, "trainer.max_epochs=1", *logger, *overrides, **where)

    return call


@pytest.fixture
def resume(command) -> Callable[..., Answer]:
    """resume(checkpoint, "trainer.max_epochs=2", …): go on, as the checkpoint has it."""
    return lambda path, *overrides: command("train", f"ckpt_path={path}", *overrides)


@pytest.fixture
def stopped() -> Callable[..., AbstractContextManager]:
    """A context in which the process gets signals when it calls a hook for the n-th time."""

    @contextlib.contextmanager
    def at(hook: str, call: int, *numbers: signal.Signals) -> Iterator[None]:
        original = getattr(Classifier, hook)
        calls = iter(range(1, 1_000_000))

        @functools.wraps(original)
        def signalled(self, *arguments):
            if next(calls) == call:
                for number in numbers:
                    signal.raise_signal(number)
            return original(self, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Classifier, hook, signalled)
            yield

    return at


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Answer:
    """Two epochs of digits with everything that is on by default, in a process of its own."""
    folder = tmp_path_factory.mktemp("elsewhere") / "a run"
    return launch(
        ROOT / "train.py",
        *SMALL,
        "trainer.max_epochs=2",
        f'hydra.run.dir="{folder}"',
        place=tmp_path_factory.mktemp("home"),
    )
