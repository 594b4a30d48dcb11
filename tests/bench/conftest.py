"""Measurements as the command would build them."""

from collections.abc import Callable

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from vitrail.startup import configs


@pytest.fixture
def build(tmp_path) -> Callable:
    """build("bench=step", "model=…", rounds=…): of the composed config, with other keys of bench.

    resolved: with a config that was read again, in which nothing follows from anything.
    """

    def call(*overrides: str, resolved: bool = False, **keys):
        with initialize_config_dir(str(configs()), version_base="1.3"):
            config = compose("bench", [*overrides])
            if resolved:
                config = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
            make = instantiate(config.bench, _partial_=True, _convert_="all")
            return make(config=config, folder=tmp_path, **keys)

    return call
