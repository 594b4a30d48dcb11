"""What our own step is compared with: Lightning's Trainer around it, and timm's model."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from timm.layers import SwiGLU
from timm.models import VisionTransformer
from torch import Tensor, nn

from vitrail.attention.patterns.full import Full
from vitrail.attention.positions.learned import Learned
from vitrail.attention.positions.none import NoPosition
from vitrail.attention.positions.sincos import SinCos
from vitrail.attention.selection import stopwatch
from vitrail.attention.selection.stopwatch import Times
from vitrail.data.batches import Batch
from vitrail.errors import UserError
from vitrail.model import ViT
from vitrail.model.stems import PatchEmbed, pair
from vitrail.run.callbacks import StopBetweenBatches, step_callbacks
from vitrail.run.checkpoint import BestAndLast, WholeFiles
from vitrail.run.plan import Plan, build_trainer
from vitrail.tracking.loggers import open_loggers
from vitrail.training.classifier import Classifier

LIGHTNING = "lightning"


class Turns:
    """What a Trainer takes for its loader; between its steps the others have their turns.

    Each round, the others are called once and timed, then the Trainer is given `steps` batches. Its
    turn lasts until it asks for the batch after them, so all that it does around a step counts.
    times: seconds of each by name, Lightning's under `lightning`, without the warm-up round.
    """

    def __init__(
        self,
        others: Mapping[str, Callable[[], object]],
        batch: Batch,
        *,
        steps: int,
        device: str,
        rounds: int,
        clock: Callable[[str], float] = stopwatch.clock,
    ):
        self.times: dict[str, Times] = {}
        self._others, self._batch, self._steps, self._rounds = others, batch, steps, rounds
        self._device, self._clock = device, clock

    def __len__(self) -> int:
        """One more than are counted: asked for that one, Lightning has finished those before."""
        return self._steps * (1 + self._rounds) + 1

    def __iter__(self) -> Iterator[Batch]:
        found: dict[str, list[float]] = {name: [] for name in (*self._others, LIGHTNING)}
        once = {"device": self._device, "rounds": 1, "warm_up": 0, "clock": self._clock}
        for number in range(self._rounds + 1):
            passed = stopwatch.interleave(self._others, **once)
            start = self._clock(self._device)
            for _ in range(self._steps):
                yield self._batch
            passed[LIGHTNING] = Times((self._clock(self._device) - start,))
            if number > 0:  # the first round warms up
                for name, times in passed.items():
                    found[name] += times.seconds
        self.times = {name: Times(tuple(seconds)) for name, seconds in found.items()}
        yield self._batch


def drive(
    turns: Turns, classifier: Classifier, config: DictConfig, plan: Plan, folder: Path
) -> None:
    """Fit a classifier on these turns, one epoch, as train.py would on one device.

    folder: what such a run writes goes there. Raises KeyboardInterrupt where it was stopped.
    """
    stopping, checkpoints = StopBetweenBatches(), BestAndLast(folder, validated=False)
    with open_loggers({}, folder, config={}, run_id=None, resumed_at=None) as loggers:
        around = {"stopping": stopping, "checkpoints": checkpoints}
        trainer = build_trainer(
            config,
            precision=plan.precision,
            default_root_dir=folder,
            logger=loggers,
            plugins=[WholeFiles()],
            callbacks=step_callbacks(plan, loggers, folder, **around, compiled=False, from_step=0),
            max_epochs=1,
            max_steps=-1,
            max_time=None,
            accumulate_grad_batches=1,
            limit_train_batches=None,
            limit_val_batches=0,
            log_every_n_steps=min(config.trainer.log_every_n_steps, len(turns)),
        )
        try:
            with redirect_stdout(io.StringIO()):  # the line that an epoch ends with
                trainer.fit(classifier, turns, [])  # which is no validation, and no warning
        except SystemExit as stop:
            if stopping.asked:
                raise KeyboardInterrupt from stop
            raise


def timm_twin(network: ViT, config: Mapping[str, Any]) -> VisionTransformer:
    """timm's VisionTransformer that computes what `network` computes, as timm would run it.

    config: the plain config that the network was built from. Raises UserError where timm has no
    such model, with what it lacks.
    """
    if lacks := _lacks(network, config):
        raise UserError(f"timm's VisionTransformer has no {' and no '.join(lacks)}")
    position = network.position
    alike = ("depth", "mlp_ratio", "qkv_bias", "qk_norm", "class_token")  # in name, too
    dropout = dict.fromkeys(("pos_drop_rate", "proj_drop_rate"), config["dropout"])
    model = VisionTransformer(
        img_size=tuple(pair(config["image_size"])),
        patch_size=tuple(pair(config["patch_size"])),
        num_classes=network.head.out_features,
        global_pool=config["pool"],
        embed_dim=config["dim"],
        num_heads=config["heads"],
        init_values=config["layer_scale"],
        reg_tokens=config["registers"],
        pos_embed="none" if isinstance(position, NoPosition) else "learn",
        no_embed_class=isinstance(position, Learned) and not position.prefix,
        attn_drop_rate=config["attention_dropout"],
        drop_path_rate=config["drop_path"],
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
        **{name: config[name] for name in alike},
        **dropout,
        **({"mlp_layer": SwiGLU, "act_layer": nn.SiLU} if config["mlp"] == "swiglu" else {}),
    )
    if type(network.patch_embed) is not PatchEmbed:  # timm has no stem like ours
        model.patch_embed = deepcopy(network.patch_embed)
        model.patch_embed.register_forward_hook(_as_sequence)
    weights = network.state_dict()
    if isinstance(position, SinCos):  # a table that is given here and computed there
        tokens = torch.zeros(1, network.grid.tokens, network.dim)
        weights |= {"pos_embed": position.embed(tokens, None, network.grid)}
        model.pos_embed.requires_grad_(False)
    model.load_state_dict(weights, strict=True)
    model.set_grad_checkpointing(config["grad_checkpointing"])
    return model


def _as_sequence(_module: nn.Module, _given: object, tokens: Tensor) -> Tensor:
    return tokens.flatten(2).transpose(1, 2)  # (B, C, rows, cols) -> (B, N, C)


def _lacks(network: ViT, config: Mapping[str, Any]) -> list[str]:
    def name(part: type) -> str:
        """That a config chooses it by."""
        return part.__module__.rpartition(".")[2]

    hiding = {type(block.attn.pattern) for block in network.blocks} - {Full}
    lacks = [f"pattern such as {name(pattern)}" for pattern in hiding]
    if not isinstance(network.position, Learned | NoPosition | SinCos):
        lacks.append(f"position such as {name(type(network.position))}")
    if config["scale"] is not None:
        lacks.append(f"scale of its own, such as model.scale={config['scale']}")
    return lacks
