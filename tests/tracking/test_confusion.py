import sys

import pytest
import torch
from PIL import Image

from vitrail.tracking.confusion import draw, per_class

CLASSES = ("cat", "dog", "owl", "yak")
#                         predicted as:  cat dog owl yak
CONFUSION = torch.tensor([[8, 1, 1, 0], [0, 5, 0, 0], [2, 0, 1, 3], [0, 0, 0, 0]])


def test_each_class_has_its_accuracy_and_what_it_is_taken_for():
    assert per_class(CONFUSION, CLASSES).to_csv(index=False) == (
        "class,count,correct,accuracy,most_confused_with\n"
        "cat,10,8,0.8,dog\n"
        "dog,5,5,1.0,\n"
        "owl,6,1,0.16666666666666666,yak\n"
        "yak,0,0,,\n"
    )


@pytest.mark.parametrize(
    "number", [2, 10, *(pytest.param(many, marks=pytest.mark.slow) for many in (200, 1000))]
)
def test_the_picture_grows_with_the_classes_until_it_is_large(tmp_path, number):
    confusion = torch.eye(number, dtype=torch.long) * 50
    confusion[0, 1] = 50
    path = tmp_path / "confusion.png"
    draw(path, confusion, [f"class {i}" for i in range(number)], title="test: 98.00%")
    with Image.open(path) as image:
        assert max(300, min(10 * number, 2000)) <= min(image.size) <= max(image.size) < 2500
    assert list(tmp_path.iterdir()) == [path]


def test_any_class_name_can_be_drawn(tmp_path):
    names = ["$a_b$", "猫", "a name that goes on and on and on", "\\frac"]
    draw(tmp_path / "confusion.png", CONFUSION, names, title="$x$")
    assert (tmp_path / "confusion.png").exists()


def test_drawing_leaves_the_pyplot_of_the_process_alone(tmp_path):
    draw(tmp_path / "confusion.png", CONFUSION, CLASSES, title="")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
