"""A choice of a config group by its name, for measurements that take several of one group."""

from hydra import compose
from omegaconf import DictConfig, ListConfig


def choice(group: str, name: str) -> DictConfig | ListConfig:
    """What train.py is given by `group=name`; Hydra's own error where there is no such choice."""
    return compose("train", [f"{group}={name}"])[group]
