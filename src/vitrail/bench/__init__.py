"""Measurements of attention backends that a person can decide from."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from vitrail.errors import UserError


def run(config: DictConfig, run_dir: Path, *, overrides: Sequence[str] = ()) -> None:
    """Measure what `config.bench` describes, or set side by side what `compare` names.

    overrides: this command's, as typed.
    """
    # Each where it is asked for: processes that measure memory import this package too, and what
    # they measure should not be Lightning.
    if config.runs is not None:
        runs = config.runs if isinstance(config.runs, str) else ",".join(config.runs)
        raise UserError(f"runs= was renamed to compare=; write compare={runs}")
    if config.compare is not None:
        from vitrail.bench.compare import compare

        compare(config.compare, run_dir, overrides)
    else:
        from vitrail.bench.harness import measure

        measure(config, run_dir, overrides)
