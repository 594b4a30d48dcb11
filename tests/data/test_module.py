"""ImageData: what a run asks of it, and what it refuses."""

import logging
import pickle

import pytest
import torch


@pytest.fixture
def photos(paint_folder, tmp_path):
    """Three images in each of two classes, for training, validation and test."""
    folders = [f"{split}/{name}" for split in ("train", "val", "test") for name in ("a", "b")]
    return paint_folder(tmp_path, folders, 3)


@pytest.fixture
def build_photos(build, photos):
    fixed = [f"data.root={photos}", "data.image_size=[8,12]", "data.workers=0"]
    return lambda *overrides: build("image_folder", *fixed, *overrides)


def images(loader):
    return torch.cat([batch.images for batch in loader])


def test_the_cache_gives_the_pixels_that_decoding_one_by_one_gives(build_photos):
    cached, streamed = (build_photos(f"data.cache={cache}") for cache in ("true", "false"))
    for split in ("train", "val", "test"):
        one, other = (images(data.loader(split, augment=False)) for data in (cached, streamed))
        assert torch.equal(one, other)
    assert images(cached.loader("val")).shape == (6, 3, 8, 12)


def test_a_split_above_the_limit_is_decoded_one_by_one_and_that_is_said(build_photos, caplog):
    data = build_photos("data.cache=true", "data.cache_limit_gb=1e-7")
    with caplog.at_level(logging.INFO):
        loader = data.loader("val")
    assert "val would take 0.0 GB of RAM, above data.cache_limit_gb=1e-07" in caplog.text
    assert not loader.batches.images.in_memory
    assert torch.equal(images(loader), images(build_photos("data.cache=true").loader("val")))


def test_images_in_memory_are_resized_where_the_model_wants_another_size(build):
    for cache in ("true", "false"):
        data = build("digits", "data.image_size=12", f"data.cache={cache}")
        assert next(iter(data.loader("val"))).images.shape == (64, 3, 12, 12)


def test_training_is_shuffled_and_augmented_and_evaluation_is_neither(build):
    data = build("digits")
    train = next(iter(data.train_dataloader()))
    plain = next(iter(data.loader("train", augment=False)))
    assert not torch.equal(train.labels, plain.labels)
    source = data.dataset.read().images["train"].source
    assert torch.allclose(plain.images[0], (source[0] / 255 - 0.305) / 0.376, atol=1e-6)
    assert len(data.train_dataloader()) == 1295 // 64
    assert len(data.loader("train", augment=False)) == -(-1295 // 64)


def test_setup_decodes_the_splits_of_its_stage_alone(build_photos, photos):
    (photos / "test" / "a" / "0.png").write_bytes(b"damaged")
    data = build_photos("data.cache=true")
    data.setup("fit")
    data.setup("validate")
    with pytest.raises(ValueError, match=r"1 images in test cannot be read"):
        data.setup("test")


def test_the_test_loop_reads_the_split_that_it_is_told(build_photos):
    data = build_photos()
    assert torch.equal(images(data.test_dataloader()), images(data.loader("test")))
    data.evaluated_split = "val"
    data.setup("test")
    assert torch.equal(images(data.test_dataloader()), images(data.loader("val")))


def damage(photos):
    """A file cut in half, one of 0 bytes and one of text, in train."""
    half, empty, text = (photos / "train" / name for name in ("a/0.png", "a/1.png", "b/2.png"))
    half.write_bytes(half.read_bytes()[:300])
    empty.write_bytes(b"")
    text.write_text("a note")
    return half, empty, text


@pytest.mark.parametrize("cache", ["true", "false"])
def test_unreadable_images_are_all_named_before_training(cache, build_photos, photos):
    damaged = damage(photos)
    with pytest.raises(ValueError, match=r"3 images in train cannot be read") as error:
        build_photos(f"data.cache={cache}").setup("fit")
    assert all(str(path) in str(error.value) for path in damaged)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cache", ["true", "false"])
def test_skipping_is_asked_for_counts_and_names(cache, build_photos, photos, caplog):
    damaged = damage(photos)
    data = build_photos(f"data.cache={cache}", "data.check=skip")
    data.setup("fit")
    assert data.counts == {"train": 3, "val": 6, "test": 6}
    assert all(f"skipped an image that cannot be read: {path}" in caplog.text for path in damaged)
    assert "skipped 3 of 6 images in train" in caplog.text
    labels = torch.cat([batch.labels for batch in data.loader("train", augment=False)])
    assert labels.tolist() == [0, 1, 1]


def test_many_unreadable_images_are_one_bearable_line(build_folder, tmp_path):
    data = build_folder(["train/a", "val/a"], 30)
    for path in (tmp_path / "train" / "a").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"30 images .* and 20 more; repair or remove them"):
        data.setup("fit")


def test_native_shapes_come_with_a_padding_mask(build_photos):
    data = build_photos("data.resize=native", "data.augment.scale=null", "data.pad_to=4")
    batch = next(iter(data.train_dataloader()))
    assert batch.images.shape == (6, 3, 8, 12)  # 12 x 16 inside 8 x 12 is 8 x 11
    assert batch.valid.flatten(1).sum(1).unique().tolist() == [8 * 11]


def test_the_description_is_plain_and_goes_through_a_safe_checkpoint(build, tmp_path):
    description = build("digits").description()
    normal = {"mean": [0.305] * 3, "std": [0.376] * 3}
    assert description == {"classes": list("0123456789"), "image_size": [8, 8], **normal}
    torch.save(description, tmp_path / "x.ckpt")
    assert torch.load(tmp_path / "x.ckpt", weights_only=True) == description


def test_batches_can_be_sent_to_a_worker_that_is_started_afresh(build_photos):
    batches = build_photos().train_dataloader().batches
    key = 0, torch.arange(2).numpy()
    assert torch.equal(pickle.loads(pickle.dumps(batches))[key].images, batches[key].images)


def test_workers_auto_is_a_number_from_1_to_8(build_photos):
    loader = build_photos("data.workers=auto").loader("val")
    assert 1 <= loader._loader.num_workers <= 8


@pytest.mark.parametrize(
    "override, message",
    [
        ("data.resize=stretch", "data.resize must be crop or native, got stretch"),
        ("data.check=maybe", "data.check must be refuse, skip or null, got maybe"),
        ("data.batch_size=0", "data.batch_size must be >= 1, got 0"),
        ("data.pad_to=0", "data.pad_to must be >= 1, got 0"),
        ("data.val_fraction=1", "data.val_fraction must be in [0, 1), got 1"),
        ("data.workers=-1", "data.workers must be >= 0 or auto, got -1"),
        ("data.image_size=[8]", "must be a side or [height, width] in pixels, got [8]"),
        ("data.image_size=0", "must be a side or [height, width] in pixels, got 0"),
        ("data.mean=[0.5]", "data.mean must be three numbers, one a channel, got [0.5]"),
        ("data.std=[1,0,1]", "data.std must be three numbers above 0, one a channel, got [1, 0"),
        ("data.resize=native", "data.resize=native keeps the shape of each image"),
        ("data.augment.erase=2", "augment.erase must be in [0, 1], got 2"),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(override, message, build_photos):
    with pytest.raises(Exception) as error:  # noqa: PT011 - Hydra wraps what a constructor raises
        build_photos(override)
    cause = error.value.__cause__ or error.value
    assert isinstance(cause, ValueError)
    assert message in str(cause)
    assert "\n" not in str(cause)
