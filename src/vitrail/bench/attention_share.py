"""How much of a step is attention itself: what a backend computes, forward and backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent

from vitrail.attention.backends import Backend, Request
from vitrail.attention.selection.requests import attention_layers
from vitrail.tracking.kernel_watch import quiet_profile

# Our calls, and timm's, which know of no backend.
CALLS = ("vitrail::attention", "aten::scaled_dot_product_attention")
NODE = "autograd::engine::evaluate_function: "


def attention_share(network: nn.Module, step: Callable[[], object], *, device: str) -> float | None:
    """The share of a step's time that goes to attention calls and to their gradients, 0 to 1.

    The projections before and after attention do not count. Time is the processor's, on CUDA the
    GPU's. The step is called once; a profiler makes small operations dearer than they are. None
    where no call is seen, as in a compiled graph, and on other devices.
    """
    if device not in ("cpu", "cuda"):
        return None
    on_gpu = device == "cuda"
    with _named(network), quiet_profile(device) as seen:
        step()
    # What the GPU did is counted with the operation that asked for it, and listed again by itself.
    events = [event for event in seen.function_events if event.device_type == DeviceType.CPU]
    whole = sum(_seconds(event, on_gpu) for event in events if event.cpu_parent is None)
    calls = [event for event in events if event.name in CALLS and not _inside_a_call(event)]
    numbers = {
        inner.sequence_nr
        for call in calls
        for inner in _descendants(call)
        if inner.sequence_nr >= 0
    }
    nodes = [
        event for event in events if event.name.startswith(NODE) and event.sequence_nr in numbers
    ]
    if not calls:
        return None
    return sum(_seconds(event, on_gpu) for event in (*calls, *nodes)) / whole


class _Named(Backend):
    """A backend whose calls the profiler sees under one name."""

    def __init__(self, backend: Backend):
        self.name, self._backend = backend.name, backend

    def refuse(self, request: Request) -> list[str]:
        return self._backend.refuse(request)

    def __call__(self, q, k, v, **given):
        with record_function(CALLS[0]):
            return self._backend(q, k, v, **given)


@contextmanager
def _named(network: nn.Module) -> Iterator[None]:
    layers = attention_layers(network).values()
    own = [layer.backend for layer in layers]
    try:
        for layer in layers:
            layer.backend = _Named(layer.backend)
        yield
    finally:
        for layer, backend in zip(layers, own, strict=True):
            layer.backend = backend


def _seconds(event: FunctionEvent, on_gpu: bool) -> float:
    return 1e-6 * (event.device_time_total if on_gpu else event.cpu_time_total)


def _inside_a_call(event: FunctionEvent) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name in CALLS:
            return True
        parent = parent.cpu_parent
    return False


def _descendants(event: FunctionEvent) -> Iterator[FunctionEvent]:
    yield event
    for child in event.cpu_children:
        yield from _descendants(child)
