"""The commands that a run prints for a person to paste."""

import re
import shlex
import shutil
import sys
from pathlib import Path


def next_command(name: str, **paths: Path) -> str:
    """The call of `name` (train, eval or bench) with `key=path`, started the way this command was.

    The interpreter and the script are those of this process, since a shell's own `python` may lack
    what is installed here.
    """
    started = Path(sys.argv[0])
    if started.suffix == ".py":
        words = [sys.orig_argv[0], str(started.with_name(f"{name}.py"))]
    else:
        program = f"vitrail-{name}"
        words = [program if shutil.which(program) else str(started.with_name(program))]
    named = (f"{key}={pasteable(path)}" for key, path in paths.items())
    return " ".join([shlex.join(words), *named])


def pasteable(path: Path) -> str:
    """A path to paste behind `key=`, quoted where it must be: for the shell and for Hydra."""
    text = shown(path)
    return text if re.fullmatch(r"[\w/.+-]+", text, re.ASCII) else shlex.quote(f'"{text}"')


def shown(path: Path) -> str:
    """A path as a person here would write it: relative when it lies below."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
