"""`bench=data`: equal images from all pipelines, whole batches in turn, and what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.bench.loading import DataBench, Epochs, PerSample, usual_transform
from vitrail.bench.report import Row, table_of
from vitrail.data.augment import UNCHANGED, Augment

# Nothing is augmented unless a test says so.
SYNTHETIC = (
    "data=synthetic", "data.image_size=[6,10]", "data.dataset.train=44", "data.batch_size=8",
    "data.dataset.num_classes=2", "data.augment.flip=false", "data.augment.crop_padding=null",
)  # fmt: skip
OFF = {
    name: getattr(UNCHANGED, name)
    for name in ("scale", "auto", "crop_padding", "padding_mode", "flip", "erase")
}


@pytest.fixture
def bench(build) -> Callable[..., DataBench]:
    """bench("data=…", workers=…): the measurement of a config, short unless told otherwise."""
    short = {"rounds": 3, "workers": [0]}
    return lambda *overrides, **keys: build("bench=data", *overrides, **(short | keys))


@pytest.fixture
def folder(tmp_path) -> tuple[str, ...]:
    """Overrides that take 20 pictures of noise from files; those of a class have one height."""
    random = np.random.default_rng(0)
    for number in range(20):
        name = "ab"[number % 2]
        place = tmp_path / "images" / name / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (16 + 8 * (name == "b"), 24, 3), np.uint8)
        Image.fromarray(pixels).save(place)
    return (
        "data=image_folder", f"data.root={tmp_path / 'images'}", "data.batch_size=4",
        "data.image_size=12", "data.val_fraction=0", "data.augment.scale=null",
        "data.augment.auto=null", "data.augment.flip=false",
    )  # fmt: skip


def rows_of(bench: DataBench) -> list[Row]:
    return [row for cell in bench.cells() for row in bench.measure(cell)]


def in_order(dataset: PerSample) -> torch.Tensor:
    return torch.stack([dataset[index][0] for index in range(len(dataset))])


def test_both_serve_the_same_images_in_memory_and_labels(bench):
    loaders = bench(*SYNTHETIC).pipelines(0)
    assert loaders.keys() == {"torchvision", "vitrail"}, "cached or not is one in memory, at size"
    theirs = loaders["torchvision"].dataset
    ours = loaders["vitrail"].batches[0, np.arange(len(theirs))]
    assert ours.images.shape == (40, 3, 6, 10)
    torch.testing.assert_close(in_order(theirs), ours.images, atol=1e-5, rtol=0)
    assert [theirs[index][1] for index in range(40)] == ours.labels.tolist()


def test_both_serve_the_same_files_but_for_the_rounding_of_a_resize(bench, folder):
    loaders = bench(*folder).pipelines(0)
    theirs = loaders["torchvision"].dataset
    every = np.arange(len(theirs))
    cached = loaders["vitrail cached"].batches[0, every].images
    assert torch.equal(cached, loaders["vitrail"].batches[0, every].images)
    # Theirs resizes and then crops, on another library's pixels; normalised by 0.225, a grey level
    # is 0.017, and noise is the worst that can be resized.
    assert (in_order(theirs) - cached).abs().mean() < 0.2
    assert (cached.roll(1, 0) - cached).abs().mean() > 0.5


@pytest.mark.parametrize(
    "knobs, names",
    [
        ({}, []),
        ({"crop_padding": 2}, ["RandomCrop"]),
        ({"flip": True, "erase": 0.5}, ["RandomHorizontalFlip", "RandomErasing"]),
        ({"auto": "randaugment"}, ["RandAugment"]),
        ({"scale": [0.5, 1.0], "auto": "trivial"}, ["RandomResizedCrop", "TrivialAugmentWide"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("size", [(12, 12), (6, 10)], ids=str)
def test_each_knob_has_its_transform_and_sizes_come_out_right(bench, knobs, names, sized, size):
    augment = Augment(**OFF | knobs)
    data, _ = bench(*SYNTHETIC, f"data.image_size=[{size[0]},{size[1]}]")._read
    transform = usual_transform(augment, data, sized=sized)
    steps = [type(step).__name__ for step in transform.transforms]
    resizing = {"Resize", "CenterCrop"}
    assert [name for name in steps if name not in {*resizing, "ToTensor", "Normalize"}] == names
    assert bool(resizing & {*steps}) == (not sized and "scale" not in knobs)
    height, width = size if sized else (20, 30)
    image = transform(Image.fromarray(np.zeros((height, width, 3), np.uint8)))
    assert (image.shape, image.dtype) == ((3, *size), torch.float32)


def test_an_epoch_is_every_image_of_whole_batches_in_another_order_each_time(bench):
    loaders = bench(*SYNTHETIC, "data.val_fraction=0", images=30).pipelines(0)
    for loader in loaders.values():
        seen = []
        taken = loader.__class__.__iter__

        def watched(self, seen=seen, taken=taken):
            for batch in taken(self):
                seen.append(batch[0].sum((1, 2, 3)))
                yield batch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loader.__class__, "__iter__", watched)
            epochs = Epochs(loader)
            epochs()
            epochs()
        assert [len(batch) for batch in seen] == [8] * 6, "8 x 3 of the 30 that may be taken"
        first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
        assert not torch.equal(first, second)
        torch.testing.assert_close(first.sort().values, second.sort().values)


def test_images_are_spread_over_all_of_the_dataset_and_unreadable_ones_left_out(
    bench, folder, tmp_path
):
    _, images = bench(*folder, images=8)._read
    assert images.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    (tmp_path / "images/a/0.png").write_bytes(b"")
    _, images = bench(*folder)._read
    assert len(images) == 16
    assert all("/0.png" not in images.path(index) for index in range(16))


def test_processes_end_with_the_cell(bench):
    epochs = Epochs(bench(*SYNTHETIC).pipelines(1)["vitrail"])
    epochs()
    (worker,) = epochs.loader._iterator._workers
    assert worker.is_alive()
    epochs.end()
    assert not worker.is_alive()
    assert epochs.loader._iterator is None


def test_from_files_all_three_are_measured_against_torchvision(bench, folder):
    measurement = bench(*folder, workers=[0, 1])
    rows = rows_of(measurement)
    assert [row["workers"] for row in rows] == [0, 0, 0, 1, 1, 1]
    for part in (rows[:3], rows[3:]):
        assert {row["pipeline"] for row in part} == {"vitrail cached", "vitrail", "torchvision"}
        speeds = [row["images_per_second"] for row in part]
        assert speeds == sorted(speeds, reverse=True)
        for row in part:
            low, high = row["images_per_second_p10"], row["images_per_second_p90"]
            assert low <= row["images_per_second"] <= high
            assert (row["images"], row["rounds"], row["baseline"]) == (20, 3, "torchvision")
    _, [chart] = measurement.summary(table_of(rows))
    assert chart.points().groupby("line")["x"].apply(list).tolist() == [[0, 1]] * 3


def test_epochs_take_turns_and_only_the_clock_counts(bench, folder, monkeypatch):
    now, order = [0.0], []

    def epoch(self) -> None:
        ours = not isinstance(self.loader, torch.utils.data.DataLoader)
        order.append("ours" if ours else "theirs")
        now[0] += (0.25 if ours else 1.0) * (10.0 if len(order) <= 3 else 1.0)

    monkeypatch.setattr(Epochs, "__call__", epoch)
    rows = rows_of(bench(*folder, rounds=4, seconds=99.0, clock=lambda device: now[0]))
    assert order == ["theirs", "ours", "ours"] * 5, "one round to warm up and four that count"
    assert [row["images_per_second"] for row in rows] == [80.0, 80.0, 20.0]
    assert [row["verdict"] for row in rows[:2]] == ["faster", "faster"]


@pytest.mark.parametrize(
    "overrides, changes, message",
    [
        ([], {"workers": []}, r"bench.workers=\[\] leaves nothing to measure"),
        ([], {"workers": [1, -1]}, r"bench.workers must be >= 0, got \[1, -1\]"),
        ([], {"rounds": 2}, "bench.rounds must be >= 3, got 2"),
        (["data.resize=native"], {}, "takes images of one size, got data.resize=native"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_read(
    bench, overrides, changes, message
):
    with pytest.raises(ValueError, match=message):
        bench(*overrides, **changes)


def test_more_than_the_images_make_no_batch(bench):
    with pytest.raises(ValueError, match=r"data.batch_size must be <= 40, got 64"):
        rows_of(bench(*SYNTHETIC, "data.batch_size=64"))
