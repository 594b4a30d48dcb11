"""`bench=accuracy`: runs are trained once, go on after a kill, and are asked by every backend."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from scipy import stats

from vitrail.attention import backends
from vitrail.attention.backends.flex import Flex
from vitrail.attention.backends.sdpa_flash import SdpaFlash
from vitrail.attention.selection import layers, tune
from vitrail.attention.selection.gate import FailedGate, GateResult
from vitrail.bench.accuracy_runs import AccuracyBench
from vitrail.bench.report import Row, table_of
from vitrail.tracking.metrics_csv import read_metrics
from vitrail.training.classifier import Classifier

# Two epochs of eight steps.
TINY = (
    "bench=accuracy", "trainer=cpu", "data=synthetic", "data.image_size=[8,12]",
    "data.dataset.train=80", "data.dataset.test=40", "data.batch_size=8", "model.patch_size=2",
    "model.dim=16", "model.depth=1", "model.heads=2", "precision=32-true", "optim.lr=0.01",
    "trainer.max_epochs=2", "trainer.log_every_n_steps=3", "logger=none",
)  # fmt: skip


class Killed(BaseException):
    """What nothing in between catches, as nothing catches a SIGKILL."""


@pytest.fixture(autouse=True)
def no_compiler_is_waited_for(monkeypatch):
    monkeypatch.setattr(Flex, "refuse", lambda *_: ["wait for a compiler"])
    fastest = lambda _, names: {"eager": 0.1} | dict.fromkeys(names, 0.2)  # noqa: E731
    monkeypatch.setattr(tune, "measure", fastest)


@pytest.fixture
def bench(build) -> Callable[..., AccuracyBench]:
    """bench("model=…", backends=…): one seed of eager, unless it is said otherwise."""
    short = {"backends": ["eager"], "seeds": [0], "target": 0.2}
    return lambda *overrides, **keys: build(*TINY, *overrides, **(short | keys))


@contextmanager
def killed(hook: str, call: int) -> Iterator[None]:
    """Within, the module does not survive calling that hook for the n-th time."""
    original, calls = getattr(Classifier, hook), count(1)

    def fatal(self, batch):
        if next(calls) == call:
            raise Killed
        return original(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classifier, hook, fatal)
        yield


@contextmanager
def counted() -> Iterator[list[int]]:
    """The images of each training step that is taken within."""
    original, taken = Classifier.training_step, []

    def noted(self, batch):
        taken.append(len(batch[0]))
        return original(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classifier, "training_step", noted)
        yield taken


def rows_of(bench: AccuracyBench) -> list[Row]:
    empty = dict.fromkeys((*bench.columns, "layers"))
    return [empty | row for cell in bench.cells() for row in bench.measure(cell)]


def as_trained(rows: list[Row]) -> dict[tuple[str, int], Row]:
    return {
        (row["trained_with"], row["seed"]): row
        for row in rows
        if row["trained_with"] == row["evaluated_with"]
    }


def metrics(folder: Path, column: str) -> list[tuple[int, float]]:
    table = read_metrics(folder / "metrics.csv").dropna(subset=[column])
    return [*zip(table["step"].astype(int), table[column], strict=True)]


def test_a_run_is_one_of_train_py_and_its_accuracy_is_what_training_reported(bench, tmp_path):
    rows = rows_of(bench())
    own = as_trained(rows)["eager", 0]
    folder = tmp_path / "runs/eager-seed0"
    [(_, accuracy)] = metrics(folder, "test/acc")
    [(_, loss)] = metrics(folder, "test/loss")
    assert own["accuracy_percent"] == pytest.approx(100 * accuracy)
    assert own["loss"] == pytest.approx(loss, rel=1e-5)
    assert (own["split"], own["images"], own["layers"]) == ("test", 40, "eager")
    assert (folder / "receipt.json").is_file()
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.backend, config.gate, config.seed) == ("eager", True, 0)
    assert "bench" not in config
    validated = metrics(folder, "val/acc")
    assert own["best_val_accuracy"] == pytest.approx(max(v for _, v in validated))
    assert own["train_s"] == max(seconds for _, seconds in metrics(folder, "train/seconds"))
    assert 0 < own["to_target_s"] <= own["train_s"]
    assert own["images_per_second"] > 0


def test_every_backend_that_may_is_asked_and_the_others_say_why_not(bench):
    rows = rows_of(bench())
    assert rows[0]["evaluated_with"] == "eager"
    assert {row["evaluated_with"] for row in rows} == {*backends.names()}
    for row in rows:
        assert (row["accuracy_percent"] is None) is bool(row["refused"])
        if not row["refused"] and row["evaluated_with"] != "eager":
            assert 0 <= row["drift_relative"] < 1e-4
            assert row["changed_predictions"] == 0
            assert row["train_s"] is None, "it is told once"
    refused = {row["evaluated_with"]: row["refused"] for row in rows if row["refused"]}
    assert refused["sdpa_cudnn"].startswith("backend=sdpa_cudnn cannot run on cpu")


def test_drift_is_that_of_the_logits(bench, monkeypatch):
    reference = SdpaFlash.__call__
    monkeypatch.setattr(GateResult, "passed", True)  # or the gate would find it
    monkeypatch.setattr(SdpaFlash, "__call__", lambda *given, **how: 2.0 * reference(*given, **how))
    rows = {row["evaluated_with"]: row for row in rows_of(bench())}
    assert rows["sdpa_flash"]["drift_relative"] > 0.01
    assert rows["sdpa_flash"]["drift_largest"] > 100 * rows["sdpa_math"]["drift_largest"]
    assert rows["sdpa_math"]["drift_relative"] < 1e-4


def test_a_backend_that_fails_its_gate_is_neither_trained_with_nor_asked(bench, monkeypatch):
    check = layers.prove

    def fail(request, backend):
        if backend.name == "sdpa_flash":
            raise FailedGate("backend=sdpa_flash fails the gate: dq is wrong")
        return check(request, backend)

    monkeypatch.setattr(layers, "prove", fail)
    rows = rows_of(bench("gate=false", backends=["eager", "sdpa_flash"]))
    found = {(row["trained_with"], row["evaluated_with"]): row["refused"] for row in rows}
    assert found["eager", "sdpa_flash"] == "backend=sdpa_flash fails the gate: dq is wrong"
    assert found["sdpa_flash", "sdpa_flash"] == "backend=sdpa_flash fails the gate: dq is wrong"
    assert ("sdpa_flash", "eager") not in found


def test_a_backend_that_cannot_train_says_so(bench):
    [row] = rows_of(bench(backends=["sdpa_cudnn"]))
    assert row["refused"].startswith("backend=sdpa_cudnn cannot run on cpu")
    assert row["accuracy_percent"] is None


def test_seeds_reach_model_and_data_and_all_backends_see_the_same(bench, tmp_path):
    one = bench(backends=["eager", "auto"], seeds=[3, 4], resolved=True)
    assert [cell.removeprefix("trained with ") for cell in one.cells()] == [
        "eager, seed 3", "auto, seed 3", "eager, seed 4", "auto, seed 4",
    ]  # fmt: skip
    own = as_trained(rows_of(one))
    assert own["auto", 3]["layers"] == "eager"
    losses = {
        name: metrics(tmp_path / f"runs/{name}", "train/loss")
        for name in ("eager-seed3", "auto-seed3", "eager-seed4")
    }
    assert losses["eager-seed3"] == losses["auto-seed3"] != losses["eager-seed4"]
    config = OmegaConf.load(tmp_path / "runs/auto-seed4/config.yaml")
    assert (config.backend, config.model.backend) == ("auto", "auto")
    assert (config.seed, config.data.seed) == (4, 4)


def test_a_finished_run_is_not_repeated(bench):
    first = rows_of(bench())
    with counted() as taken:
        assert rows_of(bench()) == first
    assert taken == []


@pytest.mark.parametrize("step", [3, 8, 9, 13], ids="killed in step {}".format)
def test_a_run_that_was_killed_goes_on_and_ends_where_a_straight_one_does(step, bench, tmp_path):
    straight = as_trained(rows_of(bench(seeds=[7])))["eager", 7]
    (tmp_path / "runs").rename(tmp_path / "straight")
    one = bench(seeds=[7])
    with killed("training_step", step), pytest.raises(Killed):
        one.measure(one.cells()[0])
    folder, other = tmp_path / "runs/eager-seed7", tmp_path / "straight/eager-seed7"
    with counted() as taken:
        again = as_trained(rows_of(bench(seeds=[7])))["eager", 7]
    assert len(taken) == (8 if step > 8 else 16), "what the checkpoint holds is not done again"
    expected = weights(other)
    for name, weight in weights(folder).items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=0)
    for column in ("accuracy_percent", "loss", "best_val_accuracy", "best_epoch"):
        assert again[column] == pytest.approx(straight[column])
    timed = metrics(folder, "train/seconds")
    assert [step for step, _ in timed] == [step for step, _ in metrics(other, "train/seconds")]
    assert [seconds for _, seconds in timed] == sorted(seconds for _, seconds in timed)


def test_a_run_that_was_killed_behind_its_last_step_only_evaluates(bench, tmp_path):
    one, folder = bench(), tmp_path / "runs/eager-seed0"
    with killed("test_step", 1), pytest.raises(Killed):
        one.measure(one.cells()[0])
    train_s = metrics(folder, "train/seconds")[-1][1]
    with counted() as taken:
        own = as_trained(rows_of(bench()))["eager", 0]
    assert taken == []
    assert own["train_s"] == train_s


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    "overrides, changes, message",
    [
        ([], {"backends": []}, r"bench.backends must name one or more, each once, got \[\]"),
        ([], {"seeds": [1, 1]}, r"bench.seeds must name one or more, each once, got \[1, 1\]"),
        ([], {"seeds": [-1]}, "seed must be a whole number"),
        ([], {"backends": ["sdpa_flush"]}, "backend=sdpa_flush does not exist; did you mean sdpa_"),
        ([], {"baseline": "sdpa"}, "bench.baseline takes eager, got sdpa"),
        ([], {"target": 90}, r"bench.target must be in \(0, 1\], got 90"),
        (["trainer=ddp"], {}, "one device, got trainer.devices=auto"),
        (["model.heads=3"], {}, "dim=16 does not split over heads=3"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(bench, overrides, changes, message):
    with pytest.raises(Exception, match=message):
        bench(*overrides, **changes)


def trained(name: str, percents: dict[int, float], images: int = 10_000) -> list[Row]:
    return [
        {
            "evaluated_with": name, "trained_with": name, "seed": seed, "images": images,
            "layers": name,
            "accuracy_percent": percent, "accuracy_percent_low": percent - 1.0,
            "accuracy_percent_high": percent + 1.0, "train_s": 10.0, "to_target_s": None,
            "images_per_second": 100.0 + seed, "refused": "",
        }
        for seed, percent in percents.items()
    ]  # fmt: skip


@pytest.fixture
def compared(bench) -> Callable[..., dict[str, Row]]:
    """The summary's rows by backend, of the rows of several."""

    def call(*runs: list[Row], baseline: str | None = None) -> dict[str, Row]:
        backends = [rows[0]["trained_with"] for rows in runs]
        tables, charts = bench(backends=["eager", "sdpa"], baseline=baseline).summary(
            table_of([row for rows in runs for row in rows])
        )
        [table] = tables.values()
        found = dict(zip(backends, table.astype(object).to_dict("records"), strict=True))
        assert [chart.points()["line"].tolist() for chart in charts] == [backends] * 2
        return found

    return call


