"""Classes by name: restricting them, and mapping another folder onto a model's."""

import pytest

from vitrail.errors import UserError


@pytest.fixture
def folder(build, paint_folder, tmp_path):
    """`folder(*overrides)`: three classes, 10 images each in train and 2 in test."""
    paint_folder(tmp_path, [f"train/{name}" for name in ("cat", "dog", "eel")], 10)
    paint_folder(tmp_path, [f"test/{name}" for name in ("cat", "dog", "eel")], 2)
    return lambda *overrides: build(
        "image_folder", f"data.root={tmp_path}", "data.workers=0", *overrides
    )


def labels(data, split="test"):
    return [label for batch in data.loader(split) for label in batch.labels.tolist()]


@pytest.mark.parametrize("as_file", [True, False])
def test_a_list_of_names_or_a_file_of_them_restricts_and_orders_the_classes(
    as_file, folder, tmp_path
):
    (tmp_path / "two.txt").write_text("eel\n\ncat\n")
    data = folder(f"data.classes={tmp_path / 'two.txt' if as_file else '[eel,cat]'}")
    assert data.classes == ("eel", "cat")
    assert data.counts == {"train": 18, "val": 2, "test": 4}
    assert labels(data) == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "given, message",
    [
        ("two.txt", r"data.classes=two.txt does not exist; give a file"),
        ("[cat,cow]", r"data.classes names cow, not among the 3 classes of .*: cat"),
        ("[cat,dog,cat]", r"data.classes names cat twice"),
        ("[]", r"data.classes must name at least one class"),
    ],
)
def test_names_that_cannot_be_used_are_refused(given, message, folder):
    with pytest.raises(UserError, match=message):
        folder(f"data.classes={given}").setup("fit")


def test_a_model_with_more_classes_in_another_order_decides_the_numbers(folder):
    data = folder()
    data.select_classes(["eel", "ant", "dog", "cat"])
    data.setup("test")
    assert data.classes == ("eel", "ant", "dog", "cat")
    assert labels(data) == [3, 3, 2, 2, 0, 0]


def test_a_class_that_the_model_lacks_is_refused_by_name(folder):
    data = folder()
    data.select_classes(["cat", "dog"])
    with pytest.raises(
        ValueError, match=r"has eel, not among the 2 classes of the model: cat, dog"
    ):
        data.setup("test")


def test_a_class_that_the_model_lacks_can_be_left_out(folder):
    data = folder("data.classes=[dog,cat]")
    data.select_classes(["cat", "dog", "cow"])
    assert labels(data) == [0, 0, 1, 1]


def test_an_evaluation_folder_may_have_fewer_classes_than_the_list_of_training(folder):
    data = folder("data.classes=[cat,dog,eel,cow]")
    data.select_classes(["cat", "dog", "eel", "cow"])
    assert labels(data) == [0, 0, 1, 1, 2, 2]


def test_a_folder_with_none_of_the_classes_is_refused(folder):
    data = folder("data.classes=[cow]")
    data.select_classes(["cow"])
    with pytest.raises(ValueError, match=r"has no images of the classes cow"):
        data.setup("test")


def test_the_same_images_are_held_out_under_other_numbers_and_fewer_classes(folder):
    def held(data):
        images = data.loader("val").batches.images
        return {images.path(index) for index in range(len(images))}

    whole, renumbered, fewer = folder(), folder(), folder("data.classes=[dog]")
    renumbered.select_classes(["eel", "dog", "cat"])
    assert held(renumbered) == held(whole)
    assert held(fewer) == {path for path in held(whole) if "/dog/" in path}
