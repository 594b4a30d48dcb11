"""What every test can rely on: no network, and nothing of the person's own environment."""

import ipaddress
import os
import socket
from pathlib import Path

import pytest

REAL_DATA = "VITRAIL_TEST_DATA"
OF_THE_PERSON = ("VITRAIL_DATA", "HYDRA_FULL_ERROR", "LOCAL_RANK", "RANK", "WORLD_SIZE")


def pytest_configure() -> None:
    """Processes that tests start find vitrail where this one does, installed or not."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason."""
    for item in items:
        if item.get_closest_marker("real") and REAL_DATA not in os.environ:
            item.add_marker(pytest.mark.skip(reason=f"{REAL_DATA} names no folder of real images"))
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device here"))


def _has_gpu() -> bool:
    import torch  # only where a test asks, so that the tests of the setup stay light

    return torch.cuda.is_available()


@pytest.fixture
def real_data() -> Path:
    """The folder of real images that tests marked `real` read."""
    return Path(os.environ[REAL_DATA])


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that change what commands do are unset, and W&B stays offline and quiet."""
    for name in (*OF_THE_PERSON, *(name for name in os.environ if name.startswith("WANDB_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches beyond this machine fails, wherever it runs."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            raise OSError(f"tests have no network, and this one asked for {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