ONE = {0: 90.0, 1: 80.0, 2: 85.0, 3: 70.0}


def test_a_difference_is_students_t_on_pairs_of_seeds(compared):
    more = {0: 93.0, 1: 84.0, 2: 88.0, 3: 73.5}
    rows = compared(trained("eager", ONE), trained("sdpa", more))
    differences = [more[seed] - ONE[seed] for seed in ONE]
    low, high = stats.t.interval(0.95, 3, loc=sum(differences) / 4, scale=stats.sem(differences))
    row = rows["sdpa"]
    assert (row["baseline"], row["verdict"], row["seeds"]) == ("eager", "higher", 4)
    assert row["difference_points"] == pytest.approx(sum(differences) / 4)
    ends = row["difference_points_low"], row["difference_points_high"]
    assert ends == pytest.approx((low, high))
    assert 0 < row["detectable_difference_points"] < row["difference_points"]
    assert rows["eager"]["accuracy_percent_high"] > row["accuracy_percent_low"], "unpaired, no"
    assert rows["eager"]["accuracy_percent_high"] <= 100
    other = compared(trained("eager", ONE), trained("sdpa", more), baseline="sdpa")
    assert other["eager"]["verdict"] == "lower"


def test_differences_inside_the_noise_are_not_shown_and_never_called_equal(compared):
    rows = compared(trained("eager", {0: 90.0, 1: 92.0}), trained("sdpa", {0: 91.0, 1: 91.0}))
    assert rows["sdpa"]["verdict"] == "no difference shown"
    assert rows["sdpa"]["detectable_difference_points"] > 10


def test_two_seeds_that_agree_by_chance_prove_nothing_on_few_images(compared):
    one, other = {0: 90.0, 1: 90.0}, {0: 91.0, 1: 91.0}
    for images, said in ((100, "no difference shown"), (100_000, "higher")):
        rows = compared(trained("eager", one, images), trained("sdpa", other, images))
        assert rows["sdpa"]["verdict"] == said


def test_one_seed_has_the_interval_of_its_images_and_no_verdict(compared):
    rows = compared(trained("eager", {0: 90.0}), trained("sdpa", {0: 95.0}))
    assert rows["sdpa"]["accuracy_percent_low"] == 94.0
    assert "verdict" not in rows["sdpa"] or rows["sdpa"]["verdict"] is None


def test_a_seed_that_one_backend_lacks_is_in_no_pair(compared):
    rows = compared(trained("eager", ONE), trained("sdpa", {0: 93.0, 1: 84.0, 9: 20.0}))
    assert rows["sdpa"]["difference_points"] == pytest.approx(3.5)
