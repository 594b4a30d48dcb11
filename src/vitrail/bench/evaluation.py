"""A checkpoint's logits on all test images, by one backend or another."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from vitrail.attention.selection.layers import LayerPlan, set_backends
from vitrail.bench.bare_loop import Batch, infer
from vitrail.bench.proved import proved, refusal
from vitrail.run import checkpoint
from vitrail.run.plan import Plan, build_network, device_of
from vitrail.training.precision import Arithmetic


@dataclass(frozen=True)
class Answers:
    """logits (N, C) float32 and labels (N,) of all images of a split, on the CPU."""

    logits: Tensor
    labels: Tensor

    @property
    def correct(self) -> int:
        return int((self.predictions == self.labels).sum())

    @property
    def predictions(self) -> Tensor:
        """(N,) the class of the largest logit, the first of equal ones."""
        return self.logits.argmax(dim=1)

    @property
    def loss(self) -> float:
        """Plain cross-entropy."""
        return F.cross_entropy(self.logits.double(), self.labels).item()

    def drift(self, other: "Answers") -> dict[str, float]:
        """How far the logits are from the other's, and how many predictions differ.

        drift_largest: of all differences. drift_relative: the L2 norm of the difference over that
        of the other's logits.
        """
        difference = (self.logits - other.logits).double()
        return {
            "drift_largest": difference.abs().max().item(),
            "drift_relative": (difference.norm() / other.logits.double().norm()).item(),
            "changed_predictions": int((self.predictions != other.predictions).sum()),
        }


class Evaluation:
    """The best weights of a run on its test images, or on val where there is no test.

    As eval.py has it: the checkpoint's own config and precision.
    """

    def __init__(self, path: Path):
        self._saved = checkpoint.read(str(path))
        config = OmegaConf.create(self._saved.description["unresolved_config"])
        config.precision = self._saved.description["precision"]
        self._deterministic = config.deterministic
        self._plan = Plan.asking(config, training=False)
        self._device = device_of(config.trainer.accelerator)
        self._arithmetic = Arithmetic.of(self._plan.precision)
        classes = self._saved.description["classes"]
        self._plan.data.prepare_data()
        self._plan.data.select_classes(classes)
        self.split = "test" if self._plan.data.has_split("test") else "val"
        self._network = build_network(config, len(classes), pretrained=False)
        self._saved.check(self._network)
        self._network.load_state_dict(self._saved.weights)
        self._network.to(self._device, self._arithmetic.dtype).eval()

    @property
    def epoch(self) -> int:
        """That the weights are of, from 1."""
        return self._saved.epoch + 1

    def refusal(self, backend: str) -> str:
        """See `refusal`."""
        return refusal(self._plan, backend, deterministic=self._deterministic)

    def layers(self, backend: str) -> dict[str, LayerPlan]:
        """See `proved`; `auto` keeps what training had."""
        saved = self._saved.description["backends"]
        return proved(self._plan, backend, deterministic=self._deterministic, saved=saved)

    def answers(self, layers: Mapping[str, LayerPlan]) -> Answers:
        """By these backends, every image once."""
        set_backends(self._network, layers)
        logits, labels = [], []
        for images, truth, padding in self._plan.data.loader(self.split, augment=False):
            images = images.to(self._device, self._arithmetic.dtype)
            padding = None if padding is None else padding.to(self._device)
            found = infer(self._network, Batch(images, truth, padding), self._arithmetic)
            logits.append(found.float().cpu())
            labels.append(truth)
        return Answers(torch.cat(logits), torch.cat(labels))
