"""Measurements that train in this process do so on one device."""

from omegaconf import DictConfig

from vitrail.errors import UserError


def check_one_device(config: DictConfig) -> None:
    """Raise UserError where a config asks for more devices than one, or may."""
    trainer = config.trainer
    if (trainer.devices, trainer.num_nodes, trainer.strategy) != (1, 1, "auto"):
        raise UserError(
            f"trainer.devices={trainer.devices} may be several devices, and bench.py measures on "
            "one; use trainer=auto, cpu or gpu"
        )
