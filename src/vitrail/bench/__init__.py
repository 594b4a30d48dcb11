"""Measurements of attention backends that a person can decide from."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig


def run(config: DictConfig, run_dir: Path, *, overrides: Sequence[str] = ()) -> None:
    """Measure what `config.bench` describes, or show what `compare` or `runs` name, in `run_dir`.

    overrides: this command's, as typed.
    """
    # Each where it is asked for: processes that measure memory import this package too, and what
    # they measure should not be Lightning.
    if config.compare is not None:
        from vitrail.bench.compare import compare

        compare(config.compare, run_dir, overrides)
    elif config.runs is not None:
        from vitrail.bench.training_runs import show

        show(config.runs, run_dir, overrides)
    else:
        from vitrail.bench.measuring import measure

        measure(config, run_dir, overrides)
