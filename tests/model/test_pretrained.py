"""Beginning from weights that exist: what is adapted is said, what does not fit is refused."""

import logging
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from vitrail.attention import Grid
from vitrail.attention.positions.learned import Learned, resample_table
from vitrail.attention.positions.rope import Rope
from vitrail.model import ViT

from .small import SIZES, shake, small_vit


def load(source, **changes) -> ViT:
    return ViT(**(SIZES | changes), pretrained=str(source)).eval()


@pytest.fixture
def timms_weights(monkeypatch):
    """timm's models with weights of our own making, as if they had been downloaded."""
    build = timm.create_model

    def create_model(name, pretrained):
        assert pretrained
        torch.manual_seed(1)
        model = build(name, pretrained=False)
        shake(model)
        return model

    monkeypatch.setattr(timm, "create_model", create_model)
    return create_model


@pytest.fixture
def saved(tmp_path):
    """A function that saves weights, or anything, and returns where."""

    def save(content: object, path: str = "teacher.pt") -> Path:
        torch.save(content, tmp_path / path)
        return tmp_path / path

    return save


@pytest.fixture
def said(caplog):
    """The log, at the level of information."""
    with caplog.at_level(logging.INFO):
        yield caplog


@pytest.mark.parametrize("wrap", ["plain", "checkpoint", "safetensors"])
def test_a_file_gives_equal_logits(tmp_path, saved, said, wrap):
    teacher = small_vit(registers=2)
    weights = teacher.state_dict()
    if wrap == "safetensors":
        path = tmp_path / "teacher.safetensors"
        save_file(weights, path)
    else:
        inside = {f"network.{name}": value for name, value in weights.items()}
        path = saved({"state_dict": inside, "epoch": 3} if wrap == "checkpoint" else weights)
    images = torch.randn(2, 3, 24, 32)
    assert torch.equal(load(path, registers=2)(images), teacher(images))
    assert said.messages == [f"pretrained weights: {path}"]


@pytest.mark.parametrize("head, lost", [(5, "5 -> 7"), (0, "0 -> 7")])
def test_another_number_of_classes_or_none_keeps_the_head_fresh_and_says_so(
    saved, said, head, lost
):
    weights = small_vit().state_dict()
    body = {name: value for name, value in weights.items() if not name.startswith("head")}
    model = load(saved(weights if head else body), num_classes=7)
    assert model.head.weight.shape == (7, 24)
    assert (model.head.bias == 0).all()
    for name, value in body.items():
        assert torch.equal(model.state_dict()[name], value)
    (line,) = said.messages
    assert line.endswith(f"fresh head ({lost} classes)")


@pytest.mark.parametrize("prefix", [True, False])
def test_another_grid_resamples_the_positions_and_says_so(saved, said, prefix):
    position = Learned(prefix=prefix)
    teacher = small_vit(image_size=32, position=position)
    model = load(saved(teacher.state_dict()), position=position)
    expected = resample_table(teacher.pos_embed, Grid(4, 4, int(prefix)), Grid(3, 4, int(prefix)))
    assert torch.equal(model.pos_embed, expected)
    (line,) = said.messages
    assert line.endswith("positions resampled (4x4 -> 3x4)")


def test_a_grid_that_is_not_square_is_not_guessed(saved):
    path = saved(small_vit(image_size=(24, 40)).state_dict())
    with pytest.raises(ValueError, match=r"has 16 position rows, which are not 1 for prefix"):
        load(path, image_size=64)


def test_a_timm_name_loads_timms_weights(timms_weights, said):
    sizes = {"image_size": (64, 96), "patch_size": 16, "dim": 192, "depth": 12}
    model = load("vit_tiny_patch16_224", **sizes)
    teacher = timms_weights("vit_tiny_patch16_224", pretrained=True)
    assert torch.equal(model.blocks[11].mlp.fc1.weight, teacher.blocks[11].mlp.fc1.weight)
    (line,) = said.messages
    assert "vit_tiny_patch16_224, fresh head (1000 -> 5 classes)" in line
    assert "positions resampled (14x14 -> 4x6)" in line


@pytest.mark.parametrize("name", ["resnet10t", "swin_tiny_patch4_window7_224"])
@pytest.mark.usefixtures("timms_weights")
def test_a_timm_model_that_is_no_vision_transformer_is_refused(name):
    with pytest.raises(ValueError, match=f"pretrained={name} is not a VisionTransformer; see"):
        load(name)


@pytest.mark.usefixtures("timms_weights")
def test_weights_that_do_not_fit_list_what_differs():
    message = r"does not fit this model: blocks\.10\..* is unknown; .* and \d+ more; choose"
    with pytest.raises(ValueError, match=message) as error:
        load("vit_tiny_patch16_224")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes, difference",
    [
        ({"registers": 2}, "position rows|reg_token is missing"),
        ({"qk_norm": True}, r"blocks\.0\.attn\.k_norm\.bias is missing"),
        ({"depth": 1}, r"blocks\.1\.attn\.proj\.bias is unknown"),
        ({"pool": "avg"}, r"fc_norm\.bias is missing"),
        ({"dim": 48}, r"has shape \(.*24.*\), not \(.*48.*\)"),
        ({"patch_size": 4, "image_size": (12, 16)}, r"patch_embed\.proj\.weight has shape"),
        ({"position": Rope()}, "pos_embed is unknown"),
        ({"mlp": "swiglu"}, r"fc1_g\.bias is missing"),
    ],
    ids=str,
)
def test_each_difference_is_named(saved, changes, difference):
    path = saved(small_vit().state_dict())
    with pytest.raises(ValueError, match=difference):
        load(path, **changes)


def test_a_source_that_is_neither_file_nor_model_is_refused():
    with pytest.raises(ValueError, match="pretrained=vit_tny is neither a file nor a timm model"):
        load("vit_tny")


def test_without_a_network_the_way_out_is_a_file(monkeypatch):
    def create_model(*_, **__):
        raise OSError("We couldn't connect to the server")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(ValueError, match=r"_224 could not be downloaded .*pretrained=PATH"):
        load("vit_tiny_patch16_224")


@pytest.mark.parametrize(
    "name, content",
    [
        ("text.pt", b"hello"),
        ("page.pt", b"<!DOCTYPE html>"),
        ("empty.pt", b""),
        ("binary.bin", bytes(range(256))),
        ("text.safetensors", b"hello"),
        ("cut.zip", b"PK\x03\x04 cut short"),
        ("half.pt", None),  # the first half of a real one
    ],
)
def test_a_file_that_holds_no_weights_is_refused_in_one_line(saved, name, content):
    path = saved(small_vit().state_dict(), name)
    path.write_bytes(path.read_bytes()[:20_000] if content is None else content)
    with pytest.raises(ValueError, match="cannot be read as weights") as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content, complaint",
    [
        ([1, 2], "holds no state dict"),
        ({"state_dict": [1]}, "holds no state dict"),
        ({"head.weight": 1}, "holds no state dict"),
        ({"conv1.weight": torch.zeros(3)}, r"has no patch_embed\.proj\.weight"),
        (nn.Linear(2, 2), "cannot be read as weights"),  # a pickled model is never run
    ],
    ids=str,
)
def test_a_file_that_holds_something_else_is_refused(saved, content, complaint):
    path = saved(content)
    with pytest.raises(ValueError, match=complaint):
        load(path)
