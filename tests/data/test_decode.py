"""From any image file to RGB pixels, or to an error that names it."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from vitrail.data.decode import UnreadableImage, check_file, decode


def as_tensor(image: Image.Image | np.ndarray) -> torch.Tensor:
    """(h, w, 3) -> (3, h, w)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.fixture
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_stands_as_its_orientation_says(orientation, photo, tmp_path):
    turned = {
        1: photo,
        2: photo[:, ::-1],
        3: photo[::-1, ::-1],
        4: photo[::-1],
        5: photo.transpose(1, 0, 2),
        6: photo.transpose(1, 0, 2)[:, ::-1],
        7: photo.transpose(1, 0, 2)[::-1, ::-1],
        8: photo.transpose(1, 0, 2)[::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(photo).save(tmp_path / "tagged.png", exif=exif)
    assert torch.equal(decode(str(tmp_path / "tagged.png")), as_tensor(turned))


def saved(image: Image.Image, path, **options) -> torch.Tensor:
    image.save(path, **options)
    return decode(str(path))


def test_grey_is_copied_to_three_channels_of_eight_bits(photo, tmp_path):
    grey = np.ascontiguousarray(photo[:, :, 0])
    expected = torch.from_numpy(grey).expand(3, -1, -1)
    assert torch.equal(saved(Image.fromarray(grey), tmp_path / "grey.png"), expected)
    deep = Image.fromarray(grey.astype(np.uint16) * 256 + 77)  # of 16 bits the upper eight count
    assert torch.equal(saved(deep, tmp_path / "deep.png"), expected)
    assert torch.equal(saved(deep, tmp_path / "deep.tif"), expected)
    bits = saved(Image.fromarray(grey > 127), tmp_path / "bits.png")
    assert torch.equal(bits, (expected > 127) * torch.tensor(255, dtype=torch.uint8))


def test_a_palette_is_looked_up(photo, tmp_path):
    palette = Image.fromarray(photo).quantize(16)
    expected = as_tensor(palette.convert("RGB"))
    assert torch.equal(saved(palette, tmp_path / "palette.png"), expected)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_lie_on_white_whatever_is_hidden_in_them(mode, photo, tmp_path):
    image = Image.fromarray(photo).convert(mode)
    image.putalpha(0)
    assert saved(image, tmp_path / "clear.png").unique().tolist() == [255]
    image.putalpha(255)
    opaque = as_tensor(image.convert("RGB"))
    assert torch.equal(saved(image, tmp_path / "opaque.png"), opaque)
    black = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert saved(black, tmp_path / "half.png").unique().tolist() == [127]


def test_the_transparent_entry_of_a_palette_is_white(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    pixels = saved(image, tmp_path / "palette.png", transparency=0)
    assert pixels[:, 0].T.tolist() == [[255, 255, 255], [40, 50, 60]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [True, False])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_jpeg_has_the_pixels_that_pillow_gives_it(
    orientation, mode, progressive, subsampling, paint, tmp_path
):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"progressive": progressive, "subsampling": subsampling, "exif": exif}
    path = tmp_path / "photo.jpg"
    Image.open(paint(tmp_path / "photo.png", 37, 50)).convert(mode).save(path, **options)
    pillow = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    assert torch.equal(decode(str(path)), as_tensor(pillow))


def test_cmyk_becomes_rgb(tmp_path):
    pixels = saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), tmp_path / "red.jpg", quality=100)
    red, green, blue = pixels.float().mean((1, 2))
    assert red > 250
    assert max(green, blue) < 5


def test_the_first_frame_of_a_film_is_taken(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    pixels = saved(frames[0], tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    assert pixels[:, 0, 0].tolist() == [255, 0, 0]


def test_floating_point_pixels_are_refused(tmp_path):
    Image.new("F", (4, 4)).save(tmp_path / "depth.tif")
    with pytest.raises(UnreadableImage, match=r"depth.tif \(its floating-point pixels"):
        decode(str(tmp_path / "depth.tif"))


@pytest.mark.parametrize("read", [decode, check_file])
@pytest.mark.parametrize("end", ["jpg", "png", "bmp", "gif", "webp", "tif", "ppm"])
def test_half_a_file_is_an_error_with_its_path_and_a_whole_one_passes(end, read, paint, tmp_path):
    path = paint(tmp_path / f"photo.{end}", 64, 48)
    read(str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableImage) as error:
        read(str(path))
    assert str(error.value).startswith(f"{path} (")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("read", [decode, check_file])
@pytest.mark.parametrize("content", [b"", b"I am text, not an image"])
def test_what_is_no_image_is_an_error_with_its_path(content, read, tmp_path):
    path = tmp_path / "note.jpg"
    path.write_bytes(content)
    with pytest.raises(UnreadableImage, match=r"note.jpg \(not in any known image format\)"):
        read(str(path))


def test_a_whole_photograph_with_something_behind_its_end_is_readable(paint, tmp_path):
    path = paint(tmp_path / "photo.jpg", 64, 48)
    path.write_bytes(path.read_bytes() + b"a camera's own notes")
    check_file(str(path))
    assert decode(str(path)).shape == (3, 64, 48)
