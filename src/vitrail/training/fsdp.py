"""Weights, gradients and optimizer states split over the processes (Zhao et al. 2023)."""

from collections.abc import Iterator

from pytorch_lightning.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


class FSDP(ModelParallelStrategy):
    """torch's FSDP2 over all processes: parameters stay themselves, in shards (DTensor).

    So names and shapes, and with them weight decay, Muon and clipping, are those of the whole
    model; its predecessor flattens parameters to 1-D. A checkpoint is one file like any other.
    It cannot average weights (see `ema.check`) nor scale gradients (16-mixed).
    """

    def __init__(self):
        super().__init__(save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        self._tensor_parallel_size = 1
        super().setup_environment()

    def shard(self, network: nn.Module) -> None:
        """Split `network` in place, block by block where it has `blocks`; once only."""
        if isinstance(network, FSDPModule):
            return
        mesh = self.device_mesh["data_parallel"]
        for block in getattr(network, "blocks", ()):
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)

    # Evaluation has the weights whole in every process. Gathered in each forward pass they would
    # need all processes to make equally many, and those hold unequal numbers of batches.

    def on_validation_start(self) -> None:
        self._gather()

    def on_test_start(self) -> None:
        self._gather()

    def on_validation_end(self) -> None:
        self._release()

    def on_test_end(self) -> None:
        self._release()

    def _gather(self) -> None:
        for part in self._parts():
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()

    def _release(self) -> None:
        for part in self._parts():
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)

    def _parts(self) -> Iterator[FSDPModule]:
        return (module for module in self.model.modules() if isinstance(module, FSDPModule))
