"""`bench=accuracy`: runs are trained once, go on after a kill, and are asked by every backend."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy import stats

from vitrail.attention import backends
from vitrail.attention.backends.flex import Flex
from vitrail.attention.backends.sdpa_flash import SdpaFlash
from vitrail.attention.selection import layers, tune
from vitrail.attention.selection.gate import FailedGate, GateResult
from vitrail.bench import seed_run
from vitrail.bench.accuracy import AccuracyBench
from vitrail.bench.accuracy_findings import findings, mean, verdict
from vitrail.bench.measurement import Context, Row
from vitrail.bench.seed_run import FINISHED, SeedRun
from vitrail.bench.wall_clock import moments
from vitrail.startup import configs
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
def bench(tmp_path) -> Callable[..., AccuracyBench]:
    """bench("model=…", backends=…): one seed of eager, unless it is said otherwise."""

    def build(*overrides: str, resolved: bool = False, **changes) -> AccuracyBench:
        with initialize_config_dir(str(configs()), version_base="1.3"):
            config = compose("bench", [*TINY, *overrides])
        if resolved:
            config = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
        knobs = {"backends": ["eager"], "seeds": [0], "target": 0.2} | changes
        return instantiate(config.bench, _partial_=True, _convert_="all")(
            context=Context(config, tmp_path), **knobs
        )

    return build


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
    rows = [row for cell in bench.cells() for row in bench.measure(cell)]
    assert all(list(row) == list(rows[0]) for row in rows)
    return rows


def as_trained(rows: list[Row]) -> dict[tuple[str, int], Row]:
    return {
        (row["trained_with"], row["seed"]): row
        for row in rows
        if row["trained_with"] == row["evaluated_with"]
    }


def metrics(folder: Path, column: str) -> list[tuple[int, float]]:
    with (folder / "metrics.csv").open() as file:
        return [(int(r["step"]), float(r[column])) for r in csv.DictReader(file) if r.get(column)]


def test_a_run_is_one_of_train_py_and_its_accuracy_is_what_training_reported(bench, tmp_path):
    rows = rows_of(bench())
    own = as_trained(rows)["eager", 0]
    folder = tmp_path / "runs/eager-seed0"
    [(_, accuracy)] = metrics(folder, "test/acc")
    [(_, loss)] = metrics(folder, "test/loss")
    assert own["accuracy"] == pytest.approx(accuracy)
    assert own["loss"] == pytest.approx(loss, rel=1e-5)
    assert (own["split"], own["images"], own["layers"]) == ("test", 40, "eager")
    assert (folder / "receipt.json").is_file()
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.backend, config.gate, config.seed) == ("eager", True, 0)
    assert "bench" not in config
    validated = metrics(folder, "val/acc")
    assert own["best_val_accuracy"] == pytest.approx(max(value for _, value in validated))
    assert own["train_s"] == moments(folder)[-1].seconds
    assert 0 < own["to_target_s"] <= own["train_s"]
    assert own["images_per_second"] > 0


def test_every_backend_that_may_is_asked_and_the_others_say_why_not(bench):
    rows = rows_of(bench())
    assert rows[0]["evaluated_with"] == "eager"
    assert {row["evaluated_with"] for row in rows} == {*backends.names()}
    for row in rows:
        assert (row["accuracy"] is None) is bool(row["refused"])
        if not row["refused"] and row["evaluated_with"] != "eager":
            assert 0 <= row["drift_relative"] < 1e-4
            assert row["changed_predictions"] == 0
            assert row["train_s"] is None, "it is told once"
    refused = {row["evaluated_with"]: row["refused"] for row in rows if row["refused"]}
    assert refused["sdpa_cudnn"] == "cannot run on cpu"


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
    assert row["accuracy"] is None


def test_seeds_reach_model_and_data_and_all_backends_see_the_same(bench, tmp_path):
    one = bench(backends=["eager", "auto"], seeds=[3, 4], resolved=True)
    assert [cell.key for cell in one.cells()] == [
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


def test_a_finished_run_is_not_repeated(bench, monkeypatch):
    first = rows_of(bench())
    monkeypatch.setattr(seed_run, "train", lambda *_, **__: pytest.fail("it trained again"))
    assert rows_of(bench()) == first


@pytest.mark.parametrize("step", [3, 8, 9, 13], ids="killed in step {}".format)
def test_a_run_that_was_killed_goes_on_and_ends_where_a_straight_one_does(step, bench, tmp_path):
    straight = as_trained(rows_of(bench(seeds=[7])))["eager", 7]
    (tmp_path / "runs").rename(tmp_path / "straight")
    one = bench(seeds=[7])
    with killed("training_step", step), pytest.raises(Killed):
        one.measure(one.cells()[0])
    folder, other = tmp_path / "runs/eager-seed7", tmp_path / "straight/eager-seed7"
    assert not (folder / FINISHED).exists()
    with counted() as taken:
        again = as_trained(rows_of(bench(seeds=[7])))["eager", 7]
    assert len(taken) == (8 if step > 8 else 16), "what the checkpoint holds is not done again"
    expected = weights(other)
    for name, weight in weights(folder).items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=0)
    for column in ("accuracy", "loss", "best_val_accuracy", "best_epoch"):
        assert again[column] == pytest.approx(straight[column])
    seconds = [moment.seconds for moment in moments(folder)]
    assert [moment.step for moment in moments(folder)] == [m.step for m in moments(other)]
    assert seconds == sorted(seconds)


def test_a_run_that_was_killed_behind_its_last_step_only_evaluates(bench, tmp_path):
    one, folder = bench(), tmp_path / "runs/eager-seed0"
    with killed("test_step", 1), pytest.raises(Killed):
        one.measure(one.cells()[0])
    assert not (folder / FINISHED).exists()
    train_s = moments(folder)[-1].seconds
    with counted() as taken:
        own = as_trained(rows_of(bench()))["eager", 0]
    assert taken == []
    assert own["train_s"] == train_s
    assert (folder / FINISHED).exists()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.slow
def test_the_command_keeps_what_was_done_when_it_is_killed(tmp_path):
    dying = (
        "import os, signal, sys; from itertools import count; "
        "from vitrail.training.classifier import Classifier; from vitrail.cli import bench; "
        "step, calls = Classifier.training_step, count(1); "
        "Classifier.training_step = lambda self, batch: os.kill(os.getpid(), signal.SIGKILL) "
        "if next(calls) == int(os.environ['DIE_AT']) else step(self, batch); "
        "sys.argv[0] = 'bench.py'; bench()"
    )
    words = (*TINY, "bench.backends=[eager,sdpa_math]", "bench.seeds=[0]", "hydra.run.dir=out")

    def call(die_at: int, *more: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", dying, *words, *more],
            cwd=tmp_path, env={**os.environ, "DIE_AT": str(die_at), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=400,
        )  # fmt: skip

    first = call(16 + 12)  # in the second epoch of the second run
    assert first.returncode == -signal.SIGKILL, first.stderr
    runs = tmp_path / "out/runs"
    assert (runs / "eager-seed0" / FINISHED).is_file()
    assert not (runs / "sdpa_math-seed0" / FINISHED).exists()
    before = (runs / "eager-seed0/checkpoints/last.ckpt").stat().st_mtime_ns
    second = call(10**6)
    assert second.returncode == 0, second.stderr
    assert "kept: trained with eager, seed 0" in second.stdout
    assert "16 optimizer steps of which 8 are done" in second.stdout
    assert (runs / "eager-seed0/checkpoints/last.ckpt").stat().st_mtime_ns == before
    rows = json.loads((tmp_path / "out/results.json").read_text())["rows"]
    assert {row["trained_with"] for row in rows} == {"eager", "sdpa_math"}
    assert "equal within noise" in second.stdout
    assert (tmp_path / "out/report.html").is_file()


@pytest.mark.parametrize(
    "overrides, changes, message",
    [
        ([], {"backends": []}, r"bench.backends=\[\] must name one or more"),
        ([], {"seeds": [1, 1]}, r"bench.seeds=\[1, 1\] must name one or more, each once"),
        ([], {"seeds": [-1]}, "seed must be a whole number"),
        ([], {"backends": ["sdpa_flush"]}, "backend=sdpa_flush does not exist; did you mean sdpa_"),
        ([], {"target": 90}, "bench.target=90 is no accuracy"),
        (["trainer=ddp"], {}, "trainer.devices=auto may be several devices"),
        (["model.heads=3"], {}, "dim=16 does not split over heads=3"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(bench, overrides, changes, message):
    with pytest.raises(Exception, match=message):
        bench(*overrides, **changes)


def trained(accuracies: dict[int, float], images: int = 10_000, **more) -> dict[int, Row]:
    return {
        seed: {
            "trained_with": "x", "evaluated_with": "x", "seed": seed, "accuracy": accuracy,
            "images": images, "split": "test", "layers": "x", "train_s": 10.0, "to_target_s": 4.0,
            "images_per_second": 100.0, "drift_largest": None, "drift_relative": None,
            "changed_predictions": None, "refused": "", **more,
        }
        for seed, accuracy in accuracies.items()
    }  # fmt: skip


def test_the_test_is_students_on_pairs_of_seeds():
    one = {0: 0.90, 1: 0.80, 2: 0.85, 3: 0.70}
    more = {0: 0.93, 1: 0.84, 2: 0.88, 3: 0.735}
    said = verdict("a", trained(one), "b", trained(more), among=1)
    differences = [more[seed] - one[seed] for seed in one]
    low, high = stats.t.interval(0.95, 3, loc=sum(differences) / 4, scale=stats.sem(differences))
    assert said == (
        f"a and b: not equal; b less a is {100 * sum(differences) / 4:+.2f} points, 95 % interval "
        f"{100 * low:+.2f} to {100 * high:+.2f} (t test on 4 paired seeds, trusted no further than "
        "10,000 images allow)."
    )
    assert stats.ttest_rel(list(one.values()), list(more.values())).pvalue < 0.05
    assert mean(trained(one)).overlaps(mean(trained(more))), "unpaired, it could not be told"


def test_differences_inside_the_noise_are_called_none():
    one, other = trained({0: 0.90, 1: 0.92}), trained({0: 0.91, 1: 0.91})
    assert "a and b: equal within noise; b less a is +0.00 points" in verdict(
        "a", one, "b", other, among=1
    )


def test_two_seeds_that_agree_by_chance_prove_nothing_on_few_images():
    one, other = {0: 0.90, 1: 0.90}, {0: 0.91, 1: 0.91}
    few = verdict("a", trained(one, 100), "b", trained(other, 100), among=1)
    many = verdict("a", trained(one, 100_000), "b", trained(other, 100_000), among=1)
    assert few.startswith("a and b: equal within noise")
    assert many.startswith("a and b: not equal")


def test_several_comparisons_share_the_chance_of_an_error():
    one, other = {0: 0.90, 1: 0.80, 2: 0.85}, {0: 0.93, 1: 0.84, 2: 0.888}
    alone = verdict("a", trained(one), "b", trained(other), among=1)
    among = verdict("a", trained(one), "b", trained(other), among=40)
    assert alone.startswith("a and b: not equal")
    assert among.startswith("a and b: equal within noise")
    assert "for all 40 comparisons together" in among


def test_one_seed_is_judged_by_its_images_and_says_so():
    near = verdict("a", trained({0: 0.90}, 100), "b", trained({0: 0.95}, 100), among=1)
    far = verdict("a", trained({0: 0.50}, 100), "b", trained({0: 0.95}, 100), among=1)
    assert near.startswith("a and b: equal within noise; their 95 % intervals, of one seed's")
    assert "do not overlap" in far
    assert far.startswith("a and b: not equal")


def test_findings_tell_means_times_drift_and_figures():
    rows = [
        *trained({0: 0.90, 1: 0.92}, trained_with="eager", evaluated_with="eager").values(),
        *trained(
            {0: 0.91, 1: 0.91}, trained_with="auto", evaluated_with="auto", layers="eager",
            to_target_s=None,
        ).values(),
        trained({0: 0.9}, trained_with="eager", evaluated_with="sdpa", drift_largest=0.25,
                drift_relative=1e-3, changed_predictions=2)[0],
        {**trained({0: 0.9})[0], "refused": "cannot run on cpu"},
    ]  # fmt: skip
    found = findings(rows, 0.9)
    low, high = stats.t.interval(0.95, 1, loc=0.91, scale=stats.sem([0.90, 0.92]))
    assert found.sentences[0] == (
        f"eager (computed by x): 91.00 % of test, 95 % interval {100 * low:.2f} % to 100.00 % "
        "(Student's t over 2 seeds, no narrower than 10,000 images allow); training took 10.0 s "
        "(10.0 to 10.0), and 90.00 % on val after 4.0 s."
    )
    assert high > 1
    assert "auto (computed by eager): 91.00 %" in found.sentences[1]
    assert "2 of 2 did not reach 90.00 % on val" in found.sentences[1]
    assert found.sentences[2].startswith("eager and auto: equal within noise")
    away = "1.0e-03 away at most, relative in the L2 norm (sdpa on a checkpoint of eager"
    assert away in found.sentences[3]
    assert "changes 2 of 10,000 predictions" in found.sentences[3]
    assert found.figures == {
        "eager/accuracy": pytest.approx(0.91), "eager/train_s": 10.0, "eager/to_target_s": 4.0,
        "eager/images_per_second": 100.0, "auto/accuracy": pytest.approx(0.91),
        "auto/train_s": 10.0, "auto/images_per_second": 100.0, "drift_relative": 1e-3,
    }  # fmt: skip
    speed, time = found.charts
    assert list(speed.lines) == list(time.lines) == ["eager", "auto"]
    assert speed.lines["auto"][0].x == 100.0
    assert findings([], 0.9).sentences == []


def test_a_run_keeps_the_config_that_it_was_given(tmp_path):
    with initialize_config_dir(str(configs()), version_base="1.3"):
        config = compose("bench", [*TINY])
    before = OmegaConf.to_container(config, resolve=False)
    run = SeedRun(config, tmp_path, backend="sdpa", seed=5)
    assert OmegaConf.to_container(config, resolve=False) == before
    assert (run.config.backend, run.config.model.backend, run.config.data.seed) == (
        "sdpa", "sdpa", 5,
    )  # fmt: skip
