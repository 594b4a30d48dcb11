"""Training and inference steps as torch alone drives them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention import backends
from vitrail.attention.backends import EVERYWHERE, Backend, Capability
from vitrail.bench.device import MIB
from vitrail.data.batches import Batch
from vitrail.training.mixing import Mixing
from vitrail.training.optim import Optim
from vitrail.training.precision import Arithmetic


@dataclass(frozen=True)
class StepParts:
    """All of a step but the network; a process of its own can be sent it.

    batch: on the device that computes, in the weights' dtype. training: or inference, which has no
    use for what follows. clip: the largest norm of all gradients. total_steps: of the learning
    rate's schedule.
    """

    batch: Batch
    arithmetic: Arithmetic
    training: bool
    optim: Optim
    mixing: Mixing
    label_smoothing: float
    clip: float | None
    total_steps: int


class Loop:
    """A network with all that its steps need; it is moved to the batch's device.

    A training step computes what `Classifier.training_step` computes under a Trainer, and logs
    nothing.
    """

    def __init__(self, network: nn.Module, parts: StepParts):
        self.device, scaled = parts.batch.images.device.type, parts.arithmetic.scaled
        self.network = network.to(self.device, parts.arithmetic.dtype).train(parts.training)
        self._parts = parts
        if parts.training:
            self._scaler = torch.amp.GradScaler(self.device, enabled=scaled)
            built = parts.optim.build(network, parts.total_steps, fused=not scaled)
            self._optimizer, self._schedule = built

    def step(self) -> Tensor:
        """Learn from the batch, which gives the loss; in inference the logits (B, C)."""
        parts, (images, labels, valid) = self._parts, self._parts.batch
        with torch.set_grad_enabled(parts.training), parts.arithmetic.casting(self.device):
            if parts.training:
                images, labels = parts.mixing(images, labels, valid)
            logits = self.network(images, *([] if valid is None else [valid]))
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            if not parts.training:
                return logits
            loss = F.cross_entropy(logits, labels, label_smoothing=parts.label_smoothing)
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        if parts.clip:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), parts.clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._schedule.step()
        return loss.detach()

    @property
    def state_mib(self) -> float:
        """Weights, and in training gradients and what the optimizer keeps; after a step."""
        tensors = [*self.network.parameters(), *self.network.buffers()]
        if self._parts.training:
            tensors += [parameter.grad for parameter in self.network.parameters()]
            tensors += [t for state in self._optimizer.state.values() for t in state.values()]
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor)) / MIB


def step_of(
    network: nn.Module, layers: Mapping[str, str], parts: StepParts
) -> Callable[[], Tensor]:
    """The step of a new loop; layers: the name of each attention layer's backend."""
    use_backends(network, layers)
    return Loop(network, parts).step


def use_backends(network: nn.Module, layers: Mapping[str, str | Backend]) -> None:
    """Put these backends, or those of these names, into a network's layers."""
    for name, backend in layers.items():
        loaded = backends.load(backend) if isinstance(backend, str) else backend
        network.get_submodule(name).backend = loaded


class _NoScores(torch.autograd.Function):
    """v forward, and its gradient for q, k and v alike backward."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.shapes = q.shape, k.shape, v.shape
        return v.clone() if v.shape == q.shape else q.clone()  # a pooling query has its own shape

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad if grad.shape == s else grad.new_zeros(s) for s in ctx.shapes)


class NoAttention(Backend):
    """Computes no attention: what a step takes with it is what the rest of the step takes."""

    name = "without attention"
    capabilities = {EVERYWHERE: Capability()}

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        return _NoScores.apply(q, k, v)
