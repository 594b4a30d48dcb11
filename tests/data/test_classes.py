"""Classes by name: restricting them, and mapping another folder onto a model's."""

import pytest

from vitrail.errors import UserError


@pytest.fixture
def folder(build_folder, paint_folder, tmp_path):
    """`folder(*overrides)`: three classes, 10 images each in train and 2 in test."""
    paint_folder(tmp_path, ["test/cat", "test/dog", "test/eel"], 2)
    return lambda *overrides: build_folder(["train/cat", "train/dog", "train/eel"], 10, *overrides)


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


@pytest.mark.parametrize(
    "classes, model, expected",
    [
        ("null", ["eel", "ant", "dog", "cat"], [3, 3, 2, 2, 0, 0]),
        ("[dog,cat]", ["cat", "dog", "cow"], [0, 0, 1, 1]),
        ("[cat,dog,eel,cow]", ["cat", "dog", "eel", "cow"], [0, 0, 1, 1, 2, 2]),
    ],
    ids=["more and in another order", "one left out", "fewer than the list of training"],
)
def test_a_model_decides_the_numbers_of_the_classes(classes, model, expected, folder):
    data = folder(f"data.classes={classes}")
    data.select_classes(model)
    assert data.classes == tuple(model)
    assert labels(data) == expected


@pytest.mark.parametrize(
    "classes, model, message",
    [
        ("null", ["cat", "dog"], r"has eel, not among the 2 classes of the model: cat, dog"),
        ("[cow]", ["cow"], r"has no images of the classes cow"),
    ],
)
def test_a_class_that_the_model_lacks_and_a_folder_with_none_are_refused(
    classes, model, message, folder
):
    data = folder(f"data.classes={classes}")
    data.select_classes(model)
    with pytest.raises(UserError, match=message):
        data.setup("test")


def test_the_same_images_are_held_out_under_other_numbers_and_fewer_classes(folder):
    def held(data):
        images = data.loader("val").batches.images
        return {images.path(index) for index in range(len(images))}

    whole, renumbered, fewer = folder(), folder(), folder("data.classes=[dog]")
    renumbered.select_classes(["eel", "dog", "cat"])
    assert held(renumbered) == held(whole)
    assert held(fewer) == {path for path in held(whole) if "/dog/" in path}
