"""The TensorBoard files of a run, in its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image
from pytorch_lightning.loggers import TensorBoardLogger

from vitrail.errors import UserError
from vitrail.tracking.loggers import RunLogger


@dataclass(frozen=True)
class TensorBoardRun:
    """Curves, pictures and tables as event files under `tensorboard/` in the run's folder."""

    def open(
        self, folder: Path, *, run_id: str | None, resumed_at: int | None
    ) -> "TensorBoardRunLogger":
        """The logger of a run; a continued run hides its earlier points from `resumed_at` on."""
        if find_spec("tensorboard") is None:
            raise UserError(
                "logger=tensorboard needs the package tensorboard, which is not installed; "
                "pip install tensorboard, or choose logger=csv"
            )
        return TensorBoardRunLogger(
            folder, name="tensorboard", version="", default_hp_metric=False, purge_step=resumed_at
        )


class TensorBoardRunLogger(RunLogger, TensorBoardLogger):
    """Lightning's logger, with pictures as images and tables as Markdown."""

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Show the config as text too: TensorBoard's own table needs a metric to rank by."""
        super().log_hyperparams(params)
        text = yaml.safe_dump(dict(params), sort_keys=False, allow_unicode=True)
        self.experiment.add_text("config", f"```yaml\n{text}```")

    def show_summary(self, values: Mapping[str, float | str]) -> None:
        rows = [{"name": name, "value": value} for name, value in values.items()]
        self.show_table("summary", rows)

    def show_picture(self, name: str, path: Path) -> None:
        with Image.open(path) as image:
            self.experiment.add_image(name, np.asarray(image.convert("RGB")), dataformats="HWC")

    def show_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = [[*rows[0]], ["---"] * len(rows[0]), *(row.values() for row in rows)]
        text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
        self.experiment.add_text(name, text)

    def close(self, exit_code: int) -> None:
        # The Trainer closes it after every fit and test; what was shown since is in memory only.
        self.experiment.close()
