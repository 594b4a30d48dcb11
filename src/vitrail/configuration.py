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
    for key, node in constructors(OmegaConf.to_container(config, resolve=True)):
        check_arguments(key, node)


def check_additions(config: DictConfig, listed: DictConfig) -> None:
    """Refuse what `config` has beyond `listed`, the YAML's own, where no constructor could know it.

    Whatever lies inside a `_target_` node is left to `check_config` and to the constructor.
    """
    known = keys(listed)
    for key in keys(config, into_constructors=False):
        if key not in known:
            raise UserError(unknown_key(key, known))


def check_arguments(key: str, node: Mapping[str, Any]) -> None:
    """Hold one plain `_target_` node against its constructor's signature, `**anything` allowed."""
    parameters = signature(node["_target_"]).parameters
    for name in node.keys() - HYDRAS_OWN:
        argument = f"{key}.{name}" if key else name
        if name in parameters:
            check_type(argument, node[name], parameters[name].annotation)
        elif all(other.kind is not other.VAR_KEYWORD for other in parameters.values()):
            place = argument.removesuffix(name)
            raise UserError(unknown_key(argument, [place + other for other in parameters]))


def check_type(key: str, value: Any, annotation: Any) -> None:
    """Refuse a value that an annotation made of numbers, words, switches and None cannot mean.

    null is never refused, because the program may fill it in; nor a mapping, which may become an
    object.
    """
    allowed = _scalars(annotation)
    if allowed is None or value is None or isinstance(value, Mapping):
        return
    if type(value) in allowed or (type(value) is int and float in allowed):
        return
    takes = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in allowed)
    raise UserError(f"{key}={value} is a value of type {type(value).__name__}; it takes {takes}")


def constructors(node: Any, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with a `_target_` in plain containers, outer before inner, with its key."""
    if isinstance(node, Mapping) and "_target_" in node:
        yield key, node
    for name, child in _children(node):
        yield from constructors(child, f"{key}.{name}" if key else name)


def keys(config: DictConfig, *, into_constructors: bool = True) -> list[str]:
    """The dotted keys of a config, branches and leaves, less those that Hydra has for itself."""

    def walk(node: Any, place: str) -> Iterator[str]:
        if not into_constructors and isinstance(node, Mapping) and "_target_" in node:
            return
        for name, child in _children(node):
            if name not in HYDRAS_OWN:
                yield place + name
                yield from walk(child, f"{place}{name}.")

    plain = OmegaConf.to_container(config, resolve=False)
    return [key for key in walk(plain, "") if key.split(".")[0] != "hydra"]


def required(target: str) -> set[str]:
    """The names of the arguments without which the constructor cannot be called."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name
        for name, parameter in signature(target).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variadic
    }


@cache
def signature(target: str) -> inspect.Signature:
    """The signature of the callable with this dotted name, which is imported for it.

    A callable of C code may have none that can be read: then one that takes anything. Raises
    ValueError where nothing has that name, and what its module raises on being imported.
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
    near = near or [other for other in known if other.rpartition(".")[2] == name]
    if near:
        return f"unknown key {key}; did you mean {' or '.join(near)}?"
    if target is not None and name in signature(target).parameters:
        return f"the config does not list {key}, but its constructor takes it: write +{key}=…"
    listing = f"has {', '.join(sorted(here))}" if here else "has no keys of its own"
    return f"unknown key {key}; {place or 'the config'} {listing}"


def no_value(key: str) -> str:
    """One line on a key whose value the YAML leaves to the command."""
    return f"{key} has no value; write {key}=…"


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        yield from ((str(name), child) for name, child in node.items())
    elif isinstance(node, list):
        yield from ((str(index), child) for index, child in enumerate(node))


def _scalars(annotation: Any) -> list[type] | None:
    """The simple types that an annotation is made of; None where it holds anything else."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_scalars(part) for part in get_args(annotation)]
        return None if None in parts else [one for part in parts for one in part]
    return [annotation] if annotation in SCALARS else None
