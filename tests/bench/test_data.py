"""`bench=data`: equal images from all pipelines, whole batches in turn, reasons, and sentences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig
from PIL import Image

from vitrail.bench.data import KNOBS, DataBench
from vitrail.bench.data_findings import findings
from vitrail.bench.measurement import Context, Row
from vitrail.bench.per_sample import PerSample, usual
from vitrail.bench.pipelines import Epochs, NoPipeline, Pipelines
from vitrail.data.augment import UNCHANGED, Augment
from vitrail.startup import configs

SYNTHETIC = (
    "data=synthetic", "data.image_size=[6,10]", "data.dataset.train=44", "data.batch_size=8",
    "data.dataset.num_classes=2",
)  # fmt: skip
OFF = {knob: getattr(UNCHANGED, knob) for knob in KNOBS}
ROUNDS = {"rounds": 3, "workers": [0], "augments": ["none"]}


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(configs()), version_base="1.3"):
        return compose("bench", ["bench=data", *overrides])


@pytest.fixture
def bench(tmp_path) -> Callable[..., DataBench]:
    """bench("data=…", workers=…): the measurement of a config, short unless told otherwise."""

    def build(*overrides: str, **changes) -> DataBench:
        with initialize_config_dir(str(configs()), version_base="1.3"):
            config = compose("bench", ["bench=data", *overrides])
            return instantiate(config.bench, _partial_=True, _convert_="all")(
                context=Context(config, tmp_path), **(ROUNDS | changes)
            )

    return build


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
        "data.image_size=12", "data.val_fraction=0",
    )  # fmt: skip


def rows_of(bench: DataBench) -> list[Row]:
    return [row for cell in bench.cells() for row in bench.measure(cell)]


def pipelines(*overrides: str, most: int = 2048) -> Pipelines:
    return Pipelines.of(composed(*overrides).data, most)


def in_order(dataset: PerSample) -> torch.Tensor:
    return torch.stack([dataset[index][0] for index in range(len(dataset))])


def test_both_serve_the_same_images_in_memory_and_labels():
    served = pipelines(*SYNTHETIC)
    theirs = served.torchvision(UNCHANGED, 0).dataset
    ours = served.vitrail(UNCHANGED, 0, cached=True).batches[0, np.arange(len(theirs))]
    assert ours.images.shape == (40, 3, 6, 10)
    torch.testing.assert_close(in_order(theirs), ours.images, atol=1e-5, rtol=0)
    assert [theirs[index][1] for index in range(40)] == ours.labels.tolist()


def test_both_serve_the_same_files_but_for_the_rounding_of_a_resize(folder):
    served = pipelines(*folder)
    theirs = served.torchvision(UNCHANGED, 0).dataset
    every = np.arange(len(theirs))
    cached = served.vitrail(UNCHANGED, 0, cached=True).batches[0, every].images
    files = served.vitrail(UNCHANGED, 0, cached=False).batches[0, every].images
    assert torch.equal(cached, files)
    # Theirs resizes and then crops, on another library's pixels; normalised by 0.225, a grey level
    # is 0.017, and noise is the worst that can be resized.
    assert (in_order(theirs) - cached).abs().mean() < 0.2
    unlike = cached.roll(1, 0)
    assert (unlike - cached).abs().mean() > 0.5


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
def test_each_knob_has_its_transform_and_sizes_come_out_right(knobs, names, sized, size):
    augment = Augment(**OFF | knobs)
    transform = usual(augment, size=size, sized=sized, mean=(0.5,) * 3, std=(0.5,) * 3)
    steps = [type(step).__name__ for step in transform.transforms]
    resizing = {"Resize", "CenterCrop"}
    assert [name for name in steps if name not in {*resizing, "ToTensor", "Normalize"}] == names
    assert bool(resizing & {*steps}) == (not sized and "scale" not in knobs)
    height, width = size if sized else (20, 30)
    image = transform(Image.fromarray(np.zeros((height, width, 3), np.uint8)))
    assert (image.shape, image.dtype) == ((3, *size), torch.float32)


def test_an_epoch_is_every_image_of_whole_batches_in_another_order_each_time():
    served = pipelines(*SYNTHETIC, "data.val_fraction=0", most=30)
    assert len(served.images) == 24, "8 x 3 of the 30 that may be taken"
    for loader in (served.vitrail(UNCHANGED, 0, cached=True), served.torchvision(UNCHANGED, 0)):
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
        assert epochs.images == 24
        assert [len(batch) for batch in seen] == [8] * 6
        first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
        assert not torch.equal(first, second)
        torch.testing.assert_close(first.sort().values, second.sort().values)


def test_images_are_spread_over_all_of_the_dataset(folder):
    assert pipelines(*folder, most=8).images.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_files_that_cannot_be_read_are_left_out(folder, tmp_path):
    (tmp_path / "images/a/0.png").write_bytes(b"")
    served = pipelines(*folder)
    assert len(served.images) == 16
    assert all("/0.png" not in served.images.path(index) for index in range(16))


def test_processes_end_with_the_cell():
    epochs = Epochs(pipelines(*SYNTHETIC).vitrail(UNCHANGED, 1, cached=True))
    epochs()
    (worker,) = epochs.loader._iterator._workers
    assert worker.is_alive()
    epochs.end()
    assert not worker.is_alive()
    assert epochs.loader._iterator is None


def test_from_files_all_three_are_measured_with_the_same_columns(bench, folder):
    measurement = bench(*folder, augments=["own", "flip"], recipes={"flip": {"flip": True}})
    assert [cell.title for cell in measurement.cells()] == [
        "ImageFolder, 12 px, own, 0 workers", "ImageFolder, 12 px, flip, 0 workers",
    ]  # fmt: skip
    rows = rows_of(measurement)
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert {*measurement.keys, *measurement.columns, "refused"} <= {*rows[0]}
    for part in (rows[:3], rows[3:]):
        assert {(row["pipeline"], row["cached"]) for row in part} == {
            ("vitrail", True), ("vitrail", False), ("torchvision", False),
        }  # fmt: skip
        speeds = [row["images_per_second"] for row in part]
        assert speeds == sorted(speeds, reverse=True)
        for row in part:
            low, high = row["images_per_second_p10"], row["images_per_second_p90"]
            assert low <= row["images_per_second"] <= high
            assert (row["images"], row["rounds"], row["refused"]) == (20, 3, "")


def test_a_pipeline_that_there_is_not_has_a_reason(bench, folder):
    refused = {row["pipeline"]: row for row in rows_of(bench(*SYNTHETIC)) if row["refused"]}
    assert refused.keys() == {"vitrail"}
    assert refused["vitrail"]["images_per_second"] is None
    assert refused["vitrail"]["refused"].startswith("cached or not is one here")
    native = (*folder, "data.resize=native", "data.augment.scale=null")
    said = {(row["pipeline"], row["cached"]): row["refused"] for row in rows_of(bench(*native))}
    assert said["vitrail", False] == ""
    assert said["vitrail", True].endswith("which no cache has")
    assert said["torchvision", False] == "it has no batches of images in shapes of their own"
    with pytest.raises(NoPipeline, match="no random resized crop has"):
        pipelines(*native).vitrail(Augment(**OFF | {"scale": [0.5, 1.0]}), 0, cached=False)


def test_images_that_must_be_resized_gain_from_a_cache_even_in_memory(bench):
    rows = rows_of(bench(*SYNTHETIC, "data.dataset.image_size=20"))
    assert [row["refused"] for row in rows] == ["", "", ""]


def test_epochs_take_turns_and_only_the_clock_counts(bench, folder, monkeypatch):
    now, order = [0.0], []

    def epoch(self) -> None:
        ours = not isinstance(self.loader, torch.utils.data.DataLoader)
        order.append("ours" if ours else "theirs")
        now[0] += (0.25 if ours else 1.0) * (10.0 if len(order) <= 3 else 1.0)
        self.images = 20

    monkeypatch.setattr(Epochs, "__call__", epoch)
    measurement = bench(*folder, rounds=4, seconds=99.0, read=lambda device: now[0])
    rows = rows_of(measurement)
    assert order == ["ours", "ours", "theirs"] * 5, "one round to warm up and four that count"
    assert [(row["pipeline"], row["images_per_second"]) for row in rows] == [
        ("vitrail", 80.0), ("vitrail", 80.0), ("torchvision", 20.0),
    ]  # fmt: skip


def test_datasets_are_choices_of_the_group(bench):
    measurement = bench(datasets=["digits", "synthetic"], workers=[0, 2])
    assert [cell.title for cell in measurement.cells()] == [
        "Digits, 8 px, none, 0 workers", "Digits, 8 px, none, 2 workers",
        "Synthetic, 32 px, none, 0 workers", "Synthetic, 32 px, none, 2 workers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"workers": []}, r"bench.workers=\[\] leaves nothing"),
        ({"datasets": []}, r"bench.datasets=\[\] leaves nothing"),
        ({"augments": []}, r"bench.augments=\[\] leaves nothing"),
        ({"workers": [1, -1]}, r"bench.workers=\[1, -1\] has fewer than 0"),
        ({"rounds": 2}, "bench.rounds=2 shows no noise; use 3 or more"),
        ({"seconds": 0}, "bench.seconds=0 measures nothing; use above 0"),
        ({"augments": ["flip"]}, "bench.augments has flip; use own, none, crop_flip, randaugment"),
        ({"recipes": {"none": {"flop": True}}}, "bench.recipes.none has flop; its knobs are scale"),
        (
            {"recipes": {"none": {"auto": "magic"}}},
            "augment.auto must be .*, got magic",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_before_anything_is_read(bench, changes, message):
    with pytest.raises(ValueError, match=message):
        bench(**changes)


def test_more_than_the_images_make_no_batch():
    with pytest.raises(ValueError, match=r"data.batch_size=64 is more than the 40 training"):
        pipelines(*SYNTHETIC, "data.batch_size=64")


def row(pipeline: str, speed: float, workers: int = 1, *, cached: bool = False, **changes) -> Row:
    """A speed with a band of 10 % to either side."""
    return {
        "pipeline": pipeline, "cached": cached, "dataset": "Digits", "image_size": "8",
        "augment": "own", "workers": workers, "images_per_second": speed, "refused": "",
        "images_per_second_p10": 0.9 * speed, "images_per_second_p90": 1.1 * speed, **changes,
    }  # fmt: skip


def test_a_sentence_gives_ratios_and_calls_equal_what_noise_hides():
    rows = [
        row("torchvision", 100.0), row("vitrail", 110.0), row("vitrail", 400.0, cached=True),
        row("vitrail", 500.0, 2, cached=True),
    ]  # fmt: skip
    told = findings([*rows, row("torchvision", 1.0, 2, refused="not here")])
    both, alone = told.sentences
    assert both == (
        "Digits at 8, own, 1 worker, images a second: vitrail from a cache 400 (4 times "
        "torchvision's), vitrail 110 (equal to torchvision's within noise), torchvision 100."
    )
    assert alone == "Digits at 8, own, 2 workers, images a second: vitrail from a cache 500."
    (chart,) = told.charts
    line = chart.lines["vitrail from a cache"]
    assert [(point.x, point.y, point.low) for point in line] == [(1, 400, 360), (2, 500, 450)]
    assert len(told.figures) == 4
    assert told.figures["images_per_second/Digits/8/own/2_workers/vitrail_cached"] == 500.0


def test_one_number_of_workers_makes_no_chart():
    assert not findings([row("torchvision", 100.0), row("vitrail", 110.0)]).charts
