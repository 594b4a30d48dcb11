"""Measurements of attention backends that a person can decide from."""

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig


def run(config: DictConfig, run_dir: Path) -> None:
    """Run the measurement that `config.bench` describes; its results lie in `run_dir`."""
    instantiate(config.bench, _convert_="all").run(run_dir)
