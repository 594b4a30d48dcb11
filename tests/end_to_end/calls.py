"""How a command is called in a process of its own, and how its answer is read."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
SMALL = ("model.dim=16", "model.depth=1", "model.heads=2", "trainer=cpu", "backend=eager")
SIGNED = re.compile(
    r"^(?P<split>\w+) accuracy (?P<acc>[\d.]+).*, loss (?P<loss>[\d.]+), (?P<count>[\d,]+) images$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code, what it printed, and the folder it was started in."""

    code: int
    out: str
    err: str
    place: Path

    def line(self, start: str) -> str:
        """The rest of the one printed line that starts so."""
        [rest] = re.findall(rf"^{re.escape(start)} *(.+)$", self.out, re.MULTILINE)
        return rest

    @property
    def folder(self) -> Path:
        """The run's folder, as the summary names it."""
        return self.place / self.line("run folder")

    @property
    def best(self) -> Path:
        return self.folder / "checkpoints/best.ckpt"

    @property
    def last(self) -> Path:
        return self.folder / "checkpoints/last.ckpt"

    @property
    def report(self) -> str:
        """The line with accuracy, loss and number of images."""
        return SIGNED.search(self.out)[0]

    @property
    def numbers(self) -> tuple[float, float, int]:
        """Accuracy, loss and number of images."""
        found = SIGNED.search(self.out)
        return float(found["acc"]), float(found["loss"]), int(found["count"].replace(",", ""))

    @property
    def split(self) -> str:
        return SIGNED.search(self.out)["split"]

    @property
    def receipt(self) -> dict[str, Any]:
        return json.loads((self.folder / "receipt.json").read_text())

    @property
    def count(self) -> int:
        return self.numbers[2]

    def rows(self, column: str) -> list[dict[str, str]]:
        """The rows of metrics.csv that have this column, without empty cells and speeds."""
        table = csv.DictReader((self.folder / "metrics.csv").read_text().splitlines())
        rows = [{key: value for key, value in row.items() if value} for row in table]
        for row in rows:
            for measured in ("train/images_per_second", "train/seconds", "train/peak_mib"):
                row.pop(measured, None)
        return [row for row in rows if column in row]


def read(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def environment(home: Path, **more: str) -> dict[str, str]:
    """For a process of its own: an empty home, one thread, nothing of this process's W&B."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", **more}


def launch(*words: str | Path, place: Path, **variables: str) -> Answer:
    """Run python in a process of its own, started in `place`, which is its home too."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env=environment(place, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )
    return Answer(done.returncode, done.stdout, done.stderr, place)
