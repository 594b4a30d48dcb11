"""What a command does before its work: configs and folders, the process of a job, the allocator.

None of it imports torch.
"""

import ctypes
import logging
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, read_write

from vitrail.errors import UserError

CHECKPOINTS = "checkpoints"  # the folder of a run that its checkpoints lie in
# glibc's names and numbers, malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4


def configs() -> Path:
    """The folder of configs: packaged with an installed vitrail, else the checkout's own."""
    packaged = Path(__file__).parent / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "configs"


def groups_of(command: Path) -> list[str]:
    """The config groups in a command's list of defaults, whether or not one has a choice yet."""
    groups = []
    for default in OmegaConf.load(command).defaults:
        if isinstance(default, DictConfig):
            groups += [group for group in default if " " not in group]  # no `override hydra/…`
        elif default != "_self_":
            groups += groups_of(command.with_name(f"{default}.yaml"))
    return groups


def typed(overrides: ListConfig) -> list[str]:
    """Overrides as they were typed: read one by one, `${…}` in them would be resolved."""
    return OmegaConf.to_container(overrides, resolve=False)


def as_list(word: str) -> str:
    """`compare=A,B` as the list that is meant, where Hydra would see a sweep; odd paths quoted."""
    key, _, value = word.partition("=")
    if key not in ("compare", "runs") or "," not in value or value[0] in "['\"":
        return word
    plain = re.compile(r"[\w/.+*?~-]+", re.ASCII)
    paths = [path if plain.fullmatch(path) else f'"{path}"' for path in value.split(",")]
    return f"{key}=[{','.join(paths)}]"


def listed(call: HydraConf, groups: list[str]) -> DictConfig | None:
    """The config without the keys that `+` adds to the YAML; None where none are added.

    A choice of one of the command's groups adds none. Hydra takes any folder of configs for a
    group, also one that this command does not read.
    """
    task = typed(call.overrides.task)
    kept = [
        override
        for override in task
        if not override.startswith("+") or re.split("[@=]", override.strip("+"))[0] in groups
    ]
    if kept == task:
        return None
    return hydra.compose(call.job.config_name, [*typed(call.overrides.hydra), *kept])


def register() -> None:
    """Teach OmegaConf the folders that configs name as `hydra.run.dir: ${run_folder:…}`."""
    for resolver in (run_folder, eval_folder, bench_folder):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, use_cache=True, replace=True)


def run_folder(ckpt_path: str | None, name: str) -> str:
    """The folder of the run that wrote the checkpoint, to go on there; else a new one like `name`.

    A checkpoint that was moved out of its run's folder has no run to go on with.
    """
    run = None if ckpt_path is None else folder_of_run(ckpt_path)
    return new_folder(name) if run is None else str(run)


def eval_folder(ckpt_path: str, name: str) -> str:
    """A new folder `eval/<name>` in the folder of the checkpoint's run, or beside a moved one."""
    return new_folder(str((folder_of_run(ckpt_path) or Path(ckpt_path).parent) / "eval" / name))


def bench_folder(into: str | None, compare: object, name: str, bench: str) -> str:
    """The folder `into`, to go on there; else a new one like `name`, and what is done in it."""
    if into is None:
        return new_folder(f"{name}_bench_{bench if compare is None else 'compare'}")
    if not (folder := Path(into).expanduser()).is_dir():
        raise UserError(
            f"into={into} is not a folder; name one that holds a measurement to go on with"
        )
    return str(folder)


def folder_of_run(ckpt_path: str) -> Path | None:
    """The folder of the run that wrote a checkpoint, or None where the checkpoint lies elsewhere.

    Raises UserError that names the checkpoints there are, where the path leads to no file.
    """
    path = Path(ckpt_path).expanduser()
    if not path.is_file():
        place = path / CHECKPOINTS if path.is_dir() else path.parent
        beside = ", ".join(sorted(str(other) for other in place.glob("*.ckpt")))
        hint = f"there is {beside}" if beside else f"there is no checkpoint in {place}"
        raise UserError(f"ckpt_path={ckpt_path} is not a file; {hint}")
    return path.parent.parent if path.parent.name == CHECKPOINTS else None


def new_folder(name: str, number: int = 1) -> str:
    """Make a folder that no run has yet: `name`, or `name-2`, … where another run was quicker."""
    folder = name if number == 1 else f"{name}-{number}"
    try:
        Path(folder).mkdir(parents=True)
    except FileExistsError:
        return new_folder(name, number + 1)
    except OSError as error:
        raise UserError(
            f"cannot make the run folder {folder}: {error.strerror}; "
            "choose another with hydra.run.dir=…"
        ) from error
    return folder


def job_name(call: HydraConf) -> str | None:
    """The number and the words of one job of a sweep, None for a command without a sweep."""
    if call.mode == RunMode.RUN:
        return None
    return f"job {call.job.num} ({' '.join(typed(call.overrides.task))})"


def around_job(call: HydraConf) -> AbstractContextManager:
    """What leaves the folder of a single run, or the process of a sweep's job, as it should be."""
    if call.mode == RunMode.RUN:
        return _removed_if_unused(Path(call.runtime.output_dir), call.output_subdir)
    return _as_single_run(call)


@contextmanager
def _removed_if_unused(folder: Path, record: str | None) -> Iterator[None]:
    """Remove the folder of a command that wrote no more into it than Hydra's `record` folder."""
    try:
        yield
    finally:
        if {path.name for path in folder.iterdir()} <= {record}:
            shutil.rmtree(folder)


@contextmanager
def _as_single_run(call: HydraConf) -> Iterator[None]:
    """Let one job of a sweep find and leave this process as it would be for the job alone.

    Lightning starts this command line again for every further device, which must not be the whole
    sweep, and leaves its process group and environment variables behind.
    """
    command, environment = sys.argv, dict(os.environ)
    hydras = [own for own in typed(call.overrides.hydra) if not own.startswith("hydra.mode=")]
    sys.argv = [command[0], *hydras, *typed(call.overrides.task)]
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


def keep_freed_memory() -> None:
    """Have glibc, where it is the C library, keep what is freed in this process.

    By default every tensor above 32 MiB goes back to the system, and the next one comes in cleared
    pages: up to a fifth of a training step on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)  # older versions take no M_MMAP_THRESHOLD above 32 MiB
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # bytes: never


def quiet_libraries() -> None:
    """Silence remarks of libraries, not their warnings; after Lightning's import sets its level."""
    for library in ("pytorch_lightning", "lightning_fabric", "matplotlib"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # From Lightning 2.6 to torch 2.14, about themselves.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
    # torch 2.14, of what a compiled part of a model is given, while it traces the part.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf Tensor")
    # Lightning's, on a login node: it offers srun to whoever starts without it.
    warnings.filterwarnings("ignore", r"The `srun` command is available")
