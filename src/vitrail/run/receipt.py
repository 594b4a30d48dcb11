"""A run's receipt: what was planned, then the kernels that were seen to compute it."""

from dataclasses import replace
from pathlib import Path

from pytorch_lightning import Callback
from pytorch_lightning.utilities import rank_zero_only

from vitrail.run.assemble import LayerPlan, Plan
from vitrail.tracking import environment
from vitrail.tracking.kernel_watch import KernelWatch, SeenKernels
from vitrail.tracking.loggers import Loggers
from vitrail.tracking.receipt import LayerReceipt, Receipt


def watch(plan: Plan, loggers: Loggers, run_dir: Path, *, compiled: bool) -> Callback:
    """Write the receipt now, and again with the kernels that the first steps are seen to call."""
    path = run_dir / "receipt.json"
    receipt = Receipt(
        environment=environment.describe(),
        precision=plan.precision,
        compiled=compiled,
        layers={name: _layer_receipt(layer) for name, layer in plan.layers.items()},
    )
    rank_zero_only(receipt.write)(path)
    if receipt.layers:
        loggers.show_table("receipt", receipt.rows())

    def record(seen: SeenKernels) -> None:
        replace(receipt, kernels=seen).write(path)
        loggers.show_table("kernels", seen.rows())

    # A compiled graph fuses the operators that the promises name, and its first step also traces.
    promises = {} if compiled else {
        layer.backend.name: layer.backend.kernels(layer.requests[0])
        for layer in plan.layers.values()
    }  # fmt: skip
    return KernelWatch(promises, record, step=1 if compiled else 0)


def _layer_receipt(layer: LayerPlan) -> LayerReceipt:
    name = layer.backend.name
    return LayerReceipt(layer.requests[0], requested=name, chosen=name, why="named", rejected={})
