"""Downloading from a server on this machine."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vitrail.data.datasets.cifar import CIFAR10
from vitrail.data.datasets.tiny_imagenet import TinyImageNet
from vitrail.errors import UserError


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def published(tmp_path: Path, monkeypatch) -> Iterator[tuple[Path, str]]:
    """The folder of a web server, and its address."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "published"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: Quiet(*args, directory=folder)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def publish(published, packed, tmp_path, monkeypatch):
    """`publish(dataset, folder)`: one whose archive is a small one on the server; an empty root."""

    def build(dataset: type, folder: Path):
        path = packed(folder, published[0] / Path(dataset.archive.url).name)
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        archive = replace(dataset.archive, url=f"{published[1]}/{path.name}", md5=md5)
        monkeypatch.setattr(dataset, "archive", archive)
        return dataset(root=tmp_path / "root", download=True)

    return build


@pytest.fixture
def cifar(publish, official_cifar, tmp_path) -> CIFAR10:
    return publish(CIFAR10, official_cifar(tmp_path / "made"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_archive_is_downloaded_checked_unpacked_and_kept(cifar, published):
    cifar.prepare()
    assert names(cifar.root) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    assert len(cifar.read().images["train"]) == 20
    (published[0] / "cifar-10-python.tar.gz").unlink()
    cifar.prepare()  # a second run asks for no network


@pytest.mark.parametrize("download", [True, False])
def test_an_archive_that_was_put_there_needs_no_network(download, cifar, published):
    cifar.root.mkdir()
    (published[0] / "cifar-10-python.tar.gz").rename(cifar.root / "cifar-10-python.tar.gz")
    replace(cifar, download=download).prepare()
    assert len(cifar.read().images["train"]) == 20


def test_a_half_download_is_fetched_again(cifar):
    cifar.root.mkdir()
    (cifar.root / "cifar-10-python.tar.gz").write_bytes(b"the first half")
    cifar.prepare()
    assert len(cifar.read().images["train"]) == 20


def test_a_wrong_checksum_is_refused_and_nothing_is_unpacked(cifar, monkeypatch):
    monkeypatch.setattr(CIFAR10, "archive", replace(CIFAR10.archive, md5="0" * 32))
    with pytest.raises(
        UserError, match=r"cifar-10-python.tar.gz is damaged: its md5 is not 0+; rem"
    ):
        cifar.prepare()
    assert names(cifar.root) == ["cifar-10-python.tar.gz"]


@pytest.mark.parametrize(
    "host, reason", [("127.0.0.1:1", ".*refused.*"), (None, "HTTP Error 404.*")]
)
def test_a_file_that_no_server_has_is_one_line_that_says_where_to_put_it(
    host, reason, cifar, published, monkeypatch
):
    (published[0] / "cifar-10-python.tar.gz").unlink()
    url = f"http://{host}/cifar-10-python.tar.gz" if host else cifar.archive.url
    monkeypatch.setattr(CIFAR10, "archive", replace(cifar.archive, url=url))
    message = rf"^cannot download {url} \({reason}\); put that file into {cifar.root} yourself$"
    with pytest.raises(UserError, match=message):
        cifar.prepare()


def test_without_leave_to_download_one_line_says_what_to_put_where(cifar):
    with pytest.raises(UserError, match=r"put cifar-10-python.tar.gz from http"):
        replace(cifar, download=False).prepare()


def test_an_incomplete_folder_is_named_and_not_taken_for_the_dataset(cifar):
    (cifar.root / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cifar-10-batches-py lacks batches.meta; remove that"):
        cifar.prepare()


def test_a_zip_is_unpacked_too(publish, write_dataset, tmp_path):
    tiny = publish(TinyImageNet, write_dataset("tiny_imagenet", tmp_path / "made"))
    tiny.prepare()
    assert len(tiny.read().images["train"]) == 6
