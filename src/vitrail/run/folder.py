"""Where a run writes. The configs call these by name: `hydra.run.dir: ${run_folder:…}`."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import OmegaConf

CHECKPOINTS = "checkpoints"  # the folder of a run that its checkpoints lie in


def register() -> None:
    """Teach OmegaConf the names. A config asks each question once and remembers the answer."""
    for resolver in (run_folder, eval_folder, bench_folder):
        OmegaConf.register_new_resolver(resolver.__name__, resolver, use_cache=True, replace=True)


def run_folder(ckpt_path: str | None, name: str) -> str:
    """The folder of the run that wrote the checkpoint, to go on there; else a new one like `name`.

    A checkpoint that was moved out of its run's folder has no run to go on with.
    """
    run = None if ckpt_path is None else writer(ckpt_path)
    return new_folder(name) if run is None else str(run)


def eval_folder(ckpt_path: str, name: str) -> str:
    """A new folder `eval/<name>` in the folder of the checkpoint's run, or beside a moved one."""
    return new_folder(str((writer(ckpt_path) or Path(ckpt_path).parent) / "eval" / name))


def bench_folder(into: str | None, compare: object, runs: object, name: str, bench: str) -> str:
    """The folder `into`, to go on there; else a new one like `name`, and what is done in it.

    Raises FileNotFoundError where `into` leads to no folder.
    """
    if into is None:
        what = "compare" if compare is not None else "runs" if runs is not None else bench
        return new_folder(f"{name}_bench_{what}")
    if not Path(into).expanduser().is_dir():
        raise FileNotFoundError(
            f"into={into} is not a folder; name one that holds a measurement to go on with"
        )
    return str(Path(into).expanduser())


def writer(ckpt_path: str) -> Path | None:
    """The folder of the run that wrote a checkpoint, or None where the checkpoint lies elsewhere.

    Raises FileNotFoundError that names what there is, where the path leads to no file.
    """
    path = Path(ckpt_path).expanduser()
    if not path.is_file():
        place = path / CHECKPOINTS if path.is_dir() else path.parent
        beside = ", ".join(sorted(str(other) for other in place.glob("*.ckpt")))
        hint = f"there is {beside}" if beside else f"there is no checkpoint in {place}"
        raise FileNotFoundError(f"ckpt_path={ckpt_path} is not a file; {hint}")
    return path.parent.parent if path.parent.name == CHECKPOINTS else None


def new_folder(name: str) -> str:
    """Make a folder that no run has yet: `name`, or `name-2`, … where another run was quicker."""
    candidate, number = name, 1
    while True:
        try:
            Path(candidate).mkdir(parents=True)
        except FileExistsError:
            number += 1
            candidate = f"{name}-{number}"
        except OSError as error:
            raise OSError(
                f"cannot make the run folder {candidate}: {error.strerror}; "
                "choose another with hydra.run.dir=…"
            ) from error
        else:
            return candidate


@contextmanager
def removed_if_unused(folder: Path, record: str | None) -> Iterator[None]:
    """Leave no folder behind by a command that was refused before it wrote anything into it.

    record: the folder inside it that Hydra keeps the command in, where it does.
    """
    try:
        yield
    finally:
        if {path.name for path in folder.iterdir()} <= {record}:
            for path in folder.iterdir():
                shutil.rmtree(path)
            folder.rmdir()
