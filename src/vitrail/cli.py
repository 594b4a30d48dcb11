"""The commands: Hydra composes the config, the checks run, then `run` or `bench` does the work.

Bad input ends with one line on stderr and exit code 1; HYDRA_FULL_ERROR=1 shows the traceback.
torch is imported by the work itself, so that `--help` and most refusals come at once.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, read_write

from vitrail.configuration import check_additions, check_config
from vitrail.messages import exit_code, explain
from vitrail.run.allocator import keep_freed_memory
from vitrail.run.folder import register, removed_if_unused

FULL_ERROR = "HYDRA_FULL_ERROR"
Task = Callable[[DictConfig, Path], None]


def train() -> None:
    """Train a model, or go on with a run: `ckpt_path=runs/…/checkpoints/last.ckpt`."""

    def task(config: DictConfig, folder: Path) -> None:
        from vitrail.run.train import train

        call = HydraConfig.get()
        choices = OmegaConf.to_container(call.runtime.choices)
        train(config, folder, overrides=_typed(call.overrides.task), choices=choices)

    launch(task, "train")


def evaluate() -> None:
    """Evaluate a checkpoint, which is all that it needs: `ckpt_path=…`."""

    def task(config: DictConfig, folder: Path) -> None:
        from vitrail.run.evaluate import evaluate

        evaluate(config, folder)

    launch(task, "eval")


def bench() -> None:
    """Measure accuracy, speed and memory of backends, or show what was measured before."""

    def task(config: DictConfig, folder: Path) -> None:
        from vitrail import bench

        bench.run(config, folder, overrides=_typed(HydraConfig.get().overrides.task))

    sys.argv[1:] = map(_as_list, sys.argv[1:])
    launch(task, "bench")


def launch(task: Task, config_name: str, config_dir: Path | None = None) -> None:
    """Call `task(config, run folder)` as this process's arguments say: once, or with `-m` per job.

    Ends the process with 1 after bad input, in a sweep when the other jobs are done, with 130
    after Ctrl-C and with 143 after SIGTERM. A bug leaves as the error that it is.
    """
    config_dir = config_dir or configs()
    groups = offered(config_dir / f"{config_name}.yaml")
    traced = os.environ.get(FULL_ERROR) == "1"
    register()
    keep_freed_memory()

    def job(config: DictConfig) -> None:
        call = HydraConfig.get()
        folder = Path(call.runtime.output_dir)
        if call.mode == RunMode.MULTIRUN:
            name = f"job {call.job.num} ({' '.join(_typed(call.overrides.task))})"
            errors, around = SweepJob(groups, traced, name), _as_single_run(call)
        else:
            errors, around = OneLine(groups, traced), removed_if_unused(folder, call.output_subdir)
        with env_override({FULL_ERROR: str(int(traced))}), errors, around:
            if added := _added(call, groups):
                check_additions(config, _without(added, call))
            check_config(config)
            task(config, folder)

    job.__module__ = config_name  # what Hydra names the job and its log file after
    main = hydra.main(version_base="1.3", config_path=str(config_dir), config_name=config_name)
    try:
        # With the variable set, Hydra raises what it would otherwise print at length.
        with env_override({FULL_ERROR: "1"}), OneLine(groups, traced):
            main(job)()
    except JobFailed:
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as stop:
        sys.exit(exit_code(stop))


def configs() -> Path:
    """The folder of configs: packaged with an installed vitrail, else the checkout's own."""
    packaged = Path(__file__).parent / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "configs"


def offered(command: Path) -> list[str]:
    """The config groups in a command's list of defaults, whether or not one has a choice yet."""
    groups = []
    for default in OmegaConf.load(command).defaults:
        if isinstance(default, DictConfig):
            groups += [group for group in default if " " not in group]  # no `override hydra/…`
        elif default != "_self_":
            groups += offered(command.with_name(f"{default}.yaml"))
    return groups


@dataclass(frozen=True)
class OneLine(AbstractContextManager):
    """Turns an error that a person can mend into one line on stderr and exit code 1."""

    groups: list[str]
    traced: bool  # show the traceback of every error

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if line := self.line(error):
            print(f"error: {line}", file=sys.stderr)
            sys.exit(1)

    def line(self, error: BaseException | None) -> str | None:
        """What `explain` says, unless there is no error or its traceback is wanted."""
        return None if error is None or self.traced else explain(error, self.groups)


@dataclass(frozen=True)
class SweepJob(OneLine):
    """Reports any error of one job at once and turns it into JobFailed: a sweep must go on."""

    name: str

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        line = self.line(error)
        if line is None:
            traceback.print_exception(error)
        print(f"error: {self.name}: {line or 'failed'}", file=sys.stderr)
        raise JobFailed(self.name) from error


class JobFailed(Exception):
    """A job of a sweep failed and has said why; Hydra goes on with the others."""


def _as_list(word: str) -> str:
    """`compare=A,B` as the list that is meant, where Hydra would see a sweep; odd paths quoted."""
    key, _, value = word.partition("=")
    if key not in ("compare", "runs") or "," not in value or value[0] in "['\"":
        return word
    plain = re.compile(r"[\w/.+*?~-]+", re.ASCII)
    paths = [path if plain.fullmatch(path) else f'"{path}"' for path in value.split(",")]
    return f"{key}=[{','.join(paths)}]"


def _typed(overrides: ListConfig) -> list[str]:
    """Overrides as they were typed: read one by one, `${…}` in them would be resolved."""
    return OmegaConf.to_container(overrides, resolve=False)


def _added(call: HydraConf, groups: list[str]) -> list[str]:
    """The overrides that add a key with `+`, rather than a choice of one of the command's groups.

    Hydra takes any folder of configs for a group; one that this command does not read is a key that
    nobody reads.
    """
    plus = [override for override in _typed(call.overrides.task) if override.startswith("+")]
    return [key for key in plus if re.split("[@=]", key.strip("+"))[0] not in groups]


def _without(added: list[str], call: HydraConf) -> DictConfig:
    """This command's config, less what it adds to the YAML."""
    kept = [override for override in _typed(call.overrides.task) if override not in added]
    return hydra.compose(call.job.config_name, [*_typed(call.overrides.hydra), *kept])


@contextmanager
def _as_single_run(call: HydraConf) -> Iterator[None]:
    """Let one job of a sweep find and leave this process as it would be for the job alone.

    Lightning starts the same command line again for every further device: here that must not be
    the whole sweep. It leaves its process group and the variables that name its place in it.
    """
    command, environment = sys.argv, dict(os.environ)
    hydras = [own for own in _typed(call.overrides.hydra) if not own.startswith("hydra.mode=")]
    sys.argv = [command[0], *hydras, *_typed(call.overrides.task)]
    with read_write(call):
        call.run.dir = call.runtime.output_dir
    try:
        yield
    finally:
        sys.argv = command
        os.environ.clear()
        os.environ.update(environment)
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
