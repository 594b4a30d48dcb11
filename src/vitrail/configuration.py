"""What a config may hold: each key is a constructor's argument, or one that the YAML lists.

Hydra refuses a misspelt key only until someone writes `+` before it. The checks here read
signatures, construct nothing and raise UserError with one line: the key, the rule, the way out.
"""

import inspect
import pydoc
import types
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Union, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from vitrail.errors import UserError

HYDRAS_OWN = {"_target_", "_args_", "_convert_", "_partial_", "_recursive_"}
SCALARS = (bool, int, float, str, types.NoneType)


def check_config(config: DictConfig) -> None:
    """Hold every `_target_` node against its constructor: its arguments' names and simple types.

    Every `???` must have been given a value and every interpolation must resolve. Arguments that
    a node lacks are not looked for, because the program passes some itself.
    """
    for key in keys(config):
        OmegaConf.select(config, key)  # unlike to_container, it says which key does not resolve
    if missing := sorted(OmegaConf.missing_keys(config)):
        raise UserError(no_value(missing[0]))
    for key, node in constructors(config):
        parameters = signature(node["_target_"]).parameters
        for name in node.keys() - HYDRAS_OWN:
            if name in parameters:
                check_type(f"{key}.{name}", node[name], parameters[name].annotation)
            elif all(other.kind is not other.VAR_KEYWORD for other in parameters.values()):
                raise UserError(unknown_key(f"{key}.{name}", [f"{key}.{p}" for p in parameters]))


def check_type(key: str, value: Any, annotation: Any) -> None:
    """Refuse a value that an annotation made of numbers, words, switches and None cannot mean.

    null is never refused, because the program may fill it in; nor a mapping, which may become an
    object.
    """
    allowed = _scalars(annotation)
    unknown = allowed is None or value is None or isinstance(value, Mapping)
    if unknown or type(value) in allowed or (type(value) is int and float in allowed):
        return
    takes = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in allowed)
    raise UserError(f"{key} must be {takes}, got {value} ({type(value).__name__})")


def check_additions(config: DictConfig, listed: DictConfig) -> None:
    """Refuse what `config` has beyond `listed`, the YAML's own, outside of `_target_` nodes."""
    known = keys(listed)
    for key, _ in _walk(OmegaConf.to_container(config, resolve=False), into_constructors=False):
        if key not in known and not key.startswith("hydra."):
            raise UserError(unknown_key(key, known))


def read_switches(config: DictConfig) -> None:
    """Make a truth value of `gate=off` and its like, and refuse what is none."""
    words = {"on": True, "yes": True, "off": False, "no": False}
    for key in [key for key in ("gate", "deterministic", "compile") if key in config]:
        value = words.get(str(config[key]), config[key])
        if (key, value) == ("compile", "auto"):
            raise UserError("compile=auto does not exist any more; use compile=true or false")
        if not isinstance(value, bool):
            raise UserError(f"{key} must be true or false, got {value}")
        config[key] = value


def check_seed(seed: int | None) -> None:
    """Refuse what numpy takes no seed from."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise UserError(f"seed must be a whole number in [0, {2**32 - 1}], got {seed}")


def constructors(config: DictConfig) -> list[tuple[str, Mapping[str, Any]]]:
    """Every node with a `_target_`, resolved and plain, outer before inner, with its key."""
    nodes = _walk(OmegaConf.to_container(config, resolve=True))
    return [(key, node) for key, node in nodes if _is_constructor(node)]


def keys(config: DictConfig) -> list[str]:
    """The dotted keys of a config, branches and leaves, less those that Hydra has for itself."""
    found = _walk(OmegaConf.to_container(config, resolve=False))
    return [key for key, _ in found if key.split(".")[0] != "hydra"]


@cache
def signature(target: str) -> inspect.Signature:
    """The signature of the callable with this dotted name, which is imported for it.

    A callable of C code may have none that can be read: then one that takes anything. Raises
    UserError where nothing has that name, and what its module raises on being imported.
    """
    try:
        found = pydoc.locate(target)
    except pydoc.ErrorDuringImport as error:
        raise error.value from None
    if not callable(found):
        raise UserError(f"_target_={target} names nothing that can be called; check its spelling")
    try:
        return inspect.signature(found, eval_str=True)
    except NameError:  # an annotation names what only type checkers import
        return inspect.signature(found)
    except ValueError:
        return inspect.signature(lambda **anything: anything)


def unknown_key(key: str, known: Collection[str], target: str | None = None) -> str:
    """One line on a dotted key that is not among the `known` ones.

    It names the keys spelt alike at the same place, else those spelt so at another place, else
    the `+` with which the constructor `target` of that place would take it, else all keys there.
    """
    place, _, name = key.rpartition(".")
    here = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == place}
    near = [here[close] for close in get_close_matches(name, here, cutoff=0.7)]
    if near := near or [other for other in known if other.rpartition(".")[2] == name]:
        return f"unknown key {key}; did you mean {' or '.join(near)}?"
    if target is not None and name in signature(target).parameters:
        return f"the config does not list {key}, but its constructor takes it: write +{key}=…"
    listing = f"has {', '.join(sorted(here))}" if here else "has no keys of its own"
    return f"unknown key {key}; {place or 'the config'} {listing}"


def no_value(key: str) -> str:
    """One line on a key whose value the YAML leaves to the command."""
    return f"{key} has no value; write {key}=…"


def _walk(
    node: Any, place: str = "", *, into_constructors: bool = True
) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in plain containers, outer before inner."""
    if _is_constructor(node) and not into_constructors:
        return
    items = node.items() if isinstance(node, Mapping) else enumerate(node)
    for name, child in items:
        if name not in HYDRAS_OWN:
            yield f"{place}{name}", child
            if isinstance(child, Mapping | list):
                yield from _walk(child, f"{place}{name}.", into_constructors=into_constructors)


def _is_constructor(node: Any) -> bool:
    return isinstance(node, Mapping) and "_target_" in node


def _scalars(annotation: Any) -> list[type] | None:
    """The simple types that an annotation is made of; None where it holds anything else."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_scalars(part) for part in get_args(annotation)]
        return None if None in parts else [one for part in parts for one in part]
    return [annotation] if annotation in SCALARS else None
