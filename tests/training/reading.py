"""Watching for values that leave the device: on a GPU, the program waits for each of them."""

import traceback

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READ = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.bincount.default}


class Readings(TorchDispatchMode):
    """Collects in `stacks` where a tensor's value was read, by `item()` or by what calls it."""

    def __init__(self):
        super().__init__()
        self.stacks = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in READ:
            self.stacks.append("".join(traceback.format_stack(limit=8)))
        return function(*args, **kwargs or {})
