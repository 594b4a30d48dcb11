"""The commands: Hydra composes the config, the checks run, then `run` or `bench` does the work.

Bad input ends with one line on stderr and exit code 1; HYDRA_FULL_ERROR=1 shows the traceback.
torch is imported by the work itself, so that `--help` and most refusals come at once.
"""

import os
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import hydra
from hydra import errors as hydra_errors
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from omegaconf import DictConfig, OmegaConf
from omegaconf import errors as omegaconf_errors
from yaml import YAMLError

from vitrail import startup
from vitrail.configuration import check_additions, check_config, keys, no_value, unknown_key
from vitrail.errors import UserError

FULL_ERROR = "HYDRA_FULL_ERROR"
Task = Callable[[DictConfig, Path], object]


def train() -> None:
    """Train a model, or go on with a run: `ckpt_path=runs/…/checkpoints/last.ckpt`."""

    def load() -> Task:
        from vitrail.run.train import train

        call = HydraConfig.get()
        choices = OmegaConf.to_container(call.runtime.choices)
        return partial(train, overrides=startup.typed(call.overrides.task), choices=choices)

    launch(load, "train")


def evaluate() -> None:
    """Evaluate a checkpoint, which is all that it needs: `ckpt_path=…`."""

    def load() -> Task:
        from vitrail.run.evaluate import evaluate

        return evaluate

    launch(load, "eval")


def bench() -> None:
    """Measure accuracy, speed and memory of backends, or show what was measured before."""

    def load() -> Task:
        from vitrail import bench

        return partial(bench.run, overrides=startup.typed(HydraConfig.get().overrides.task))

    sys.argv[1:] = map(startup.as_list, sys.argv[1:])
    launch(load, "bench")


def launch(load: Callable[[], Task], command: str, config_dir: Path | None = None) -> None:
    """Do what this process's arguments say: once, or with `-m` once per job.

    Ends the process with 1 after bad input, in a sweep when the other jobs are done, with 130
    after Ctrl-C and with 143 after SIGTERM. A bug leaves as the error that it is.

    Args:
        load: imports the work, which is then called with the config and the run's folder.
        command: the name of its YAML file in `config_dir`.
        config_dir: where that lies, `configs()` if None.
    """
    config_dir = config_dir or startup.configs()
    groups = startup.groups_of(config_dir / f"{command}.yaml")
    traced = os.environ.get(FULL_ERROR) == "1"
    startup.register()
    startup.keep_freed_memory()

    def job(config: DictConfig) -> None:
        call = HydraConfig.get()
        errors = ErrorLine(groups, traced, startup.job_name(call))
        with env_override({FULL_ERROR: str(int(traced))}), errors, startup.around_job(call):
            if listed := startup.listed(call, groups):
                check_additions(config, listed)
            check_config(config)
            load()(config, Path(call.runtime.output_dir))

    job.__module__ = command  # what Hydra names the job and its log file after
    main = hydra.main(version_base="1.3", config_path=str(config_dir), config_name=command)
    try:
        # With the variable set, Hydra raises what it would otherwise print at length.
        with env_override({FULL_ERROR: "1"}), ErrorLine(groups, traced):
            main(job)()
    except JobFailed:
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as stop:
        sys.exit(exit_code(stop))


@dataclass(frozen=True)
class ErrorLine(AbstractContextManager):
    """Prints bad input as one line on stderr and exits with 1; any other error passes.

    groups: see `explain`. traced: pass every error. job: the name of a sweep's job, each of whose
    errors is reported at once and becomes JobFailed, so that the sweep goes on.
    """

    groups: list[str]
    traced: bool
    job: str | None = None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        line = None if self.traced else explain(error, self.groups)
        if self.job is not None:
            if line is None:
                traceback.print_exception(error)
            print(f"error: {self.job}: {line or 'failed'}", file=sys.stderr)
            raise JobFailed(self.job) from error
        if line is not None:
            print(f"error: {line}", file=sys.stderr)
            sys.exit(1)


class JobFailed(Exception):
    """A job of a sweep failed and has said why; Hydra goes on with the others."""


def explain(error: BaseException, groups: list[str]) -> str | None:
    """The line that says what is wrong with a person's input; None for any other error.

    groups: the config groups that a misspelt key may have meant, besides the config's keys.
    """
    match error:
        case UserError() | YAMLError():
            return _flat(error)
        case OSError(filename=str() as path, strerror=str() as reason):
            return f"{path}: {reason}"
        case hydra_errors.HydraException():
            return _composition(error, groups)
        case (
            omegaconf_errors.MissingMandatoryValue()
            | omegaconf_errors.InterpolationToMissingValueError()
        ):
            return no_value(str(error).splitlines()[0].rpartition(": ")[2])
        case omegaconf_errors.OmegaConfBaseException():
            cause: BaseException | None = error  # our resolver's error, which OmegaConf drops
            while isinstance(cause, omegaconf_errors.OmegaConfBaseException):
                cause = cause.__context__
            if isinstance(cause, UserError):
                return _flat(cause)
            return f"{error.full_key}: {str(error).splitlines()[0]}"
    return _flat(error) if _is_lightnings("MisconfigurationException", error) else None


def exit_code(stop: KeyboardInterrupt | SystemExit) -> str | int | None:
    """What the shell is told: 130 after Ctrl-C, 143 after SIGTERM, else the code that was given."""
    if isinstance(stop, KeyboardInterrupt) or isinstance(stop.__context__, KeyboardInterrupt):
        return 130  # Lightning shuts down after Ctrl-C and then exits with 1
    return 143 if _is_lightnings("SIGTERMException", stop) else stop.code


def _is_lightnings(name: str, error: BaseException) -> bool:
    """Whether it is this exception of Lightning's, where Lightning has been imported at all."""
    lightning = sys.modules.get("pytorch_lightning.utilities.exceptions")
    return lightning is not None and isinstance(error, getattr(lightning, name))


def _composition(error: hydra_errors.HydraException, groups: list[str]) -> str | None:
    """What Hydra could not read or compose; None for an error inside a constructor."""
    match error, error.__cause__:
        case hydra_errors.OverrideParseException(), _:
            key, equals, value = error.override.partition("=")
            if not equals:
                return f"{key} is not an override; write key=value"
            return (
                f"{error.override} cannot be read ({error.message.splitlines()[0]}); quote a value "
                f"with such characters: " + shlex.quote(f'{key}="{value}"')
            )
        case hydra_errors.MissingConfigException(missing_cfg_file=str() as path), _ if (
            error.options
        ):
            group, _, choice = path.rpartition("/")
            near = get_close_matches(choice, error.options)
            guess = f"; did you mean {' or '.join(near)}?" if near else ";"
            options = ", ".join(error.options)
            return f"{group}={choice} does not exist{guess} {group} is one of {options}"
        case (
            _,
            omegaconf_errors.ConfigKeyError() | omegaconf_errors.ConfigAttributeError() as cause,
        ):
            known = [*keys(cause.parent_node._get_root()), *groups]
            return unknown_key(cause.full_key, known, cause.parent_node.get("_target_"))
        case _, omegaconf_errors.OmegaConfBaseException() as cause:
            return f"{_flat(error)}; {explain(cause, groups)}"
        case _, None | UserError():
            return _flat(error.__cause__ or error)
    return None


def _flat(error: BaseException) -> str:
    """The message on one line; of a data worker's report only the message of the error itself."""
    lines = str(error).rstrip().splitlines()
    if lines[1:] and lines[1].startswith("Original Traceback"):
        return lines[-1].partition(": ")[2]
    return " ".join(str(error).split())
