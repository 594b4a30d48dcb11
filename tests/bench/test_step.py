"""`bench=step`: who is timed, what the figures are made of, and what is not timed and why."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from vitrail.attention import backends
from vitrail.attention.backends.flex import Flex
from vitrail.attention.backends.sdpa_math import SdpaMath
from vitrail.attention.selection import layers, tune
from vitrail.attention.selection.gate import FailedGate
from vitrail.bench import step, step_members
from vitrail.bench.measurement import Context, Row
from vitrail.bench.memory import RESOLUTION_MIB
from vitrail.bench.memory import peak_mib as real_peak_mib
from vitrail.bench.step import StepBench
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
from vitrail.startup import configs
from vitrail.training.classifier import Classifier

TINY = (
    "bench=step", "trainer=cpu", "data.image_size=[8,12]", "data.batch_size=4",
    "precision=32-true", "logger=none",
)  # fmt: skip
OURS = ("model.dim=16", "model.depth=2", "model.heads=2")
PEAK = 1e9  # floating-point operations a second


@pytest.fixture(autouse=True)
def nothing_else_is_measured(monkeypatch):
    """No process for memory, no matrix product, and what auto would take is told."""
    monkeypatch.setattr(step_members, "peak_mib", lambda *_, device: 1.5)
    monkeypatch.setattr(step, "matmul_peak", lambda *_: PEAK)
    fastest = lambda _, names: {"eager": 0.1} | dict.fromkeys(names, 0.2)  # noqa: E731
    monkeypatch.setattr(tune, "measure", fastest)


@pytest.fixture
def bench(tmp_path) -> Callable[..., StepBench]:
    """bench("model=…", rounds=…): a measurement of a small model, with few rounds."""

    def build(*overrides: str, read=None, **changes) -> StepBench:
        with initialize_config_dir(str(configs()), version_base="1.3"):
            ours = () if "model=timm" in overrides else OURS
            config = compose("bench", [*TINY, *ours, *overrides])
        knobs = {"rounds": 6, "steps": 1, "seconds": 1e3} | changes
        knobs |= {} if read is None else {"read": read}
        return instantiate(config.bench, _partial_=True, _convert_="all")(
            context=Context(config, tmp_path), **knobs
        )

    return build


def measured(bench: StepBench, mode: str) -> dict[str, Row]:
    [cell] = [cell for cell in bench.cells() if cell.key == mode]
    rows = bench.measure(cell)
    assert all(list(row) == list(rows[0]) for row in rows)
    return {row["member"]: row for row in rows}


class Steady:
    """A clock on which a quarter of a second passes between any two readings."""

    def __init__(self):
        self.now = 0.0

    def __call__(self, device: str) -> float:
        self.now += 0.25
        return self.now


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_every_backend_has_a_row_and_so_have_the_baselines(bench, mode, monkeypatch):
    monkeypatch.setattr(Flex, "refuse", lambda *_: ["wait for a compiler"])
    rows = measured(bench(), mode)
    assert rows.keys() >= {*backends.names(), "timm"}
    assert ("lightning" in rows) is (mode == "training")
    for name, row in rows.items():
        figures = (row["step_ms"], row["images_per_second"], row["mfu_percent"])
        assert all(value is None for value in figures) is bool(row["refused"]), name
    assert rows["sdpa_cudnn"]["refused"] == "cannot run on cpu"
    assert rows["eager"]["auto"]
    assert [name for name, row in rows.items() if row["auto"]] == ["eager"]
    assert rows["timm"]["time_vs_timm"] == 1.0
    order = [row["step_ms"] for row in rows.values() if not row["refused"]]
    assert order == sorted(order)


def test_figures_follow_from_the_turns(bench):
    one = bench("backend=eager", backends=["eager"], rounds=7, steps=3, read=Steady())
    row = measured(one, "inference")["eager"]
    assert row["step_ms"] == pytest.approx(1000 * 0.25 / 3)
    assert row["images_per_second"] == pytest.approx(4 * 3 / 0.25)
    assert row["step_ms_p10"] <= row["step_ms"] <= row["step_ms_p90"]
    flops = 4 * forward_flops(one._settings["inference"].plan.meta_model, (8, 12))
    assert row["mfu_percent"] == pytest.approx(100 * flops / (0.25 / 3) / PEAK)
    assert row["time_vs_timm"] == 1.0
    weights = one._settings["inference"].network.state_dict().values()
    assert row["state_mib"] == sum(weight.nbytes for weight in weights) / 2**20
    assert row["peak_mib"] == row["state_mib"] + 1.5


def test_a_training_step_is_three_times_the_work_and_keeps_four_tensors_a_weight(bench):
    one = bench(backends=["eager"])
    train, infer = (one._settings[mode] for mode in ("training", "inference"))
    assert train.flops == 3 * infer.flops
    row = measured(one, "training")["eager"]
    weights = sum(parameter.nbytes for parameter in train.network.parameters()) / 2**20
    assert row["state_mib"] == pytest.approx(4 * weights, rel=0.01), "weight, gradient, AdamW's two"


def test_lightnings_overhead_is_that_over_the_bare_loop_of_the_same_round(bench, monkeypatch):
    own = Classifier.training_step

    def slow(self, batch):
        time.sleep(0.1)  # which no other member has, and is more than what noise adds to a step
        return own(self, batch)

    monkeypatch.setattr(Classifier, "training_step", slow)
    one = bench("backend=eager", backends=["sdpa_math"], rounds=9)
    rows = measured(one, "training")
    lightning = rows["lightning"]
    assert lightning["backend"] == "eager", "the config's, which is timed though nobody named it"
    assert lightning["overhead_ms_low"] <= lightning["overhead_ms"] <= lightning["overhead_ms_high"]
    assert 50 < lightning["overhead_ms"] < 500
    assert lightning["overhead_percent"] > 100
    assert all(row["overhead_ms"] is None for name, row in rows.items() if name != "lightning")
    assert not list(one.context.folder.iterdir()), "what the run wrote is gone"


def test_a_turn_has_as_many_steps_as_there_is_time_for_and_at_least_one(bench):
    rows = {
        seconds: measured(bench(backends=["eager"], steps=4, seconds=seconds), "inference")["eager"]
        for seconds in (1e3, 1e-9)
    }
    assert {seconds: row["steps"] for seconds, row in rows.items()} == {1e3: 4, 1e-9: 1}
    one = bench(rounds=9, steps=10, seconds=30)
    members = [SimpleNamespace(second_s=0.25), SimpleNamespace(second_s=0.5)]
    assert one._steps_of_a_turn(members) == 4, "ten rounds of four times 0.75 s are 30 s"


def test_what_fails_its_gate_is_not_called(bench, monkeypatch):
    check = layers.prove

    def fail(request, backend):
        if backend.name == "sdpa_math":
            raise FailedGate("backend=sdpa_math fails the gate: dq is wrong")
        return check(request, backend)

    monkeypatch.setattr(layers, "prove", fail)
    monkeypatch.setattr(SdpaMath, "__call__", lambda *_, **__: pytest.fail("it was called"))
    for mode in ("training", "inference"):
        row = measured(bench("gate=false", backends=["sdpa_math", "eager"]), mode)["sdpa_math"]
        assert row["refused"] == "backend=sdpa_math fails the gate: dq is wrong"
        assert row["step_ms"] is None


def test_what_finds_too_little_memory_is_not_called_here(bench, monkeypatch):
    def full(_, call, **__):
        if b"sdpa_math" in call:
            raise MemoryError("it takes more memory than this machine has free")
        return 1.0

    monkeypatch.setattr(step_members, "peak_mib", full)
    one = bench(backends=["sdpa_math", "eager"])
    monkeypatch.setattr(step_members.Member, "of", called_without("sdpa_math"))
    row = measured(one, "training")["sdpa_math"]
    assert row["refused"] == "it takes more memory than this machine has free"


def called_without(name: str):
    of = step_members.Member.of

    def checked(loop, layers, *arguments, **knobs):
        assert name not in layers.values()
        return of(loop, layers, *arguments, **knobs)

    return checked


def test_a_backend_that_the_config_names_and_that_cannot_is_an_error(bench):
    one = bench("backend=sdpa_cudnn")
    with pytest.raises(ValueError, match="backend=sdpa_cudnn cannot run on cpu"):
        one.measure(one.cells()[0])


def test_layers_of_several_backends_are_a_member_of_their_own(bench, monkeypatch):
    def by_tokens(request, names):
        first = "sdpa" if request.keys == 6 else "eager"
        return {first: 0.1} | {name: 0.2 for name in names if name != first}

    monkeypatch.setattr(tune, "measure", by_tokens)
    rows = measured(bench("pattern=axial", backends=["eager"]), "training")
    assert (rows["auto"]["backend"], rows["auto"]["auto"]) == ("sdpa + eager", True)
    assert rows["lightning"]["backend"] == "sdpa + eager"
    assert rows["timm"]["refused"].startswith("timm's VisionTransformer has no pattern such as")
    assert rows["auto"]["time_vs_timm"] is None


def test_a_model_of_timm_has_its_own_attention_and_lightning(bench):
    rows = measured(bench("model=timm", "model.name=resnet10t", "data.image_size=32"), "training")
    assert rows.keys() == {"own", "lightning", "timm"}
    assert rows["own"]["attention_percent"] is None
    assert rows["own"]["step_ms"] > 0
    assert rows["timm"]["refused"]


def test_padded_images_are_padded_here_too(bench):
    rows = measured(
        bench("data.resize=native", "data.cache=false", "data.pad_to=2", backends=["eager"]),
        "inference",
    )
    assert rows["eager"]["step_ms"] > 0
    assert rows["timm"]["refused"].startswith("timm's VisionTransformer takes no padding")


def test_a_graph_is_a_member_and_its_first_step_is_told_apart(bench, monkeypatch):
    compiled = []
    monkeypatch.setattr(ViT, "compile", lambda self: compiled.append(self))
    rows = measured(bench("compile=true", backends=["eager"]), "training")
    assert len(compiled) == 1
    assert rows["compiled"]["first_step_s"] > 0
    assert rows["compiled"]["backend"] == "eager"
    assert rows["compiled"]["attention_percent"] is None


def test_a_graph_that_cannot_be_made_is_refused_with_the_first_line(bench, monkeypatch):
    def broken(_):
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(ViT, "compile", broken)
    rows = measured(bench("compile=true", backends=["eager"]), "inference")
    assert rows["compiled"]["refused"] == "no C++ compiler"
    assert rows["eager"]["step_ms"] > 0


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(bench, monkeypatch):
    monkeypatch.setattr(step_members, "peak_mib", real_peak_mib)
    small, large = (
        measured(bench(f"data.batch_size={size}", "model.dim=64", backends=["eager"]), "training")
        for size in (16, 64)
    )
    beyond = [rows["eager"]["peak_mib"] - rows["eager"]["state_mib"] for rows in (small, large)]
    assert beyond[0] > RESOLUTION_MIB
    assert beyond[1] / beyond[0] == pytest.approx(4, rel=0.3)
    assert large["timm"]["peak_mib"] > 0


@pytest.mark.parametrize(
    "overrides, changes, message",
    [
        ([], {"rounds": 5}, "bench.rounds=5 bounds no median; use 6 or more"),
        ([], {"steps": 0}, "bench.steps=0 measures nothing"),
        ([], {"seconds": 0}, "bench.seconds=0 measures nothing"),
        ([], {"backends": []}, r"bench.backends=\[\] leaves nothing to measure"),
        ([], {"backends": ["flex2"]}, "backend=flex2 does not exist"),
        (["backend=eagre"], {}, "backend=eagre does not exist; did you mean eager"),
        (["trainer=ddp"], {}, "trainer.devices=auto may be several devices"),
        (["model=timm", "data.image_size=32"], {"backends": ["eager"]}, "backend=eager has no use"),
        (["precision=16-mixed"], {}, "precision=16-mixed computes in fp16"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(bench, overrides, changes, message):
    with pytest.raises(ValueError, match=message):
        bench(*overrides, **changes)


def test_findings_name_what_differs_and_what_does_not(bench):
    def row(mode, member, ms, spread, **more) -> Row:
        figures = {
            "mode": mode, "member": member, "step_ms": ms, "step_ms_p10": ms - spread,
            "step_ms_p90": ms + spread, "images_per_second": 4000 / ms,
            "images_per_second_p10": 4000 / (ms + spread),
            "images_per_second_p90": 4000 / (ms - spread), "peak_mib": 10.0, "refused": "",
            "attention_percent": 25.0, "mfu_percent": 12.0,
        }  # fmt: skip
        for name in ("time_vs_timm", "overhead_ms", "overhead_percent"):
            figures |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        return figures | more

    faster = {"time_vs_timm": 0.5, "time_vs_timm_low": 0.4, "time_vs_timm_high": 0.6}
    lightning = {"overhead_ms": 2.0, "overhead_ms_low": 1.0, "overhead_ms_high": 3.0}
    lightning |= {"overhead_percent": 10.0, "overhead_percent_low": 5.0}
    lightning |= {"overhead_percent_high": 15.0, "peak_mib": None}
    rows = [
        row("training", "eager", 20.0, 1.0, **faster),
        row("training", "sdpa", 21.0, 1.0),
        row("training", "reference", 40.0, 1.0),
        row("training", "timm", 40.0, 1.0),
        row("training", "lightning", 22.0, 1.0, **lightning),
        {**dict.fromkeys(row("training", "flex", 1.0, 0.0)), "refused": "cannot"},
    ]
    found = bench().findings(rows)
    speed, share, overhead = found.sentences
    assert speed == (
        "training: the fastest of vitrail's are eager and sdpa, with no difference between them "
        "beyond the noise (eager: 200 images/s); a step by eager takes 0.50 times as long as "
        "timm's (95 % interval 0.40 to 0.60)."
    )
    assert share == (
        "training: eager reaches 12 % of this machine's matrix product, and attention is 25 % of "
        "its time."
    )
    assert overhead == (
        "training: Lightning takes 2.00 ms a step more than the bare loop (95 % interval 1.00 to "
        "3.00 ms), which is 10.0 % (5.0 to 15.0 %) of this step, and 2.0 % of one of 100 ms."
    )
    [chart] = found.charts
    assert list(chart.lines) == ["eager", "sdpa", "reference", "timm"]
    assert found.figures["training/lightning/overhead_percent"] == 10.0
    assert found.figures["training/eager/images_per_second"] == 200.0
    assert "training/lightning/peak_mib" not in found.figures
    rows[4] |= {"overhead_ms_low": -1.0, "overhead_percent_low": -5.0}
    assert bench().findings(rows).sentences[2] == (
        "training: Lightning's step cannot be told from the bare loop's (95 % interval -5.0 to "
        "+15.0 %)."
    )
