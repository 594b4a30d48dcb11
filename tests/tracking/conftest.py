"""A training run in miniature."""

import warnings

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    """One weight, one metric a step and one an epoch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = (self.weight * batch[0]).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", (self.weight * batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def fit():
    """A function that trains a line, or another model, for some epochs of ten batches; or tests."""

    def fit(
        loggers, *, epochs=1, checkpoint=None, callbacks=(), model=None, data=(), test=None, **knobs
    ) -> Trainer:
        line = DataLoader(TensorDataset(torch.linspace(0, 1, 10)), batch_size=1)
        trainer = Trainer(
            max_epochs=epochs,
            logger=loggers,
            callbacks=list(callbacks),
            accelerator="cpu",
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            **{"enable_checkpointing": False, **knobs},
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", ".*does not have many workers", UserWarning)
            if test is not None:
                trainer.test(model, test)
            else:
                trainer.fit(model or Line(), *(data or (line, line)), ckpt_path=checkpoint)
        return trainer

    return fit
