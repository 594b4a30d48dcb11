"""One process a device, each with the whole model."""

from pytorch_lightning.strategies import DDPStrategy


class DDP(DDPStrategy):
    """Lightning's DDP, without sending buffers along with every forward pass.

    In evaluation the processes hold unequal numbers of batches, since no image is repeated to even
    them out, and the first pass that one makes alone would wait for ever.
    """

    def configure_ddp(self) -> None:
        super().configure_ddp()
        self.model.broadcast_buffers = False  # as an argument, torch 2.13 renames it
