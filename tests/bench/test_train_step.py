"""`bench=step`: who is timed, what the figures are made of, and what is not timed and why."""

import time
from collections.abc import Callable

import pytest

from vitrail.attention import backends
from vitrail.attention.backends.flex import Flex
from vitrail.attention.backends.sdpa_math import SdpaMath
from vitrail.attention.selection import layers, tune
from vitrail.attention.selection.gate import FailedGate
from vitrail.bench import train_step
from vitrail.bench.bare_loop import Loop, NoAttention, use_backends
from vitrail.bench.device import RESOLUTION_MIB
from vitrail.bench.device import peak_mib as real_peak_mib
from vitrail.bench.report import Row, table_of
from vitrail.bench.train_step import StepBench
from vitrail.model import ViT
from vitrail.model.flops import forward_flops
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
    monkeypatch.setattr(train_step, "peak_mib", lambda *_, device: 1.5)
    monkeypatch.setattr(train_step, "matmul_peak", lambda *_: (PEAK, "float32"))
    fastest = lambda _, names: {"eager": 0.1} | dict.fromkeys(names, 0.2)  # noqa: E731
    monkeypatch.setattr(tune, "measure", fastest)


@pytest.fixture
def bench(build) -> Callable[..., StepBench]:
    """bench("model=…", rounds=…): a measurement of a small model, with few rounds."""

    def call(*overrides: str, **keys) -> StepBench:
        ours = () if "model=timm" in overrides else OURS
        return build(*TINY, *ours, *overrides, **{"rounds": 6, "steps": 1, "seconds": 1e3} | keys)

    return call


def measured(bench: StepBench, mode: str) -> dict[str, Row]:
    columns = dict.fromkeys(bench.columns)
    return {row["member"]: columns | row for row in bench.measure(mode)}


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
    assert rows["sdpa_cudnn"]["refused"].startswith("backend=sdpa_cudnn cannot run on cpu")
    assert rows["eager"]["auto"]
    assert [name for name, row in rows.items() if row["auto"]] == ["eager"]
    assert rows["timm"]["time_ratio"] is None
    assert {row["baseline"] for row in rows.values() if not row["refused"]} == {"timm"}
    order = [row["step_ms"] for row in rows.values() if not row["refused"]]
    assert order == sorted(order)


def test_figures_follow_from_the_turns(bench):
    one = bench("backend=eager", backends=["eager"], rounds=7, steps=3, clock=Steady())
    row = measured(one, "inference")["eager"]
    assert row["step_ms"] == pytest.approx(1000 * 0.25 / 3)
    assert row["images_per_second"] == pytest.approx(4 * 3 / 0.25)
    assert row["step_ms_p10"] <= row["step_ms"] <= row["step_ms_p90"]
    flops = 4 * forward_flops(one._settings["inference"].plan.meta_model, (8, 12))
    assert row["mfu_percent"] == pytest.approx(100 * flops / (0.25 / 3) / PEAK)
    assert (row["time_ratio"], row["verdict"]) == (1.0, "no difference shown")
    assert row["attention_percent"] == 0.0, "a step without attention takes as long on this clock"
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
    assert not list(one.folder.iterdir()), "what the run wrote is gone"


