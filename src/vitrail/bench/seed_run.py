"""One training run of a comparison: begun, gone on with or left alone, by what its folder holds."""

import csv
import shutil
from pathlib import Path
from statistics import median

from omegaconf import DictConfig, OmegaConf

from vitrail.bench.wall_clock import Moment, moments
from vitrail.run.train import train
from vitrail.startup import CHECKPOINTS
from vitrail.tracking.atomic import write_json

FINISHED = "finished.json"  # written last, so that a folder without it is gone on with
CLOCK = {"clock": {"_target_": "vitrail.bench.wall_clock.WallClock"}}
OF_BENCH = ("bench", "into", "compare", "runs")


class SeedRun:
    """The run of a config with one backend and one seed, in a folder of its own."""

    def __init__(self, config: DictConfig, folder: Path, *, backend: str, seed: int):
        self.folder = folder
        self.config = config.copy()
        OmegaConf.set_struct(self.config, False)
        for key in OF_BENCH:
            self.config.pop(key, None)
        # What else follows from them in the YAML, named: a config that was read again is resolved.
        for key, value in {
            "backend": backend,
            "model.backend": backend,
            "seed": seed,
            "data.seed": seed,
            "gate": True,
            "logger": CLOCK,
        }.items():
            if OmegaConf.select(self.config, key) is not None:
                OmegaConf.update(self.config, key, value, merge=False)

    @property
    def last(self) -> Path:
        return self.folder / CHECKPOINTS / "last.ckpt"

    @property
    def best(self) -> Path:
        """The checkpoint to evaluate, of a finished run."""
        best = self.folder / CHECKPOINTS / "best.ckpt"
        return best if best.is_file() else self.last

    def finish(self) -> None:
        """Train to the end, from last.ckpt where there is one; nothing where that has been done.

        Raises Refused or FailedGate for a backend that may not train.
        """
        if (self.folder / FINISHED).is_file():
            return
        config = self.config.copy()
        if self.last.is_file():
            config.ckpt_path = str(self.last)
        elif self.folder.exists():
            shutil.rmtree(self.folder)  # of a run that came to no checkpoint
        train(config, self.folder, overrides=[], choices={})
        write_json(self.folder / FINISHED, {"best": str(self.best.relative_to(self.folder))})

    def moments(self) -> list[Moment]:
        """When epochs and validations ended."""
        return moments(self.folder)

    def images_per_second(self) -> float | None:
        """The median of what training logged, None where it was too short for that."""
        with (self.folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
            cells = [row.get("train/images_per_second") for row in csv.DictReader(file)]
        return median(map(float, found)) if (found := [cell for cell in cells if cell]) else None
