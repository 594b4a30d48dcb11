"""Training and inference steps as torch alone drives them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention import backends
from vitrail.attention.backends import Backend, Request
from vitrail.bench.device import MIB
from vitrail.training.mixing import Mixing
from vitrail.training.optim import Optim
from vitrail.training.precision import Arithmetic


@dataclass(frozen=True)
class Batch:
    """images (B, 3, H, W), labels (B,) int64, valid (B, H, W) bool or None."""

    images: Tensor
    labels: Tensor
    valid: Tensor | None

    @classmethod
    def noise(
        cls,
        size: int,
        image_size: tuple[int, int],
        *,
        classes: int,
        padded: bool,
        device: str,
        dtype: torch.dtype,
    ) -> "Batch":
        """Noise of a data set's shape; padded: every other image is half as wide as the others."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(size, 3, *image_size, generator=generator)
        labels = torch.randint(classes, (size,), generator=generator)
        valid = None
        if padded:
            valid = torch.ones(size, *image_size, dtype=torch.bool, device=device)
            valid[1::2, :, image_size[1] // 2 :] = False
        return cls(images.to(device, dtype), labels.to(device), valid)


@dataclass(frozen=True)
class StepParts:
    """What a training step does beside the network; clip: the largest norm of all gradients."""

    optim: Optim
    mixing: Mixing
    label_smoothing: float
    clip: float | None


class Loop:
    """A network with all that its steps on a batch need; it is moved to the batch's device.

    A training step computes what `Classifier.training_step` computes under a Trainer, and logs
    nothing. parts: None for inference. total_steps: of the learning rate's schedule.
    """

    def __init__(
        self,
        network: nn.Module,
        parts: StepParts | None,
        batch: Batch,
        arithmetic: Arithmetic,
        total_steps: int = 2,
    ):
        self.device = batch.images.device.type
        self.network = network.to(self.device, arithmetic.dtype).train(parts is not None)
        self._parts, self._batch, self._arithmetic = parts, batch, arithmetic
        if parts is not None:
            self._scaler = torch.amp.GradScaler(self.device, enabled=arithmetic.scaled)
            self._optimizer, self._schedule = parts.optim.build(
                network, total_steps, fused=not arithmetic.scaled
            )

    def step(self) -> Tensor:
        """Learn from the batch, which gives the loss; in inference the logits (B, C)."""
        if self._parts is None:
            with torch.no_grad(), self._arithmetic.casting(self.device):
                return self._logits(self._batch)
        return self._training_step(self._parts, self._batch)

    @property
    def state_mib(self) -> float:
        """Weights, and in training gradients and what the optimizer keeps; after a step."""
        tensors = [*self.network.parameters(), *self.network.buffers()]
        if self._parts is not None:
            tensors += [p.grad for p in self.network.parameters() if p.grad is not None]
            tensors += [t for state in self._optimizer.state.values() for t in state.values()]
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor)) / MIB

    def _training_step(self, parts: StepParts, batch: Batch) -> Tensor:
        with self._arithmetic.casting(self.device):
            images, targets = parts.mixing(batch.images, batch.labels, batch.valid)
            logits = self._logits(replace(batch, images=images))
            loss = F.cross_entropy(logits, targets, label_smoothing=parts.label_smoothing)
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        if parts.clip:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), parts.clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._schedule.step()
        return loss.detach()

    def _logits(self, batch: Batch) -> Tensor:
        """In float32 at least."""
        valid = () if batch.valid is None else (batch.valid,)
        logits = self.network(batch.images, *valid)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def step_of(network: nn.Module, layers: Mapping[str, str], *loop) -> Callable[[], Tensor]:
    """The step of a new loop; layers: the name of each attention layer's backend."""
    use_backends(network, layers)
    return Loop(network, *loop).step


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
    capabilities = {}

    def refuse(self, request: Request) -> list[str]:
        return []

    def __call__(self, q, k, v, *, mask, bias, scale, dropout_p):
        return _NoScores.apply(q, k, v)
