"""The loader in Lightning's hands: epochs, resuming within one, and several processes."""

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from vitrail.data.batches import Batch
from vitrail.data.module import ImageData

# Lightning 2.6 asks torch 2.14 for a name that it has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")


class Witness(pl.LightningModule):
    """Learns nothing and remembers every training image by its sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, float]] = []
        self.validated: list[float] = []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        images, _, valid = batch
        assert valid is None
        self.seen += [(self.current_epoch, float(image.sum())) for image in images]
        return self.weight * images.mean()

    def validation_step(self, batch: Batch, _: int) -> None:
        self.validated += [float(image.sum()) for image in batch.images]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # As schedules do: it builds the loaders before Lightning restores its loops.
        assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def data(build):
    """40 training images in 5 batches; `data(workers)`."""
    sizes = ["data.image_size=[6,10]", "data.dataset.train=44", "data.dataset.num_classes=2"]
    return lambda workers=0: build(
        "synthetic", *sizes, "data.batch_size=8", f"data.workers={workers}"
    )


class SaveEveryStep(pl.Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def fit(data: ImageData, folder: Path, *, epochs: int, ckpt_path: Path | None = None) -> Witness:
    witness = Witness()
    off = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger")
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[SaveEveryStep(folder)],
        **dict.fromkeys((*off, "use_distributed_sampler"), False),
    )
    trainer.fit(witness, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return witness


def test_epochs_come_in_different_orders_and_validation_sees_every_image_once(data, tmp_path):
    witness = fit(data(), tmp_path, epochs=2)
    first, second = (
        [value for epoch, value in witness.seen if epoch == number] for number in range(2)
    )
    assert len(first) == len(second) == 40
    assert first != second
    assert len(set(witness.validated)) == 4
    assert len(witness.validated) == 3 * 4  # the sanity check before training, then two epochs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [5, 7, 10])
def test_a_run_resumed_at_any_step_sees_what_it_would_have_seen(step, workers, data, tmp_path):
    straight = fit(data(workers), tmp_path, epochs=3)
    resumed = fit(data(workers), tmp_path, epochs=3, ckpt_path=tmp_path / f"{step}.ckpt")
    assert resumed.seen == straight.seen[8 * step :]


def test_the_place_within_an_epoch_is_two_numbers(data):
    loader = data().train_dataloader()
    loader.sampler.set_epoch(4)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.state_dict() == {"epoch": 4, "batches": 2}


def test_reading_an_epoch_leaves_the_global_generator_alone(data):
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    list(data().train_dataloader())
    assert torch.equal(torch.rand(2), expected)


def test_the_epoch_counts_even_when_it_is_told_after_iter(data):
    early, late = data().train_dataloader(), data().train_dataloader()
    early.sampler.set_epoch(2)
    iterator = iter(late)
    late.sampler.set_epoch(2)
    assert torch.equal(next(iter(early)).images, next(iterator).images)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_see_disjoint_images_and_together_all(world, data, monkeypatch):
    alone = torch.cat([batch.images for batch in data().loader("test")])
    shards = []
    for rank in range(world):
        monkeypatch.setattr("vitrail.data.module.rank_and_world", lambda r=rank: (r, world))
        shards.append(torch.cat([batch.images for batch in data().loader("test")]))
    together, expected = (images.sum((1, 2, 3)).sort()[0] for images in (torch.cat(shards), alone))
    assert len(together) == 512
    torch.testing.assert_close(together, expected)
