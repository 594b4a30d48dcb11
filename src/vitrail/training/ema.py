"""Averaged weights: an exponential moving average that is validated, saved and evaluated."""

from itertools import chain
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vitrail.errors import UserError
from vitrail.training.strategies import SHARDED


class EMA(WeightAveraging):
    """average <- d * average + (1 - d) * weights, after every optimizer step.

    d = min(decay, (1 + t) / (10 + t)) at update t = 0, 1, …: it warms up, or a short run would
    validate its random start (0.999 keeps 55 % of it over 600 steps).

    Lightning's callback, but a checkpoint written while the average is in use (in validation, after
    training) holds the weights too, and loading one to evaluate it gives the average. In a
    checkpoint `state_dict` is the average and `current_model_state` the weights that training goes
    on from. Without this callback it has neither this key nor `averaging_state`.
    """

    def __init__(self, decay: float):
        if not 0 < decay < 1:
            raise UserError(f"ema_decay must be in (0, 1), such as 0.999, or null, got {decay}")
        super().__init__()
        self.decay = decay
        self._in_use = False  # the module holds the average, and the average's copy the weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            if isinstance(trainer.strategy, SHARDED):
                raise UserError(
                    f"ema_decay needs whole weights and {type(trainer.strategy).__name__} keeps "
                    "shards of them; use trainer=ddp or ema_decay=null"
                )
            self._average_model = _Average(pl_module, self.decay)
            self._in_use = False

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._use(trainer, pl_module, average=True)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._use(trainer, pl_module, average=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._use(trainer, pl_module, average=True)

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
            self._average_model.updates = int(self._average_model.n_averaged)

    def _use(self, trainer: Trainer, pl_module: LightningModule, *, average: bool) -> None:
        if trainer.state.fn is TrainerFn.FITTING and average is not self._in_use:
            self._swap_models(pl_module)
            self._in_use = average


class _Average(AveragedModel):
    """torch's, but from the initial weights on, without waiting for the GPU to read a value."""

    def __init__(self, model: LightningModule, decay: float):
        super().__init__(model, model.device)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        both = (chain(module.parameters(), module.buffers()) for module in (self.module, model))
        pairs = list(zip(*both, strict=True))
        # Integer buffers are copied: averaged, 7 becomes 6.
        floats = [pair for pair in pairs if pair[0].is_floating_point()]
        get_ema_multi_avg_fn(decay)(*map(list, zip(*floats, strict=True)), self.n_averaged)
        for average, now in pairs:
            if not average.is_floating_point():
                average.copy_(now)
        self.updates += 1
        self.n_averaged += 1
