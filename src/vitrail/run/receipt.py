"""A run's receipt: what was planned, then the kernels that were seen to compute it."""

from dataclasses import replace
from pathlib import Path

from pytorch_lightning import Callback
from pytorch_lightning.utilities import rank_zero_only

from vitrail.attention.selection.layers import LayerPlan
from vitrail.run.assemble import Plan
from vitrail.tracking import environment
from vitrail.tracking.kernel_watch import KernelWatch, SeenKernels
from vitrail.tracking.loggers import Loggers
from vitrail.tracking.receipt import LayerReceipt, Receipt, earlier_parts


def watch(
    plan: Plan, loggers: Loggers, run_dir: Path, *, compiled: bool, from_step: int
) -> Callback:
    """Write the receipt now, and again with the kernels that the first steps are seen to call.

    from_step: the optimizer step that this part of the run begins at. The receipts of earlier parts
    stay in the new one.
    """
    path = run_dir / "receipt.json"
    receipt = Receipt(
        from_step=from_step,
        earlier=earlier_parts(path),
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

    promises = {
        layer.backend.name: layer.backend.kernels(layer.requests[0], compiled=compiled)
        for layer in plan.layers.values()
    }
    # The first step of a compiled graph traces it, which calls every operator that is considered.
    return KernelWatch(promises, record, step=1 if compiled else 0)


def _layer_receipt(layer: LayerPlan) -> LayerReceipt:
    proved = layer.gate or layer.backend.name == "reference"
    return LayerReceipt(
        pattern=layer.pattern,
        position=layer.position,
        scale=layer.scale,
        requests=layer.requests,
        requested=layer.requested,
        chosen=layer.backend.name,
        variant=layer.backend.variant(layer.requests[0]),
        why=layer.why,
        rejected=layer.rejected,
        times_ms={name: round(1000 * seconds, 3) for name, seconds in layer.times.items()},
        gate=[
            {"errors": verdict.errors, "allowed": verdict.allowed, "seconds": verdict.seconds}
            for verdict in layer.gate
        ]
        if proved
        else "off",
    )
