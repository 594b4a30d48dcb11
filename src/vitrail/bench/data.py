"""Images a second that reach the model: vitrail's loader, and torchvision's usual pipeline."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from vitrail.attention.selection.stopwatch import Times, clock, interleave
from vitrail.bench.choices import choice
from vitrail.bench.data_findings import findings
from vitrail.bench.measurement import Cell, Context, Findings, Row, Value
from vitrail.bench.pipelines import Epochs, NoPipeline, Pipelines
from vitrail.bench.rounds import LEAST, check_rounds
from vitrail.data.augment import UNCHANGED, Augment
from vitrail.errors import UserError

OWN = "own"
KNOBS = ("scale", "auto", "crop_padding", "padding_mode", "flip", "erase")
# By the pipeline, and whether its images are decoded once and for all.
MEMBERS = {
    ("vitrail", True): partial(Pipelines.vitrail, cached=True),
    ("vitrail", False): partial(Pipelines.vitrail, cached=False),
    ("torchvision", False): Pipelines.torchvision,
}
FIGURES = (
    "images_per_second", "images_per_second_p10", "images_per_second_p90", "images", "rounds",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DataBench:
    """Datasets x augmentations x workers; in a cell the pipelines serve an epoch in turn.

    datasets: choices of configs/data; None takes the config's own. augments: names of recipes, or
    `own`, which is what the dataset's config says. recipes: by name, which knobs of `Augment` are
    on. workers: numbers of processes. images: of an epoch, at most; whole batches of them are
    served. rounds: epochs that are timed. seconds: a cell's rounds end with the one in which so
    many have passed, though not before the third. read: see `interleave`.

    The pipelines are vitrail's with a cache, vitrail's without one, and torchvision's, all on the
    same training images; one that does not exist is a row with the reason. Raises UserError for
    what cannot be measured at all.
    """

    context: Context
    datasets: Sequence[str] | None
    augments: Sequence[str]
    recipes: Mapping[str, Mapping[str, Any]]
    workers: Sequence[int]
    images: int
    rounds: int
    seconds: float
    read: Callable[[str], float] = clock

    keys = ("pipeline", "cached", "dataset", "image_size", "augment", "workers", "batch_size")
    columns = ("pipeline", "cached", "images_per_second")

    def __post_init__(self):
        for name in ("datasets", "augments", "workers"):
            if getattr(self, name) is not None and not getattr(self, name):
                raise UserError(f"bench.{name}=[] leaves nothing to measure; name one")
        if min(self.workers) < 0:
            raise UserError(f"bench.workers={list(self.workers)} has fewer than 0; use 0 or more")
        check_rounds(self.rounds, self.seconds)
        self.cells()  # finds what else cannot be measured before anything is

    def cells(self) -> Sequence[Cell]:
        return [Cell(title, title) for title in self._cells]

    def measure(self, cell: Cell) -> list[Row]:
        """A row a pipeline: the fastest first, those that do not exist last."""
        words, node, augment, workers = self._cells[cell.key]
        if words["dataset"] not in self._read:
            self._read[words["dataset"]] = Pipelines.of(node, self.images)
        epochs, refused = {}, {}
        for member, loader in MEMBERS.items():
            try:
                epochs[member] = Epochs(loader(self._read[words["dataset"]], augment, workers))
            except NoPipeline as reason:
                refused[member] = str(reason)
        try:
            times = interleave(
                epochs,
                device="cpu",
                rounds=self.rounds,
                min_rounds=LEAST,
                seconds=self.seconds,
                clock=self.read,
            )
        finally:
            for one in epochs.values():
                one.end()
        order = sorted(epochs, key=lambda member: times[member].median)
        figures = {member: _figures(epochs[member].images, times[member]) for member in order}
        figures |= dict.fromkeys(refused, dict.fromkeys(FIGURES))
        return [
            {"pipeline": member[0], "cached": member[1]}
            | words
            | figures[member]
            | {"refused": refused.get(member, "")}
            for member in figures
        ]

    def findings(self, rows: Sequence[Row]) -> Findings:
        return findings(rows)

    @cached_property
    def _cells(self) -> dict[str, tuple[Row, DictConfig, Augment, int]]:
        """The words that tell a cell, its data's config, and what varies, by title."""
        nodes = [self.context.config.data]
        if self.datasets is not None:
            nodes = [choice("data", name) for name in self.datasets]
        cells = {}
        for node, name, workers in product(nodes, self.augments, self.workers):
            words = {
                "dataset": node.dataset._target_.rpartition(".")[2],
                "image_size": str(node.image_size),
                "augment": name,
                "workers": workers,
                "batch_size": node.batch_size,
            }
            title = f"{words['dataset']}, {node.image_size} px, {name}, {workers} workers"
            cells[title] = words, node, self._augment(name, node), workers
        return cells

    def _augment(self, name: str, node: DictConfig) -> Augment:
        if name == OWN:
            return instantiate(node.augment)
        if name not in self.recipes:
            raise UserError(
                f"bench.augments has {name}; use {', '.join((OWN, *self.recipes))}, or add it to "
                "bench.recipes"
            )
        off = {knob: getattr(UNCHANGED, knob) for knob in KNOBS}
        if strange := sorted(self.recipes[name].keys() - off.keys()):
            raise UserError(
                f"bench.recipes.{name} has {', '.join(strange)}; its knobs are {', '.join(KNOBS)}"
            )
        return Augment(**off | self.recipes[name])

    @cached_property
    def _read(self) -> dict[str, Pipelines]:
        """What has been read of each dataset until now."""
        return {}


def _figures(images: int, times: Times) -> dict[str, Value]:
    low, high = times.band
    return {
        "images_per_second": round(images / times.median, 1),
        "images_per_second_p10": round(images / high, 1),
        "images_per_second_p90": round(images / low, 1),
        "images": images,
        "rounds": len(times.seconds),
    }
