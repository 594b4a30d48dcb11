"""All images are visited on all cores, with what the unreadable ones said."""

import pytest
import torch

from vitrail.data import scan
from vitrail.data.images import Images
from vitrail.data.resize import CenterCrop
from vitrail.data.scan import check_readable, decode_all


@pytest.fixture
def files(paint, tmp_path) -> Images:
    """Five photographs, of which number 3 is cut short."""
    paths = [paint(tmp_path / f"{number}.jpg", 12 + number, 16) for number in range(5)]
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[: len(whole) // 2])
    return Images.from_files(paths, [0, 1, 2, 0, 1])


@pytest.fixture(params=[0, 1000], ids=["by other processes", "here"])
def few(request, monkeypatch) -> None:
    monkeypatch.setattr(scan, "FEW", request.param)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("chunk_bytes", [1, 2 * 3 * 8 * 8, 2**20])
def test_every_image_is_decoded_in_its_place(files, chunk_bytes, monkeypatch):
    monkeypatch.setattr("vitrail.data.scan.CHUNK_BYTES", chunk_bytes)
    drawn = torch.get_rng_state()
    fit = CenterCrop((8, 8))
    decoded, unreadable = decode_all(files, fit, title="decoding")
    assert [*unreadable] == [3]
    assert "3.jpg" in unreadable[3]
    for index in (0, 1, 2, 4):
        assert torch.equal(decoded.pixels(index), fit(files.pixels(index)))
    assert torch.equal(decoded.labels, files.labels)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.usefixtures("few")
def test_every_file_is_checked(files):
    unreadable = check_readable(files, title="checking")
    assert [*unreadable] == [3]
    assert "3.jpg" in unreadable[3]
