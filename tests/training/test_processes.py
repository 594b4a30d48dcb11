"""Training and validating on two CPU processes, against one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from . import processes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def run(request, tmp_path_factory) -> Path:
    """The folder of a run on two processes."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, processes.__file__, request.param, "2", str(folder)]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = started.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # all of them: one alone waits for the other
        pytest.fail(f"two processes under trainer={request.param} wait for each other")
    assert started.returncode == 0, output
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The folder of the same training on one process."""
    folder = tmp_path_factory.mktemp("alone")
    processes.train("cpu", 1, folder)
    return folder


def weights(folder: Path, *, raw: bool = False) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(folder / "checkpoints/1.ckpt", weights_only=True)
    averaged = checkpoint["state_dict"]
    return checkpoint.get("current_model_state", averaged) if raw else averaged


def test_processes_with_unequal_numbers_of_images_report_exactly_those_there_are(run):
    first, second = (json.loads((run / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second

    network = processes.Network().eval()
    averaged = weights(run / "straight").items()
    network.load_state_dict({name.removeprefix("network."): value for name, value in averaged})
    with torch.no_grad():
        logits = network(processes.IMAGES)
    assert first["report"] == {
        "acc": (logits.argmax(dim=1) == processes.LABELS).sum().item() / 61,
        "loss": pytest.approx(F.cross_entropy(logits, processes.LABELS).item(), rel=1e-6),
        "count": 61,
        "acc_top5": (logits.topk(5).indices == processes.LABELS[:, None]).sum().item() / 61,
        "classes": list("0123456"),
    }


@pytest.mark.parametrize("kind", ["straight", "resumed"])
def test_two_processes_learn_what_one_learns(kind, run, alone):
    one = weights(alone, raw=True)
    for name, weight in weights(run / kind, raw=True).items():
        if not name.endswith("mean"):
            torch.testing.assert_close(weight, one[name], atol=1e-6, rtol=0, msg=name)
