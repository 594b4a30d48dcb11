"""`eval.py` needs a checkpoint alone, and finds what training found."""

import csv
import shutil

import pytest
from PIL import Image

from .calls import read

DIFFERENT = {
    "mean, std and size": (
        "data.mean=[0.4,0.3,0.2]", "data.std=[0.2,0.3,0.4]", "data.image_size=[12,8]"
    ),
    "averaged weights": ("ema_decay=0.9",),
    "conv stem, registers and rope": (
        "model.stem=conv", "model.patch_size=4", "model.registers=2", "position=rope_mixed",
    ),
}  # fmt: skip


@pytest.fixture
def paint(tmp_path):
    """paint("train/a", 3, size=(20, 12)): so many images, of one colour a class, in images/."""

    def paint(name, count, size=(20, 12)):
        place = tmp_path / "images" / name
        place.mkdir(parents=True)
        shade = sum(map(ord, name)) * 37 % 256
        for number in range(count):
            Image.new("RGB", size, (shade, 9 * number, 128)).save(place / f"{number}.png")

    return paint


@pytest.fixture
def elsewhere(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("overrides", DIFFERENT.values(), ids=DIFFERENT)
def test_a_checkpoint_evaluates_as_it_was_validated(train, command, elsewhere, overrides):
    run = train(*overrides, "trainer.max_epochs=2")
    again = command("eval", f"ckpt_path={run.best}", place=elsewhere)
    assert (again.code, again.err) == (0, "")
    assert again.report == run.report
    assert (again.split, again.count) == ("test", 359)
    assert again.line("weights") == ("averaged (EMA)" if "ema_decay=0.9" in overrides else "raw")
    validated = command("eval", f"ckpt_path={run.best}", "split=val")
    [row] = [row for row in run.rows("val/acc") if row["epoch"] == str(read(run.best)["epoch"])]
    logged = (float(row["val/acc"]), float(row["val/loss"]), 143)
    assert validated.numbers == pytest.approx(logged, abs=1e-4)


def test_images_of_their_own_aspect_are_found_again_from_any_folder(
    train, command, tmp_path, elsewhere, paint
):
    for split, count in (("train", 6), ("val", 3)):
        for name, size in {"a": (20, 12), "b": (11, 23)}.items():
            paint(f"{split}/{name}", count, size)
    (tmp_path / "names.txt").write_text("b\na\n")
    run = train(
        "data=image_folder", "data.root=images", "data.classes=names.txt", "data.image_size=16",
        "data.resize=native", "data.pad_to=4", "data.augment.scale=null", "data.workers=0",
        "data.batch_size=4", "model.patch_size=4", "backend=sdpa_flash",
        "trainer.log_every_n_steps=1",
    )  # fmt: skip
    assert (run.code, run.err, run.count) == (0, "", 6)
    again = command("eval", f"ckpt_path={run.best}", place=elsewhere)
    assert (again.code, again.report) == (0, run.report)
    assert read(run.best)["hyper_parameters"]["classes"] == ["b", "a"]


def test_the_batch_size_changes_neither_accuracy_nor_loss(run, command):
    call = ("eval", f'ckpt_path="{run.best}"', "precision=32")
    whole = command(*call, "batch_size=359").numbers
    for size in (1, 7):
        assert command(*call, f"batch_size={size}").numbers == pytest.approx(whole, abs=1e-5)


def test_backend_precision_and_split_may_differ(run, command):
    other = command(
        "eval", f'ckpt_path="{run.best}"', "backend=reference", "precision=32", "split=train"
    )
    assert (other.code, other.split, other.count) == (0, "train", 1295)
    assert other.line("attention") == "reference in 1 layer"
    assert other.line("precision") == "32-true (asked for)"


def test_another_image_size_resamples_the_positions(run, command):
    for size in ("12", "[6,10]"):
        other = command("eval", f'ckpt_path="{run.best}"', f"image_size={size}")
        assert (other.code, other.err, other.count) == (0, "", 359)


def test_a_checkpoint_that_was_moved_evaluates_beside_its_new_place(run, command, tmp_path):
    moved = shutil.copy(run.best, tmp_path / "moved.ckpt")
    again = command("eval", f"ckpt_path={moved}")
    assert again.report == run.report
    assert again.folder.parent == tmp_path / "eval"


FOLDER = (
    "data=image_folder", "data.root=images", "data.image_size=8", "data.workers=0",
    "trainer.log_every_n_steps=1",
)  # fmt: skip


def test_a_folder_with_fewer_classes_is_mapped_by_name(train, command, paint, tmp_path):
    for name in ("a", "b", "c", "d"):
        paint(f"train/{name}", 4)
    run = train(
        *FOLDER, "trainer.max_epochs=30", "data.batch_size=4", "data.augment.scale=null",
        "data.val_fraction=0.25", "optim.lr=0.01",
    )  # fmt: skip
    for name in ("b", "d"):
        shutil.copytree(tmp_path / f"images/train/{name}", tmp_path / f"other/test/{name}")
    fewer = command("eval", f"ckpt_path={run.last}", "data.root=other")
    assert (fewer.code, fewer.count) == (0, 8)
    table = csv.DictReader((fewer.folder / "per_class.csv").read_text().splitlines())
    counts = {row["class"]: (row["count"], row["correct"]) for row in table}
    assert counts == {"a": ("0", "0"), "b": ("4", "4"), "c": ("0", "0"), "d": ("4", "4")}

    shutil.copytree(tmp_path / "other/test/b", tmp_path / "other/test/zebra")
    refused = command("eval", f"ckpt_path={run.last}", "data.root=other")
    assert refused.code == 1
    assert "zebra, not among the 4 classes of the model: a, b, c, d" in refused.err


def test_a_folder_too_small_to_hold_images_out_is_trained_on_all_the_same(train, paint):
    paint("cat", 1)
    paint("dog", 1)
    run = train(*FOLDER)
    assert run.code == 0
    assert "there is neither a test nor a val split, so nothing was evaluated" in run.out
    assert run.line("evaluate it again:")


def test_a_folder_without_splits_is_evaluated_as_a_whole_and_without_some_classes(
    train, command, paint, tmp_path
):
    paint("cat", 20)
    paint("dog", 20)
    run = train(*FOLDER)
    call = ("eval", f"ckpt_path={run.best}")
    held_out = command(*call)
    assert "split=all" in held_out.line("split")
    assert held_out.count == 4
    assert command(*call, "split=all").count == 40
    (tmp_path / "images/cat").rename(tmp_path / "images/lion")
    assert "data.classes=[" in command(*call, "split=all").err
    assert command(*call, "split=all", "data.classes=[dog]").count == 20
