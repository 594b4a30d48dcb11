"""Image files to RGB pixels: one rule for every format, and no pixels from a damaged file.

EXIF orientation is applied. Grey is copied to three channels; of 16 bits the upper eight count;
transparent pixels become white; palettes, CMYK and the rest are converted. Of several frames the
first is taken. Plain JPEGs go through TorchCodec, which gives Pillow's pixels sooner.
"""

import io
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchcodec.decoders import decode_jpeg
from torchvision.transforms.v2.functional import pil_to_tensor

from vitrail.errors import UserError

# What Pillow lets through for damaged files of one format or another.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

# How a whole file of a format begins and ends, for those that mark their end.
_ENDS = ((b"\xff\xd8\xff", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND\xaeB\x60\x82"))


class UnreadableImage(UserError):
    """A file that is damaged or not an image. The message is its full path and the reason."""

    @classmethod
    def because(cls, path: str, error: Exception) -> "UnreadableImage":
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "not in any known image format" if unknown else str(error) or type(error).__name__
        return cls(f"{path} ({reason})")


def decode(path: str) -> Tensor:
    """The pixels of an image file as uint8 (3, h, w). Raises `UnreadableImage`."""
    try:
        encoded = Path(path).read_bytes()
        with Image.open(io.BytesIO(encoded)) as image:  # reads no further than the header
            if image.format == "JPEG" and image.mode in ("L", "RGB"):
                with suppress(RuntimeError):  # of a damaged file, which Pillow explains
                    return decode_jpeg(encoded, mode="RGB")
            return pil_to_tensor(to_rgb(ImageOps.exif_transpose(image)))
    except _DAMAGE as error:
        raise UnreadableImage.because(path, error) from error


def check_file(path: str) -> None:
    """Raise `UnreadableImage` for a damaged file, at a fraction of the cost of decoding it.

    A JPEG or PNG passes by its first and last bytes; any other format is decoded.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(8)
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8))
            tail = file.read()
    except OSError as error:
        raise UnreadableImage.because(path, error) from error
    if not any(head.startswith(begin) and tail.endswith(end) for begin, end in _ENDS):
        decode(path)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any colour mode as RGB, by the rule above. Raises `UserError` for floating-point pixels."""
    if image.mode == "F":
        raise UserError("its floating-point pixels have no known white")
    if image.mode.startswith("I"):
        upper = np.asarray(image).clip(0, 2**16 - 1) >> 8
        return Image.fromarray(upper.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")
