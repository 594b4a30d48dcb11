"""Pictures of where a model looks, made while it trains and without a trace in its training."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from pytorch_lightning import LightningModule
from pytorch_lightning.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms.functional import normalize

from vitrail.attention.maps import attention_maps, rollout
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.tracking.attention_maps import MAX_LAYERS, AttentionMaps, ImageMaps, draw, on_image
from vitrail.tracking.loggers import Loggers, RunLogger

SIZES = {"image_size": (16, 24), "patch_size": 8, "dim": 24, "depth": 2, "heads": 3}
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def build(**changes) -> ViT:
    torch.manual_seed(0)
    model = ViT(**(SIZES | changes), num_classes=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def picture(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(seed))


def seen(
    model: ViT, padding: torch.Tensor | None = None, image: torch.Tensor | None = None
) -> ImageMaps:
    image = picture() if image is None else image
    maps = attention_maps(model, image[None], None if padding is None else padding[None])
    return on_image(model, maps, image, padding, mean=MEAN, std=STD)


class Pictures(RunLogger):
    """Remembers which pictures were shown."""

    name, version = "pictures", ""
    log_hyperparams = log_metrics = None  # not called

    def __init__(self):
        super().__init__()
        self.shown: list[tuple[str, str]] = []

    def show_picture(self, name: str, path: Path) -> None:
        assert path.is_file()
        self.shown.append((name, path.name))


class Teaching(LightningModule):
    """Trains a small network, with dropout, on batches like vitrail's own."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def training_step(self, batch, batch_idx):
        images, labels, padding = batch
        return nn.functional.cross_entropy(self.network(images, padding), labels)

    def validation_step(self, batch, batch_idx):
        self.network(batch[0], batch[2])

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def batches(*sizes: int, padded: bool = False) -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    whole = torch.ones(max(sizes), 16, 24, dtype=torch.bool)
    made = [
        (
            torch.randn(size, 3, 16, 24, generator=generator),
            torch.arange(size) % 5,
            whole[:size] if padded else None,
        )
        for size in sizes
    ]
    return DataLoader(made, batch_size=None, generator=torch.Generator())


def callback(folder: Path, pictures: Pictures, **changes) -> AttentionMaps:
    options = {"images": 3, "every_n_epochs": 1, "tested": "test"} | changes
    loggers = Loggers([pictures], run_id=None)
    return AttentionMaps(folder=folder, mean=MEAN, std=STD, loggers=loggers, **options)


def shown_by(of: torch.Tensor) -> torch.Tensor:
    """(rows, cols) weights on the image."""
    return nn.functional.interpolate(of[None, None], size=(16, 24), mode="bilinear")[0, 0]


def test_the_class_tokens_maps_lie_on_the_image_and_rollout_after_them():
    model = build(registers=2).eval()
    maps = attention_maps(model, picture()[None])
    found = seen(model)
    assert list(found.maps) == ["blocks.0", "blocks.1", "rollout"]
    for name in ("blocks.0", "blocks.1"):
        expected = maps[f"{name}.attn"][0].mean(0)[0, 3:].unflatten(0, (2, 3))
        torch.testing.assert_close(found.maps[name], shown_by(expected))
    expected = rollout(maps.values())[0, 0, 3:].unflatten(0, (2, 3))
    torch.testing.assert_close(found.maps["rollout"], shown_by(expected))


def test_without_a_class_token_all_real_tokens_ask_alike():
    model = build(class_token=False, registers=1, pool="avg").eval()
    real = torch.ones(16, 24, dtype=torch.bool)
    real[:, 12:] = False  # one column of patches, and a half of the next
    maps = attention_maps(model, picture()[None], real[None])
    found = seen(model, real)
    assert found.image.shape == (16, 12, 3)
    for name in ("blocks.0", "blocks.1"):
        on_map = maps[f"{name}.attn"][0].mean(0)[1:, 1:].unflatten(0, (2, 3)).unflatten(2, (2, 3))
        expected = on_map[:, :2].mean((0, 1))  # the last column of queries is padding
        assert not expected[:, 2].any()
        small = expected[None, None, :, :2]
        expected = nn.functional.interpolate(small, size=(16, 16), mode="bilinear")[0, 0, :, :12]
        torch.testing.assert_close(found.maps[name], expected)


def test_a_pooling_query_shows_its_own_map():
    model = build(pool="map").eval()
    maps = attention_maps(model, picture()[None])
    found = seen(model)
    assert list(found.maps) == ["blocks.0", "blocks.1", "attn_pool", "rollout"]
    expected = maps["attn_pool"][0].mean(0)[0].unflatten(0, (2, 3))
    torch.testing.assert_close(found.maps["attn_pool"], shown_by(expected))


def test_of_a_deep_model_layers_at_even_steps_are_shown():
    first, *others, last, _rollout = seen(build(depth=30)).maps
    assert (first, len(others), last) == ("blocks.0", MAX_LAYERS - 2, "blocks.29")


def test_the_image_is_as_it_was_before_it_was_normalised():
    pixels = torch.rand(3, 16, 24, generator=torch.Generator().manual_seed(0))
    found = seen(build(), image=normalize(pixels, MEAN, STD))
    torch.testing.assert_close(found.image, pixels.permute(1, 2, 0))


