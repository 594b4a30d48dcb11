"""Beginning from weights that exist: what is adapted is said, what does not fit is refused."""

import logging

import pytest
import timm
import torch
from safetensors.torch import save_file

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


@pytest.mark.parametrize("wrap", ["plain", "checkpoint", "safetensors"])
def test_a_file_gives_equal_logits(tmp_path, wrap, caplog):
    teacher = small_vit(registers=2)
    weights = teacher.state_dict()
    path = tmp_path / ("teacher.safetensors" if wrap == "safetensors" else "teacher.pt")
    if wrap == "safetensors":
        save_file(weights, path)
    elif wrap == "checkpoint":
        inside = {f"network.{name}": value for name, value in weights.items()}
        torch.save({"state_dict": inside, "epoch": 3}, path)
    else:
        torch.save(weights, path)
    with caplog.at_level(logging.INFO):
        model = load(path, registers=2)
    images = torch.randn(2, 3, 24, 32)
    assert torch.equal(model(images), teacher(images))
    assert caplog.messages == [f"pretrained weights: {path}"]


def test_another_number_of_classes_keeps_the_head_fresh_and_says_so(tmp_path, caplog):
    teacher = small_vit()
    torch.save(teacher.state_dict(), tmp_path / "teacher.pt")
    with caplog.at_level(logging.INFO):
        model = load(tmp_path / "teacher.pt", num_classes=7)
    assert model.head.weight.shape == (7, 24)
    assert (model.head.bias == 0).all()
    for name, value in teacher.state_dict().items():
        if not name.startswith("head"):
            assert torch.equal(model.state_dict()[name], value)
    (line,) = caplog.messages
    assert line.endswith("fresh head (5 -> 7 classes)")


@pytest.mark.parametrize("prefix", [True, False])
def test_another_grid_resamples_the_positions_and_says_so(tmp_path, caplog, prefix):
    position = Learned(prefix=prefix)
    teacher = small_vit(image_size=32, position=position)
    torch.save(teacher.state_dict(), tmp_path / "teacher.pt")
    with caplog.at_level(logging.INFO):
        model = load(tmp_path / "teacher.pt", position=position)
    rows = int(prefix)
    expected = resample_table(teacher.pos_embed, Grid(4, 4, rows), Grid(3, 4, rows))
    assert torch.equal(model.pos_embed, expected)
    (line,) = caplog.messages
    assert line.endswith("positions resampled (4x4 -> 3x4)")


def test_a_grid_that_is_not_square_is_not_guessed(tmp_path):
    torch.save(small_vit(image_size=(24, 40)).state_dict(), tmp_path / "teacher.pt")
    with pytest.raises(ValueError, match=r"has 16 position rows, which are not 1 for prefix"):
        load(tmp_path / "teacher.pt", image_size=64)


def test_a_timm_name_loads_timms_weights(timms_weights, caplog):
    with caplog.at_level(logging.INFO):
        model = ViT(
            image_size=(64, 96),
            patch_size=16,
            dim=192,
            depth=12,
            heads=3,
            num_classes=5,
            pretrained="vit_tiny_patch16_224",
        )
    teacher = timms_weights("vit_tiny_patch16_224", pretrained=True)
    assert torch.equal(model.blocks[11].mlp.fc1.weight, teacher.blocks[11].mlp.fc1.weight)
    (line,) = caplog.messages
    assert "vit_tiny_patch16_224, fresh head (1000 -> 5 classes)" in line
    assert "positions resampled (14x14 -> 4x6)" in line


def test_weights_without_a_head_get_a_fresh_one(tmp_path, caplog):
    weights = small_vit().state_dict()
    torch.save({k: v for k, v in weights.items() if not k.startswith("head")}, tmp_path / "body.pt")
    with caplog.at_level(logging.INFO):
        model = load(tmp_path / "body.pt")
    assert torch.equal(model.norm.weight, weights["norm.weight"])
    assert "fresh head (0 -> 5 classes)" in caplog.text


@pytest.mark.parametrize("name", ["resnet10t", "swin_tiny_patch4_window7_224"])
@pytest.mark.usefixtures("timms_weights")
def test_a_timm_model_that_is_no_vision_transformer_is_refused(name):
    with pytest.raises(ValueError, match=f"pretrained={name} is not a VisionTransformer; see"):
        load(name)


@pytest.mark.usefixtures("timms_weights")
def test_weights_that_do_not_fit_list_what_differs():
    with pytest.raises(
        ValueError,
        match=r"does not fit this model: blocks\.10\..* is unknown; .* and \d+ more; choose",
    ) as error:
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
def test_each_difference_is_named(tmp_path, changes, difference):
    torch.save(small_vit().state_dict(), tmp_path / "teacher.pt")
    with pytest.raises(ValueError, match=difference):
        load(tmp_path / "teacher.pt", **changes)


def test_a_source_that_is_neither_file_nor_model_is_refused():
    with pytest.raises(ValueError, match="pretrained=vit_tny is neither a file nor a timm model"):
        load("vit_tny")


def test_without_a_network_the_way_out_is_a_file(monkeypatch):
    def create_model(*_, **__):
        raise OSError("We couldn't connect to the server")

    monkeypatch.setattr(timm, "create_model", create_model)
    with pytest.raises(
        ValueError, match=r"vit_tiny_patch16_224 could not be downloaded .*pretrained=PATH"
    ):
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
def test_a_file_that_holds_no_weights_is_refused_in_one_line(tmp_path, name, content):
    path = tmp_path / name
    torch.save(small_vit().state_dict(), path)
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
    ],
    ids=str,
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, content, complaint):
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=complaint):
        load(tmp_path / "other.pt")


def test_a_pickled_model_is_never_run(tmp_path):
    torch.save(small_vit(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        load(tmp_path / "model.pt")
