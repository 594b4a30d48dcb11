"""What every test can rely on: no network, and nothing of the person's own environment.

And what several folders of tests need: W&B runs read back, and a disk that is full.
"""

import ipaddress
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REAL_DATA = "VITRAIL_TEST_DATA"
OF_THE_PERSON = (
    "VITRAIL_DATA",
    "VITRAIL_FLASH_ATTN",
    "HYDRA_FULL_ERROR",
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
)


def pytest_configure() -> None:
    """Processes that tests start find vitrail where this one does, installed or not."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")
    # The profiler reads this once a process; a run sets it, but another test may profile first.
    os.environ["KINETO_LOG_LEVEL"] = "6"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason; refuse what has no order of its own."""
    for item in items:
        sets = (
            isinstance(mark.args[1], set | frozenset) for mark in item.iter_markers("parametrize")
        )
        if any(sets) or re.search(r"set\(\{.*,", item.name):  # its order differs by process
            raise pytest.UsageError(f"{item.nodeid} is parametrized or named by a set; sort it")
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
def own_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Variables that change what commands do are unset, and W&B stays offline and quiet.

    What `backend=auto` measures is remembered from test to test, and not where the person's is.
    """
    for name in (*OF_THE_PERSON, *(name for name in os.environ if name.startswith("WANDB_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
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


@pytest.fixture
def fresh_graphs() -> Iterator[None]:
    """torch.compile knows no graph when the test begins, and keeps none when it ends."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The request of every call of attention in the test."""
    from vitrail.attention import attention
    from vitrail.attention.backends import Request

    requests, kernel = [], attention._kernel

    def listen(q, k, v, mask, bias, scale, dropout_p, backend):
        requests.append(Request.of(q, k, v, mask, bias, dropout_p))
        return kernel(q, k, v, mask, bias, scale, dropout_p, backend)

    monkeypatch.setattr(attention, "_kernel", listen)
    return requests


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager]:
    """A context in which no file of this process can grow beyond so many bytes."""
    resource = pytest.importorskip("resource")

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@dataclass
class OfflineRun:
    """What one part of a W&B run holds."""

    id: str = ""
    name: str = ""
    project: str = ""
    group: str = ""
    continues: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def steps(self, metric: str) -> list[int]:
        """Where on the x axis the metric has points."""
        return [row["trainer/global_step"] for row in self.history if metric in row]


@pytest.fixture
def offline_runs() -> Callable[[Path], list[OfflineRun]]:
    """A function that reads the parts of the W&B run in a run's folder, oldest first."""
    import wandb  # only where a test asks

    def read(folder: Path) -> list[OfflineRun]:
        wandb.teardown()  # waits until what was finished is on disk
        parts = []
        for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
            part = OfflineRun()
            for record in _records(file):
                match record.WhichOneof("record_type"):
                    case "run":
                        part.id, part.name = record.run.run_id, record.run.display_name
                        part.project, part.group = record.run.project, record.run.run_group
                        part.continues = record.run.resume
                        part.config.update(_values(record.run.config.update))
                    case "config":
                        part.config.update(_values(record.config.update))
                    case "history":
                        part.history.append(_values(record.history.item))
                    case "summary":
                        part.summary.update(_values(record.summary.update))
                    case "exit":
                        part.exit_code = record.exit.exit_code
            parts.append(part)
        return parts

    return read


BLOCK = 32768
HEADER = struct.Struct("<IHB")  # checksum, length, which part of a record: LevelDB's log format
FULL, LAST = 1, 4


def _records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file, in the order in which they were written.

    wandb ships their schema and keeps their reader in its compiled core, so that is here.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, record = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while position + HEADER.size <= len(data):
        if (left := BLOCK - position % BLOCK) < HEADER.size:
            position += left
            continue
        _, length, part = HEADER.unpack_from(data, position)
        position += HEADER.size
        record += data[position : position + length]
        position += length
        if part in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


def _values(items: Any) -> dict[str, Any]:
    """Plain values by their keys, those of nested ones joined by dots."""
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