@pytest.mark.parametrize("size", [(8, 8), (8, 24), (300, 40)])
def test_a_picture_has_a_row_an_image_and_a_column_a_map(tmp_path, size):
    image = torch.rand(*size, 3)
    glow = torch.zeros(size)
    glow[: size[0] // 2] = 1.0
    paths = []
    for rows, columns in ((1, 1), (3, 4)):
        looks = [ImageMaps(image, {f"map {i}": glow for i in range(columns)}) for _ in range(rows)]
        draw(tmp_path / "attention" / f"{rows}.png", looks, title="$any_title$")
        paths.append(tmp_path / "attention" / f"{rows}.png")
    with Image.open(paths[0]) as small, Image.open(paths[1]) as large:
        assert large.width == small.width * 5 // 2
        assert large.height > small.height
        cell = large.width // 5
        top, left = large.height - 3 * cell, cell  # the first image's first map
        shown = large.convert("RGB").crop((left, top, left + cell, top + cell))
        assert not {(255, 255, 255)} & {shown.getpixel((0, 0)), shown.getpixel((2, 2))}
    assert sorted((tmp_path / "attention").iterdir()) == sorted(paths), "no draft is left"


def test_pictures_come_every_n_epochs_and_not_from_a_sanity_check(tmp_path, fit):
    pictures = Pictures()
    maps = callback(tmp_path, pictures, every_n_epochs=2)
    data = batches(2), batches(2, 2, 2)
    fit(False, epochs=5, callbacks=[maps], model=Teaching(build()), data=data)
    names = ["epoch_0002.png", "epoch_0004.png"]
    assert pictures.shown == [("val/attention", name) for name in names]
    assert sorted(path.name for path in (tmp_path / "attention").iterdir()) == names


@pytest.mark.parametrize("sizes", [(4, 4), (2, 2), (2,), (1, 1, 1, 1)], ids=str)
def test_as_many_images_are_drawn_as_are_asked_for_or_there_are(tmp_path, fit, sizes, monkeypatch):
    drawn = []
    taken = "vitrail.tracking.attention_maps.draw"
    monkeypatch.setattr(taken, lambda path, rows, *, title: drawn.extend(rows))
    monkeypatch.setattr(Pictures, "show_picture", lambda *_: None)
    loader = batches(*sizes, padded=True)
    fit(False, callbacks=[callback(tmp_path, Pictures())], model=Teaching(build()), test=loader)
    firsts = torch.cat([images for images, _, _ in loader])[:3]
    assert len(drawn) == min(3, sum(sizes))
    for one, first in zip(drawn, firsts, strict=True):
        expected = seen(build(), image=first)
        assert torch.equal(one.image, expected.image)
        torch.testing.assert_close(dict(one.maps), dict(expected.maps))


def test_a_test_is_drawn_under_the_name_of_its_split_in_half_precision_too(tmp_path, fit):
    for knobs in ({}, {"precision": "bf16-mixed"}):
        maps = callback(tmp_path, pictures := Pictures(), every_n_epochs=10, tested="val")
        model = Teaching(build(backend="eager"))
        fit(False, callbacks=[maps], model=model, test=batches(4), **knobs)
        assert pictures.shown == [("val/attention", "val.png")]


def test_training_goes_on_as_without_them(tmp_path, fit):
    def trained(*callbacks) -> dict[str, torch.Tensor]:
        model = Teaching(build(dropout=0.3, attention_dropout=0.3, drop_path=0.3))
        torch.manual_seed(1)
        fit(False, epochs=3, callbacks=callbacks, model=model, data=(batches(4, 4), batches(4)))
        return {**model.state_dict(), "random": torch.get_rng_state()}

    with_pictures = trained(callback(tmp_path, pictures := Pictures()))
    assert len(pictures.shown) == 3
    without = trained()
    assert all(torch.equal(with_pictures[name], without[name]) for name in without)


def test_only_the_first_process_looks(tmp_path):
    maps = callback(tmp_path, Pictures())
    other = SimpleNamespace(is_global_zero=False, num_test_batches=[1])
    module = SimpleNamespace(network=None)
    maps.on_test_batch_end(other, module, None, (picture()[None], None, None), 0)
    assert not (tmp_path / "attention").exists()


@pytest.mark.parametrize("value", [0, -1, 2.5, None])
@pytest.mark.parametrize("key", ["images", "every_n_epochs"])
def test_numbers_that_cannot_be_are_refused_in_a_line(tmp_path, key, value):
    rule = rf"^attention maps: {key} must be a whole number >= 1, got {value}$"
    with pytest.raises(ValueError, match=rule):
        callback(tmp_path, Pictures(), **{key: value})


def test_a_model_of_another_kind_is_refused_before_it_trains(tmp_path, fit):
    maps = callback(tmp_path, Pictures())
    with pytest.raises(UserError, match=r"^attention maps are drawn of vit models and this is"):
        fit(False, callbacks=[maps], model=Teaching(nn.Flatten()), data=(batches(2), batches(2)))


def test_sharded_weights_are_refused(tmp_path):
    trainer, module = SimpleNamespace(strategy=FSDPStrategy()), SimpleNamespace(network=build())
    with pytest.raises(ValueError, match=r"^attention maps need whole weights and FSDPStrategy"):
        callback(tmp_path, Pictures()).setup(trainer, module, "fit")
