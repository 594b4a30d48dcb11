"""Which errors are a person's to mend, and the one line that says how.

Every other error is a bug of this project or of a library, and keeps its traceback.
"""

import shlex
import sys
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)
from yaml import YAMLError

from vitrail.configuration import keys, no_value, unknown_key
from vitrail.errors import UserError

# A ValueError that these raise is about what a person gave. One from deep inside torch or numpy
# may be anybody's, and without its traceback nobody could tell.
JUDGES = {"vitrail", "hydra", "omegaconf"}


def explain(error: BaseException, groups: Collection[str] = ()) -> str | None:
    """The line that a person needs, or None for a bug.

    `groups` are the config groups that a misspelt key may have meant, besides the config's keys.
    """
    match error:
        case OverrideParseException():
            return _unreadable(error)
        case MissingConfigException(missing_cfg_file=str() as path, options=[_, *_] as options):
            return _unknown_choice(path, options)
        case MissingConfigException():
            return str(error).splitlines()[0]
        case ConfigCompositionException(__cause__=ConfigKeyError() | ConfigAttributeError()):
            return _unknown_key(error.__cause__, groups)
        case ConfigCompositionException() if "No match in the defaults list" in str(error):
            return f"unknown key {str(error).split(chr(39))[1]}; this command has no such group"
        case ConfigCompositionException(__cause__=OmegaConfBaseException() as cause):
            return "; ".join(filter(None, [_flat(error), explain(cause)]))
        case InstantiationException(__cause__=Exception() as cause):
            return explain(cause) or _refused_by_constructor(cause)
        case MissingMandatoryValue() | InterpolationToMissingValueError():
            return no_value(str(error).splitlines()[0].rpartition(": ")[2])
        case InterpolationResolutionError() if cause := _cause(error):
            return explain(cause) or _flat(cause)
        case OmegaConfBaseException():
            return f"{error.full_key}: {str(error).splitlines()[0]}"
        case OSError(filename=str() as path, strerror=str() as reason):
            return f"{path}: {reason}"
        case HydraException() | OSError() | YAMLError():
            return _flat(error)
        case UserError():
            return _flat(error)
        case ValueError() | ImportError() if _raised_in(error) in JUDGES:
            return _flat(error)
    if (lightning := _lightning()) and isinstance(error, lightning.MisconfigurationException):
        return _flat(error)
    return None


def exit_code(stop: KeyboardInterrupt | SystemExit) -> str | int | None:
    """What the shell is told: 130 after Ctrl-C, 143 after SIGTERM, else the code that was given."""
    if isinstance(stop, KeyboardInterrupt) or isinstance(stop.__context__, KeyboardInterrupt):
        return 130  # Lightning shuts down after Ctrl-C and then exits with 1
    if (lightning := _lightning()) and isinstance(stop, lightning.SIGTERMException):
        return 143
    return stop.code


def _unreadable(error: OverrideParseException) -> str:
    key, equals, value = error.override.partition("=")
    if not equals:
        return f"{key} is not an override; write key=value"
    why = error.message.splitlines()[0]
    quoted = shlex.quote(f'{key}="{value}"')
    return f"{error.override} cannot be read ({why}); quote a value with such characters: {quoted}"


def _unknown_choice(path: str, options: list[str]) -> str:
    group, _, choice = path.rpartition("/")
    near = get_close_matches(choice, options)
    guess = f"; did you mean {' or '.join(near)}?" if near else ";"
    return f"{group}={choice} does not exist{guess} {group} is one of {', '.join(options)}"


def _unknown_key(error: ConfigKeyError | ConfigAttributeError, groups: Collection[str]) -> str:
    parent = error.parent_node
    known = [*keys(parent._get_root()), *groups]
    return unknown_key(error.full_key, known, parent.get("_target_"))


def _refused_by_constructor(error: Exception) -> str | None:
    """A ValueError of any library's constructor, or a TypeError of the call itself."""
    called_wrongly = isinstance(error, TypeError) and _raised_in(error) == "hydra"
    return _flat(error) if called_wrongly or isinstance(error, ValueError | ImportError) else None


def _cause(error: InterpolationResolutionError) -> OSError | ValueError | None:
    """What a resolver of ours raised: OmegaConf repeats it in words and drops it as the cause."""
    context: BaseException | None = error
    while isinstance(context, OmegaConfBaseException):
        context = context.__context__
    return context if isinstance(context, OSError | ValueError) else None


def _lightning() -> ModuleType | None:
    """Lightning's exceptions, where Lightning has been imported at all."""
    return sys.modules.get("pytorch_lightning.utilities.exceptions")


def _raised_in(error: BaseException) -> str:
    """The top-level package of the code that raised an error, here or in a data worker."""
    if report := _from_worker(error):
        file = [line for line in report if line.startswith('  File "')][-1].split('"')[1]
        return "vitrail" if Path(file).is_relative_to(Path(__file__).parent) else ""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return frames[-1].f_globals["__name__"].partition(".")[0]


def _flat(error: BaseException) -> str:
    """The message on one line; of a data worker's report only the message of the error itself."""
    if report := _from_worker(error):
        return report[-1].partition(": ")[2]
    return " ".join(str(error).split())


def _from_worker(error: BaseException) -> list[str]:
    """The lines of the traceback that torch makes the message when a data worker fails."""
    lines = str(error).rstrip().splitlines()
    return lines[1:] if lines[1:] and lines[1].startswith("Original Traceback") else []
