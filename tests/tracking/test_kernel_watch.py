from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.attention.backends import Kernels
from vitrail.tracking.kernel_watch import KernelWatch, WrongKernel, broken_promises

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"


class Attention(LightningModule):
    """A loss that is one attention call, by the kernel that is named."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel
        self.weight = torch.nn.Parameter(torch.ones(1, 2, 6, 8))
        self.watched = []

    def forward(self):
        with sdpa_kernel(self.kernel):
            return F.scaled_dot_product_attention(self.weight, self.weight, self.weight)

    def training_step(self, batch, batch_idx):
        self.watched.append(torch.autograd._profiler_enabled())
        return self().square().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def watch(fit):
    """A function that trains under a watch and notes what was seen, in a list that it returns."""

    def run(model, promises, *, step=0, seen=None, **knobs):
        seen = [] if seen is None else seen
        watching = KernelWatch(promises, seen.append, step=step)
        try:
            fit(False, model=model, callbacks=[watching], **knobs)
        finally:
            assert not torch.autograd._profiler_enabled()
        return seen

    return run


def promise(*, required=(), forbidden=()):
    return Kernels(required=frozenset(required), forbidden=frozenset(forbidden))


FLASH_ALONE = {"sdpa_flash": promise(required=[FLASH], forbidden=[MATH])}


@pytest.mark.parametrize("knobs", [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}])
def test_the_first_step_alone_is_watched_in_both_directions(watch, knobs):
    model = Attention(SDPBackend.FLASH_ATTENTION)
    [seen] = watch(model, FLASH_ALONE, **knobs)
    assert model.watched == [True] + [False] * 9
    assert seen.step == 0
    assert seen.forward.keys() == {FLASH, "aten::scaled_dot_product_attention"}
    assert seen.forward[FLASH] == 1
    assert seen.backward == {f"{FLASH}_backward": 1}
    row = {"direction": "backward", "kernel": f"{FLASH}_backward", "calls": 1}
    assert seen.rows()[-1] == row


def test_a_kernel_that_was_not_promised_stops_the_run_and_is_recorded(watch):
    model, seen = Attention(SDPBackend.MATH), []
    with pytest.raises(WrongKernel, match=f"promises {FLASH}, .*rules out {MATH}, which ran"):
        watch(model, FLASH_ALONE, seen=seen)
    assert len(model.watched) == 1
    assert seen[0].forward[MATH] == 1
    assert seen[0].backward["aten::_softmax_backward_data"] == 1


def test_a_later_step_can_be_watched(watch):
    model = Attention(SDPBackend.FLASH_ATTENTION)
    [seen] = watch(model, {}, step=2)
    assert seen.step == 2
    assert model.watched == [False, False, True] + [False] * 7


@pytest.mark.slow
def test_a_compiled_step_is_seen_without_its_tracing(watch):
    model = Attention(SDPBackend.FLASH_ATTENTION)
    model.compile()
    [seen] = watch(model, FLASH_ALONE, step=1)
    assert seen.forward == {FLASH: 1}
    assert seen.backward == {f"{FLASH}_backward": 1}


@pytest.mark.parametrize("failing", ["training_step", "backward"])
def test_a_step_that_fails_leaves_no_profiler_open(watch, monkeypatch, failing):
    def fail(*_):
        raise RuntimeError("out of memory")

    model = Attention(SDPBackend.MATH)
    monkeypatch.setattr(model, failing, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        watch(model, {})


def test_a_step_without_a_loss_is_passed_over(watch, monkeypatch):
    model = Attention(SDPBackend.FLASH_ATTENTION)
    with_loss = model.training_step

    def training_step(batch, batch_idx):
        return None if batch_idx == 0 else with_loss(batch, batch_idx)

    monkeypatch.setattr(model, "training_step", training_step)
    with pytest.warns(UserWarning, match="`training_step` returned `None`"):
        [seen] = watch(model, {})
    assert seen.forward[FLASH] == 1


def test_another_profiler_is_left_alone(fit):
    watching = KernelWatch({}, pytest.fail, step=0)
    with torch.autograd.profiler.profile():
        with pytest.warns(UserWarning, match="the receipt will name no kernels"):
            fit(False, model=Attention(SDPBackend.MATH), callbacks=[watching])
        assert torch.autograd._profiler_enabled()


def test_only_the_first_process_watches():
    watching = KernelWatch({}, pytest.fail, step=0)
    watching.on_train_batch_start(SimpleNamespace(is_global_zero=False), None, None, 0)
    assert not torch.autograd._profiler_enabled()


def test_what_one_backend_rules_out_another_may_require():
    promises = {
        "eager": promise(required=["aten::bmm"], forbidden=["aten::scaled_dot_product_attention"]),
        "sdpa": promise(required=["aten::scaled_dot_product_attention"]),
    }
    assert not broken_promises(promises, {"aten::bmm", "aten::scaled_dot_product_attention"})
    assert broken_promises(promises, {"aten::scaled_dot_product_attention"}) == [
        "backend=eager promises aten::bmm, which did not run"
    ]


def test_a_promise_may_name_kernels_by_a_pattern():
    promises = {"flex": promise(required=["triton_tem_fused_flex_attention*"], forbidden=["*bmm"])}
    assert not broken_promises(promises, {"triton_tem_fused_flex_attention_0"})
    assert broken_promises(promises, {"triton_tem_fused_flex_attention_0", "aten::bmm"}) == [
        "backend=flex rules out aten::bmm, which ran"
    ]
