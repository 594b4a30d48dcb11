"""Training and inference as torch alone drives them, which Lightning's loop is compared with."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.attention import backends
from vitrail.training.mixing import Mixing
from vitrail.training.optim import Optim
from vitrail.training.precision import Arithmetic


@dataclass(frozen=True)
class Batch:
    """images (B, 3, H, W), labels (B,) int64, padding (B, H, W) bool, True = real, or None."""

    images: Tensor
    labels: Tensor
    padding: Tensor | None

    @classmethod
    def drawn(
        cls, *, size: int, image_size: tuple[int, int], classes: int, padded: bool, device: str
    ) -> "Batch":
        """Noise of a data set's shape; padded: every other image is half as wide as the others."""
        generator = torch.Generator().manual_seed(0)
        padding = None
        if padded:
            padding = torch.ones(size, *image_size, dtype=torch.bool)
            padding[1::2, :, image_size[1] // 2 :] = False
            padding = padding.to(device)
        return cls(
            torch.randn(size, 3, *image_size, generator=generator).to(device),
            torch.randint(classes, (size,), generator=generator).to(device),
            padding,
        )

    def in_dtype(self, dtype: torch.dtype) -> "Batch":
        """The same with images of another dtype."""
        return replace(self, images=self.images.to(dtype))

    def logits(self, network: nn.Module) -> Tensor:
        """(B, C), in float32 at least."""
        images = (self.images,) if self.padding is None else (self.images, self.padding)
        found = network(*images)
        return found.to(torch.promote_types(found.dtype, torch.float32))


@dataclass(frozen=True)
class LoggerFactory:
    """What a training step does beside the network, as the config has it.

    clip: the largest norm of all gradients together, None for no clipping.
    """

    optim: Optim
    mixing: Mixing
    label_smoothing: float
    clip: float | None


class Training:
    """A network and its optimizer; `step` is forward, loss, backward, clipping and update.

    It computes what `Classifier.training_step` computes under a Trainer, and logs nothing. The
    network is moved to the device and into the arithmetic's dtype. total_steps: of the schedule.
    """

    def __init__(
        self,
        network: nn.Module,
        recipe: LoggerFactory,
        arithmetic: Arithmetic,
        *,
        device: str,
        total_steps: int,
    ):
        self.network = network.to(device, arithmetic.dtype).train()
        self.recipe, self.arithmetic, self.device = recipe, arithmetic, device
        self.scaler = torch.amp.GradScaler(device, enabled=arithmetic.scaled)
        self.optimizer, self.schedule = recipe.optim.build(
            self.network, total_steps, fused=not arithmetic.scaled
        )

    def step(self, batch: Batch) -> Tensor:
        """Learn from a batch whose images have the arithmetic's dtype; the loss, a scalar."""
        with self.arithmetic.casting(self.device):
            images, targets = self.recipe.mixing(batch.images, batch.labels, batch.padding)
            logits = replace(batch, images=images).logits(self.network)
            loss = F.cross_entropy(logits, targets, label_smoothing=self.recipe.label_smoothing)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.recipe.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        return loss.detach()

    @property
    def state_bytes(self) -> int:
        """Weights, their gradients, and what the optimizer keeps of them; after a step."""
        parameters = list(self.network.parameters())
        kept = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return sum(
            tensor.nbytes
            for tensor in (*parameters, *self.network.buffers(), *gradients, *kept)
            if isinstance(tensor, Tensor)
        )


def infer(network: nn.Module, batch: Batch, arithmetic: Arithmetic) -> Tensor:
    """Logits (B, C) of a network in evaluation, without gradients."""
    with torch.no_grad(), arithmetic.casting(batch.images.device.type):
        return batch.logits(network)


def training_step(
    network: nn.Module,
    layers: Mapping[str, str],
    recipe: LoggerFactory,
    arithmetic: Arithmetic,
    batch: Batch,
) -> Callable[[], object]:
    """A step of a new optimizer; layers: the name of each attention layer's backend."""
    set_backends(network, layers)
    device = batch.images.device.type
    training = Training(network, recipe, arithmetic, device=device, total_steps=2)
    return lambda: training.step(batch)


def inference_pass(
    network: nn.Module, layers: Mapping[str, str], arithmetic: Arithmetic, batch: Batch
) -> Callable[[], object]:
    """The same for inference."""
    set_backends(network, layers)
    network.to(batch.images.device, arithmetic.dtype).eval()
    return lambda: infer(network, batch, arithmetic)


def set_backends(network: nn.Module, layers: Mapping[str, str]) -> None:
    """Put the backends of these names into a network's layers."""
    for name, backend in layers.items():
        network.get_submodule(name).backend = backends.load(backend)


def packed(build: Callable[..., Callable[[], object]], *arguments: object) -> bytes:
    """A call of `build` for another process, which `unpacked` makes there.

    By value: as arguments of a process, weights would be moved into shared memory, of which
    containers have little.
    """
    return pickle.dumps((build, arguments))


def unpacked(call: bytes) -> Callable[[], object]:
    """What `build` of a packed call gives."""
    build, arguments = pickle.loads(call)
    return build(*arguments)