def test_a_turn_has_as_many_steps_as_there_is_time_for_and_at_least_one(bench):
    rows = {
        seconds: measured(bench(backends=["eager"], steps=4, seconds=seconds), "inference")["eager"]
        for seconds in (1e3, 1e-9)
    }
    assert {seconds: row["steps"] for seconds, row in rows.items()} == {1e3: 4, 1e-9: 1}


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
    def full(*call, **_):
        if "sdpa_math" in call[2].values():
            raise MemoryError("it takes more memory than this machine has free")
        return 1.0

    monkeypatch.setattr(train_step, "peak_mib", full)
    attend = SdpaMath.__call__

    def called(self, q, *rest, **given):
        assert len(q) != 4, "the gate's samples are three, and the step's four"
        return attend(self, q, *rest, **given)

    monkeypatch.setattr(SdpaMath, "__call__", called)
    row = measured(bench(backends=["sdpa_math", "eager"]), "training")["sdpa_math"]
    assert row["refused"] == "it takes more memory than this machine has free"


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
    assert rows["auto"]["baseline"] != "timm", "the fastest, where timm has no such model"


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
    monkeypatch.setattr(train_step, "peak_mib", real_peak_mib)
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
        ([], {"rounds": 2}, "bench.rounds must be >= 3, got 2"),
        ([], {"steps": 0}, "bench.steps must be >= 1, got 0"),
        ([], {"seconds": 0}, "bench.seconds must be > 0, got 0"),
        ([], {"backends": []}, r"bench.backends=\[\] leaves nothing to measure"),
        ([], {"baseline": "tim"}, "bench.baseline takes .*timm, .*got tim"),
        ([], {"backends": ["flex2"]}, "backend=flex2 does not exist"),
        (["backend=eagre"], {}, "backend=eagre does not exist; did you mean eager"),
        (["trainer=ddp"], {}, "one device, got trainer.devices=auto"),
        (["model=timm", "data.image_size=32"], {"backends": ["eager"]}, "backend=eager has no use"),
        (["precision=16-mixed"], {}, "precision=16-mixed computes in fp16"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(bench, overrides, changes, message):
    with pytest.raises(ValueError, match=message):
        bench(*overrides, **changes)


def test_attention_s_share_is_what_a_step_without_attention_takes_less(bench, monkeypatch):
    attend = SdpaMath.__call__

    def slow(self, *tensors, **given):
        time.sleep(0.05)  # in each of two layers
        return attend(self, *tensors, **given)

    monkeypatch.setattr(SdpaMath, "__call__", slow)
    one = bench("backend=sdpa_math", backends=["sdpa_math"], rounds=3)
    row = measured(one, "training")["sdpa_math"]
    assert 80 < row["attention_percent"] < 100
    assert row["attention_percent_low"] <= row["attention_percent"] <= row["attention_percent_high"]


@pytest.mark.parametrize("pool", ["avg", "map"])
def test_a_step_without_attention_has_every_other_gradient(bench, pool):
    setting = bench(f"model.pool={pool}")._settings["training"]
    layers = dict.fromkeys(setting.plan.layers, NoAttention())
    loop = Loop(setting.network, setting.parts)
    use_backends(loop.network, layers)
    loop.step()
    assert all(weight.grad is not None for weight in loop.network.parameters())


def test_a_chart_shows_speed_over_memory_for_each_mode(bench):
    words = {"step_ms": 1.0, "peak_mib": 2.0, "images_per_second": 9.0, "refused": ""}
    rows = [{"mode": mode, "member": "eager"} | words for mode in ("training", "inference")]
    _, charts = bench().summary(table_of(rows))
    assert [chart.name.split(":")[0] for chart in charts] == ["training", "inference"]
    assert charts[0].points()[["x", "y", "line"]].values.tolist() == [[2.0, 9.0, "eager"]]


# 64 tokens, as CIFAR has them with patches of 4 pixels.
SMALL = (
    "bench=step", "trainer=cpu", "data=synthetic", "data.image_size=32", "data.batch_size=64",
    "model=vit", "model.dim=128", "model.depth=3", "model.heads=4", "model.patch_size=4",
    "model.mlp_ratio=2", "model.class_token=false", "model.pool=avg", "logger=none",
)  # fmt: skip


@pytest.mark.slow
def test_a_step_by_auto_is_a_third_faster_than_timm_s_where_a_cpu_computes_bf16(build):
    rows = build(*SMALL, backends=["sdpa"], seconds=20).measure("training")
    [timm] = [row for row in rows if row["member"] == "timm"]
    if "bf16" not in timm["precision"]:
        pytest.skip("this CPU has no fast bf16, where timm's fused kernel is slow")
    [auto] = [row for row in rows if row["auto"]]
    assert auto["baseline"] == "timm"
    assert auto["time_ratio_high"] < 1 / 1.3, "and it is no chance"
