"""Averaged weights: an exponential moving average that is validated, saved and evaluated."""

from itertools import chain
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from pytorch_lightning.strategies import (
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    Strategy,
)
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vitrail.errors import UserError


class EMA(WeightAveraging):
    """average <- decay * average + (1 - decay) * weights, after every optimizer step.

    Lightning's callback, with four differences. The average starts at the initial weights, not at
    those after the first step. Updating it reads no tensor's value (torch asks the GPU for a
    counter at every step) and copies integer buffers (averaged, 7 becomes 6). A checkpoint written
    while the average is in use, during validation or after training, still holds the weights too.
    Loading a checkpoint to evaluate it gives the average, not the weights.

    In a checkpoint `state_dict` is the average and `current_model_state` the weights that training
    goes on from; without this callback it has no such key, nor `averaging_state`.
    """

    def __init__(self, decay: float):
        if not 0 < decay < 1:
            raise UserError(
                f"ema_decay={decay} is the share of the average that a step keeps; use a number "
                "between 0 and 1, such as 0.999, or null for none"
            )
        super().__init__()
        self.decay = decay
        self._in_use = False  # the module holds the average, and the average's copy the weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            check(trainer.strategy)
            self._average_model = _Average(pl_module, self.decay)
            self._in_use = False

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn is TrainerFn.FITTING:
            self._use(pl_module, average=True)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn is TrainerFn.FITTING:
            self._use(pl_module, average=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._use(pl_module, average=True)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._in_use:
            average, weights = checkpoint["current_model_state"], checkpoint["state_dict"]
            checkpoint.update(state_dict=average, current_model_state=weights)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn is TrainerFn.FITTING:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def _use(self, pl_module: LightningModule, *, average: bool) -> None:
        if average is not self._in_use:
            self._swap_models(pl_module)
            self._in_use = average


def check(strategy: Strategy) -> None:
    """Raise UserError where no process holds all the weights, so that none can average them."""
    if isinstance(strategy, (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)):
        raise UserError(
            f"ema_decay needs whole weights and {type(strategy).__name__} keeps a shard in each "
            "process; use trainer=ddp or ema_decay=null"
        )


class _Average(AveragedModel):
    """The averaged copy, on the device of the module."""

    def __init__(self, model: LightningModule, decay: float):
        super().__init__(model, model.device, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        pairs = list(zip(_tensors(self.module), _tensors(model), strict=True))
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self.multi_avg_fn(*map(list, zip(*floats, strict=True)), self.n_averaged)
        for average, current in pairs:
            if not average.is_floating_point():
                average.copy_(current)
        self.n_averaged += 1


def _tensors(module: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in chain(module.parameters(), module.buffers())]
