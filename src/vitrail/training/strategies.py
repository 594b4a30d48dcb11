"""Weights, gradients and optimizer states split over the processes (Zhao et al. 2023)."""

from pytorch_lightning.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

SHARDED = (FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy)  # no process has all weights


class FSDP(ModelParallelStrategy):
    """torch's FSDP2 over all processes: parameters keep names and shapes, in shards (DTensor).

    So weight decay, Muon and clipping treat them as those of the whole model; FSDP1 flattens
    parameters to 1-D. A checkpoint is one file like any other. It supports neither `ema_decay` nor
    precision=16-mixed.
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
