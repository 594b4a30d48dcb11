"""auto takes the fastest backend that may serve a request, and measures a request once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.attention import Mask, attend, backends
from vitrail.attention.backends import Refused, Request
from vitrail.attention.selection import tune
from vitrail.attention.selection.sample import Sample
from vitrail.attention.selection.tune import candidates, choose, measure

SMALL = Request("cpu", torch.float32, batch=2, heads=3, queries=15, keys=15, width=8)


nothing_is_timed = pytest.mark.usefixtures("measured")


@pytest.fixture
def measured(monkeypatch) -> list[Request]:
    """The requests that are measured; sdpa_flash always wins, then the order of names."""
    requests = []

    def fake(request, names):
        requests.append(request)
        order = sorted(names, key=lambda name: (name != "sdpa_flash", name))
        return {name: 0.001 * (1 + place) for place, name in enumerate(order)}

    monkeypatch.setattr(tune, "measure", fake)
    return requests


@nothing_is_timed
def test_the_fastest_is_chosen_and_every_other_one_is_named_with_the_reason(tmp_path):
    choice = choose(SMALL, folder=tmp_path)
    assert choice.name == "sdpa_flash"
    assert set(choice.times) | set(choice.rejected) == set(backends.names())
    assert choice.rejected["eager"] == "slower: 2 ms"
    assert choice.rejected["sdpa"].startswith("by name only: ")
    assert choice.rejected["sdpa_efficient"] == "cannot run on cpu"
    assert choice.why().startswith("1 ms, eager 2 ms, ")


def test_a_request_is_measured_once_and_then_remembered(measured, tmp_path):
    first, again = choose(SMALL, folder=tmp_path), choose(SMALL, folder=tmp_path)
    assert measured == [SMALL]
    assert again.times == first.times
    assert (first.remembered, again.remembered) == (False, True)
    assert again.why().endswith("(remembered)")


@pytest.mark.parametrize(
    "change",
    [{"batch": 3}, {"keys": 16}, {"dtype": torch.bfloat16}, {"masks": frozenset({"padding"})}],
    ids=str,
)
def test_another_request_is_measured_for_itself(measured, tmp_path, change):
    choose(SMALL, folder=tmp_path)
    choose(replace(SMALL, **change), folder=tmp_path)
    assert measured == [SMALL, replace(SMALL, **change)]


@pytest.mark.parametrize("part", ["threads", "torch", "name"])
def test_another_machine_or_version_measures_for_itself(measured, tmp_path, monkeypatch, part):
    choose(SMALL, folder=tmp_path)
    here = tune.machine("cpu")
    assert part in here
    monkeypatch.setattr(tune, "machine", lambda device: here | {part: "other"})
    choose(SMALL, folder=tmp_path)
    assert len(measured) == 2


@nothing_is_timed
@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"seconds": {"eager": 1.0}}', '{"seconds": 5}', "TIMES"]
)
def test_a_damaged_memory_is_measured_anew(tmp_path, content):
    choose(SMALL, folder=tmp_path)
    (store,) = tmp_path.iterdir()
    wrong = json.loads(store.read_text())
    wrong["seconds"] = dict.fromkeys(wrong["seconds"], -1.0)
    store.write_text(json.dumps(wrong) if content == "TIMES" else content)
    assert not choose(SMALL, folder=tmp_path).remembered
    assert json.loads(store.read_text())["seconds"]


@nothing_is_timed
def test_a_folder_that_is_closed_to_us_costs_the_memory_and_nothing_else(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert choose(SMALL, folder=tmp_path / "file").name == "sdpa_flash"


@nothing_is_timed
def test_the_memory_lies_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    choose(SMALL)
    assert list((tmp_path / "auto").glob("*.json"))
    monkeypatch.delenv("VITRAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tune.cache_folder() == tmp_path / "xdg" / "vitrail" / "auto"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tune.cache_folder() == Path.home() / ".cache" / "vitrail" / "auto"


def test_a_backend_without_equal_gradients_is_out_when_runs_must_repeat(monkeypatch):
    flash = backends.load("sdpa_flash")
    varying = {"cpu": replace(flash.capabilities["cpu"], deterministic=False)}
    monkeypatch.setattr(type(flash), "capabilities", varying)
    inference = replace(SMALL, backward=False)
    for request, repeat, there in (
        (SMALL, True, False),
        (SMALL, False, True),
        (inference, True, True),
    ):
        able, rejected = candidates(request, deterministic=repeat, without={})
        assert ("sdpa_flash" in able) == there
        assert there or rejected["sdpa_flash"] == "its gradients differ from run to run"


def test_written_out_scores_beyond_the_limit_are_not_tried():
    long = replace(SMALL, batch=64, queries=4096, keys=4096)
    able, rejected = candidates(long, deterministic=False, without={})
    assert able == ["sdpa_flash"]
    assert rejected["eager"] == "its scores take 12.0 GiB a layer (at most 1)"


def test_when_nobody_is_left_the_refusal_says_why_for_each():
    without = dict.fromkeys(backends.names(), "failed")
    with pytest.raises(Refused, match=r"backend=auto finds no backend.*eager: failed"):
        choose(SMALL, without=without)


def test_measuring_times_each_backend_and_puts_the_fastest_first():
    times = measure(SMALL, ["reference", "eager", "sdpa_flash"])
    assert set(times) == {"reference", "eager", "sdpa_flash"}
    assert all(seconds > 0 for seconds in times.values())
    assert next(iter(times.values())) == min(list(times.values())[:2])


@pytest.mark.parametrize("masks", [frozenset(), frozenset({"padding"})], ids=sorted)
def test_auto_by_name_computes_as_the_formula_does(masks):
    sample = Sample.of(replace(SMALL, masks=masks))
    ours = attend(sample.q, sample.k, sample.v, mask=sample.mask, backend="auto")
    theirs = attend(sample.q, sample.k, sample.v, mask=sample.mask, backend="reference")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_auto_honours_what_only_some_can():
    q = torch.randn(2, 3, 15, 8, requires_grad=True)
    bias = torch.zeros(1, 3, 15, 15, requires_grad=True)
    attend(q, q, q, bias=bias, mask=Mask(), backend="auto").sum().backward()
    assert bias.grad.abs().sum() > 0


def test_auto_breaks_a_compiled_graph_and_computes_the_same():
    q, auto = torch.randn(2, 3, 15, 8), backends.load("auto")
    compiled = torch.compile(lambda q: 2 * attend(q, q, q, backend=auto), backend="eager")
    torch.testing.assert_close(compiled(q), 2 * attend(q, q, q, backend="reference"))
