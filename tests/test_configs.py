"""Every choice that a command offers composes, and fits the constructors that it names."""

from collections.abc import Iterator
from inspect import Parameter

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from vitrail.configuration import check_config, constructors, signature
from vitrail.startup import configs

CONFIGS = configs()
COMMANDS = ["bench", "eval", "train"]
# What the program passes to a constructor itself, because no config can hold it.
PASSED = {"classes", "config", "folder", "network", "optim"}
# What commands and choices leave to the person; any value will do here.
GIVEN = {
    "eval": ["ckpt_path=best.ckpt"],
    "model=vit": ["model.dim=64", "model.depth=2", "model.heads=4"],
}


def choices() -> Iterator[tuple[str, str, str]]:
    """Every command with every choice of every group in its list of defaults."""
    for command in COMMANDS:
        for default in OmegaConf.load(CONFIGS / f"{command}.yaml").defaults:
            for group in () if isinstance(default, str) else default:
                options = CONFIGS.joinpath(str(group)).glob("*.yaml")
                yield from ((command, str(group), option.stem) for option in options)


def composed(command: str, choice: str) -> DictConfig:
    given = [
        value for needs, values in GIVEN.items() if needs in (command, choice) for value in values
    ]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(command, [choice, *given])


def required(target: str) -> set[str]:
    """The names of the arguments without which the constructor cannot be called."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {
        name
        for name, parameter in signature(target).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variadic
    }


@pytest.mark.parametrize("command, group, choice", sorted(choices()))
def test_a_choice_fits_the_constructors_that_it_names(command, group, choice):
    config = composed(command, f"{group}={choice}")
    check_config(config)
    for key, node in constructors(config):
        if "_partial_" in node:  # whoever calls it passes the rest
            continue
        missing = required(node["_target_"]) - node.keys() - PASSED
        assert not missing, f"{key} of {command} with {group}={choice} lacks {missing}"


def test_every_file_is_a_choice_of_some_command():
    offered = {f"{group}/{choice}.yaml" for _, group, choice in choices()}
    assert {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*/*.yaml")} == offered


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_writes_into_its_run_folder_alone(command):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        hydra = compose(command, return_hydra_config=True).hydra
    where = OmegaConf.to_container(hydra, resolve=False)
    assert where["run"]["dir"].startswith(("${run_folder:", "${eval_folder:", "${bench_folder:"))
    assert "runs/" in where["sweep"]["dir"]
    assert "=" not in where["run"]["dir"] + where["sweep"]["dir"], "Hydra could not read it back"
