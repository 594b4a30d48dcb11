"""What `backend=?` prints: which backends can compute this run's attention here, and why not."""

from collections.abc import Iterable

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vitrail.attention import backends
from vitrail.attention.backends import AUTO, Request
from vitrail.run.assemble import Plan

ASK = "?"


def show_backends(config: DictConfig, *, training: bool) -> None:
    """Print a row a backend, for training or evaluating the model of `config` on this machine."""
    plan = Plan.asking(config, training=training)
    plan.check_backend(ASK)
    requests = dict.fromkeys(
        request for layer in plan.layers.values() for request in layer.requests
    )
    first = next(iter(requests))
    console = Console()
    table = Table(title=_title(first, plan.precision), title_justify="left")
    for heading in ("backend", "here", "why not, and what to know"):
        table.add_column(heading)
    table.add_row(
        AUTO, "yes", "measures those that can, and takes the fastest that passes the gate"
    )
    for name in backends.names():
        lacks = against(name, requests)
        remark = f"cannot {' or '.join(lacks)}" if lacks else _remark(name, first)
        table.add_row(name, "no" if lacks else "yes", escape(remark))
    console.print(table)


def against(name: str, requests: Iterable[Request]) -> list[str]:
    """Why the backend cannot serve all of the requests, each reason once."""
    return list(
        dict.fromkeys(lack for request in requests for lack in backends.lacks(name, request))
    )


def _remark(name: str, request: Request) -> str:
    backend = backends.load(name)
    remarks = []
    if variant := backend.variant(request):
        remarks.append(variant)
    if backend.by_name_only:
        remarks.append(f"never auto's choice: {backend.by_name_only}")
    return "; ".join(remarks)


def _title(request: Request, precision: str) -> str:
    masks = " + ".join(sorted(request.masks)) or "none"
    shape = (request.batch, request.heads, request.queries, request.width)
    return (
        f"attention on {request.device}, {precision}: (B, h, N, d) = {shape}, masks: {masks}, "
        f"bias: {'learned' if request.bias_grad else 'fixed' if request.bias else 'none'}"
    )
