"""A checkpoint is plain, says what it is, and stands for the model whether compiled or not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import vitrail

from .calls import read

PLAIN = (dict, list, tuple, str, int, float, bool, type(None), torch.Tensor)


def contents(node: Any) -> Iterator[Any]:
    yield node
    children = node.values() if isinstance(node, dict) else node
    if isinstance(node, dict | list | tuple):
        for child in children:
            yield from contents(child)


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_loads_safely_and_holds_plain_containers_alone(run, name):
    for item in contents(read(getattr(run, name))):
        assert isinstance(item, PLAIN), type(item)


def test_a_checkpoint_describes_itself(run):
    description = read(run.best)["hyper_parameters"]
    assert description["vitrail"] == vitrail.__version__
    assert description["classes"] == [str(digit) for digit in range(10)]
    assert description["image_size"] == [8, 8]
    assert description["mean"] == [0.305] * 3
    assert description["std"] == [0.376] * 3
    assert description["backends"] == {"blocks.0.attn": "eager"}
    assert description["precision"] == run.line("precision").split()[0]
    assert description["environment"]["packages"]["torch"].startswith(torch.__version__[:4])
    [offline] = run.folder.glob("wandb/offline-run-*")
    assert description["wandb_id"] == offline.name.rpartition("-")[2]
    assert description["config"]["model"]["dim"] == 16


def test_weights_carry_the_names_of_the_model_and_no_average_unless_asked(run, train):
    averaged = train(
        "ema_decay=0.9", "trainer.limit_train_batches=3", "trainer.log_every_n_steps=1"
    )
    plain = read(run.best)
    assert plain.keys().isdisjoint({"averaging_state", "current_model_state"})
    assert plain["state_dict"].keys() == read(averaged.best)["state_dict"].keys()
    assert all(name.startswith("network.") for name in plain["state_dict"])
    assert "network.blocks.0.attn.qkv.weight" in plain["state_dict"]


@pytest.mark.slow
def test_compiled_and_plain_runs_read_each_other(train, resume, command):
    plain = train("precision=32-true")
    compiled = train("precision=32-true", "compile=true")
    assert read(plain.best)["state_dict"].keys() == read(compiled.best)["state_dict"].keys()
    assert command("eval", f"ckpt_path={compiled.best}").report == compiled.report
    there = resume(plain.last, "compile=true", "trainer.max_epochs=2")
    back = resume(compiled.last, "compile=false", "trainer.max_epochs=2")
    for resumed in (there, back):
        assert resumed.code == 0, resumed.err
        assert read(resumed.last)["global_step"] == 40
    weights = read(there.last)["state_dict"]
    for name, weight in read(back.last)["state_dict"].items():
        torch.testing.assert_close(weights[name], weight, atol=1e-4, rtol=1e-3)
