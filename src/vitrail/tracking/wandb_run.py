"""The Weights & Biases run of a training run: offline in its folder unless told otherwise.

wandb is imported only where a run is opened.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import env_override
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_warn

from vitrail.errors import UserError
from vitrail.tracking.loggers import RunLogger

MODES = ("offline", "online", "disabled")
ALIASES = {"dryrun": "offline", "run": "online"}  # what WANDB_MODE may also say
STEP = "trainer/global_step"


@dataclass(frozen=True, kw_only=True)
class WandbRun:
    """How a run appears in W&B.

    mode: `offline` records in the run's folder, `online` uploads as well, `disabled` does nothing
    and does not import wandb. The environment variable WANDB_MODE wins, for a whole machine.
    """

    project: str
    entity: str | None  # user or team that owns the project, None for the account's default
    mode: str
    name: str | None  # None for a random one
    group: str | None  # runs of a group are shown together
    tags: Sequence[str]
    log_model: bool  # upload the checkpoints when training has finished; online only

    def __post_init__(self):
        _check_mode("logger.wandb.mode", self.mode)

    def open(
        self, folder: Path, *, run_id: str | None, resumed_at: int | None
    ) -> "WandbRunLogger | None":
        """The logger of a run in that folder, None when disabled; `run_id` continues that run.

        `resumed_at` is not used: W&B keeps the points that will be logged again, and shows both.
        Raises UserError within seconds where online has no key or no answer; it never asks.
        """
        named = os.environ.get("WANDB_MODE", "")
        mode = ALIASES.get(named, named) or self.mode
        _check_mode("WANDB_MODE", mode)
        if mode == "disabled":
            return None
        import wandb

        if self.log_model and mode == "offline":
            rank_zero_warn(
                "logger.wandb.log_model=true uploads nothing in offline mode; "
                "the checkpoints stay in the run's folder"
            )
        # Hydra reads a name like 7 as a number, and wandb takes words only.
        words = {key: getattr(self, key) for key in ("project", "entity", "name", "group")}
        try:
            # wandb's remarks on an offline run ignore earlier parts of it. Warnings still show.
            wandb.setup(wandb.Settings(mode=mode, show_info=mode == "online"))
            if mode == "online" and not wandb.login(prompt=False, verify=True):
                raise wandb.errors.AuthenticationError("no API key is configured")
            run = wandb.init(
                **{key: str(word) for key, word in words.items() if word is not None},
                tags=[str(tag) for tag in self.tags],
                mode=mode,
                dir=folder,
                id=run_id,
                resume="allow",
                reinit="create_new",  # never another job's run, should one be open in this process
            )
        except wandb.errors.Error as error:
            login = "run `wandb login`, set WANDB_API_KEY, or choose logger.wandb.mode=offline"
            way_out = login if mode == "online" else "choose logger=csv to do without W&B"
            reason = str(error).splitlines()[0]
            raise UserError(f"logger.wandb.mode={mode} failed: {reason}; {way_out}") from error
        # No step is handed to wandb, which refuses those it has seen: a resumed run repeats some.
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP, step_sync=True)
        return WandbRunLogger(
            project=self.project,
            save_dir=folder,
            id=run.id,
            experiment=run,
            log_model=self.log_model and mode == "online",
            add_file_policy="immutable",  # uploaded after training, so it needs no second copy
        )


def _check_mode(key: str, mode: str) -> None:
    if mode not in MODES:
        raise UserError(f"{key}={mode} does not exist; there are {', '.join(MODES)}")


class WandbRunLogger(RunLogger, WandbLogger):
    """Lightning's logger on a run that is already open, with pictures, tables and an end."""

    @property
    def run_id(self) -> str:
        return self.experiment.id

    @property
    def sync_command(self) -> str | None:
        # The folder of the run's parts: a resumed run has several, and W&B joins those of one id.
        folder = Path(self.experiment.sync_dir).parent
        return f"wandb sync {shlex.quote(str(folder))}" if self.experiment.offline else None

    def show_summary(self, values: Mapping[str, float | str]) -> None:
        self.experiment.summary.update(dict(values))

    def show_picture(self, name: str, path: Path) -> None:
        self.log_image(name, [str(path)])

    def show_table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = list(rows[0])
        # Or wandb stages a copy of the table in the home folder, which may be read-only.
        with env_override({"WANDB_DATA_DIR": self.experiment.sync_dir}):
            self.log_table(name, columns=columns, data=[[*row.values()] for row in rows])

    def close(self, exit_code: int) -> None:
        self.experiment.finish(exit_code=exit_code)
