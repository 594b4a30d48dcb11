"""Which images are evaluated, where a folder is not split as one might think."""

import pytest
from PIL import Image

SMALL_IMAGES = ("data=image_folder", "data.image_size=8", "trainer.log_every_n_steps=1")


@pytest.fixture
def folder(tmp_path):
    """Two classes, `images(n)` of them each, without splits."""

    def images(number: int):
        for name, colour in (("cat", "red"), ("dog", "blue")):
            for index in range(number):
                path = tmp_path / "photos" / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), colour).save(path)
        return tmp_path / "photos"

    return images


def test_a_folder_too_small_to_hold_images_out_is_trained_on_all_the_same(train, folder):
    run = train(*SMALL_IMAGES, f"data.root={folder(1)}")
    assert run.code == 0
    assert "there is neither a test nor a val split, so nothing was evaluated" in run.out
    assert run.line("evaluate it again:")


def test_a_folder_without_splits_says_how_to_evaluate_all_of_it(train, command, folder):
    run = train(*SMALL_IMAGES, f"data.root={folder(20)}")
    held_out = command("eval", f"ckpt_path={run.best}")
    assert "split=all" in held_out.line("split")
    assert held_out.out.rstrip().endswith("4 images")
    whole = command("eval", f"ckpt_path={run.best}", "split=all")
    assert whole.out.rstrip().endswith("40 images")


def test_classes_that_the_model_does_not_know_can_be_left_out(train, command, folder):
    photos = folder(20)
    run = train(*SMALL_IMAGES, f"data.root={photos}")
    (photos / "cat").rename(photos / "lion")
    call = ("eval", f"ckpt_path={run.best}", f"data.root={photos}", "split=all")
    assert "data.classes=[" in command(*call).err
    assert command(*call, "data.classes=[dog]").out.rstrip().endswith("20 images")
