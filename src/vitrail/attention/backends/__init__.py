"""The kernels that can compute attention, one file each, and the contract they share.

A backend states what it can do (`capabilities`), says why it cannot serve a request (`refuse`), and
computes (`__call__`). Nothing is ever substituted: `resolve` returns the backend that was named or
raises `Refused`.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache

import torch
import torch.compiler.config
from torch import Tensor

from vitrail.attention.mask import Mask, Predicate
from vitrail.errors import UserError

# torch (2.14) finds a compiled CPU kernel on disk again by a key without the instruction set: one
# that was made for AVX2 is run under AVX512, and computes wrong numbers there.
torch.compiler.config.cache_key_tag += torch.backends.cpu.get_cpu_capability()

FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
HALVES = frozenset({torch.bfloat16, torch.float16})
EVERYWHERE = "*"
AUTO = "auto"
MASKS = {"padding": "a padding mask", "mask": "an attention mask", "pattern": "a pattern"}


class Refused(UserError):
    """A backend cannot serve a request; the message says what clashes and what would work."""


@dataclass(frozen=True)
class Request:
    """What one attention call asks of a backend: all that decides who can serve it, no tensor.

    device: a torch device type. width: of a head, d. masks: `Mask.kinds`. pattern: the rule where
    that is one of them. dropout: a share. compute: the CUDA compute capability, None elsewhere.
    """

    device: str
    dtype: torch.dtype
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    masks: frozenset[str] = frozenset()
    pattern: Predicate | None = None
    bias: bool = False
    bias_grad: bool = False
    dropout: float = 0.0
    backward: bool = True
    compute: tuple[int, int] | None = None

    @property
    def scores(self) -> int:
        """How many scores there are."""
        return self.batch * self.heads * self.queries * self.keys

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, dropout_p: float):
        """The request that attention over these (B, h, N, d) tensors makes."""
        batch, heads, queries, width = q.shape
        recorded = torch.is_grad_enabled()
        return cls(
            *(q.device.type, q.dtype, batch, heads, queries, k.shape[2], width),
            masks=mask.kinds,
            pattern=mask.pattern,
            bias=bias is not None,
            bias_grad=recorded and bias is not None and bias.requires_grad,
            dropout=dropout_p,
            backward=recorded and (q.requires_grad or k.requires_grad or v.requires_grad),
            compute=compute_capability(q.device),
        )


@dataclass(frozen=True)
class Capability:
    """What a backend can do on one kind of device; the contract tests hold each field to it.

    min_width, max_width and multiple_of, which may differ by dtype, are of the per-head width.
    compute: the least CUDA compute capability. packed: with a kernel for packed tokens.
    deterministic: gradients are equal on every run.
    """

    dtypes: frozenset[torch.dtype] = FLOATS
    masks: frozenset[str] = frozenset(MASKS)
    bias: bool = True
    bias_grad: bool = True
    dropout: bool = True
    backward: bool = True
    min_width: int = 1
    max_width: int | None = None
    multiple_of: Mapping[torch.dtype, int] = field(default_factory=dict)
    compute: tuple[int, int] | None = None
    packed: bool = False
    deterministic: bool = True

    def missing(self, request: Request) -> list[str]:
        """What the request needs and this lacks, each as "take X" after the word "cannot"."""
        width, compute, dtype = request.width, request.compute, request.dtype
        gpu = "compute capability {}.{}".format(*compute) if compute else request.device
        multiple = self.multiple_of.get(dtype, 1)
        widths = {
            f"at least {self.min_width}": width < self.min_width,
            f"at most {self.max_width}": self.max_width is not None and width > self.max_width,
            f"a multiple of {multiple}": width % multiple,
        }
        rules = ", ".join(rule for rule, broken in widths.items() if broken)
        lacks = {
            f"compute in {str(dtype).removeprefix('torch.')}": dtype not in self.dtypes,
            f"run on {gpu}": compute and self.compute and compute < self.compute,
            **{f"honour {MASKS[kind]}": True for kind in sorted(request.masks - self.masks)},
            "add a bias to the scores": request.bias and not self.bias,
            "give the gradient of a bias": self.bias and request.bias_grad and not self.bias_grad,
            "drop attention weights": request.dropout and not self.dropout,
            "compute gradients": request.backward and not self.backward,
            f"take head width {width} ({rules})": rules,
        }
        return [lack for lack, there in lacks.items() if there]


@dataclass(frozen=True)
class Kernels:
    """Profiler names that prove which kernel ran: all that are required, none that is forbidden."""

    required: frozenset[str] = field(default_factory=frozenset)
    forbidden: frozenset[str] = field(default_factory=frozenset)


# Every fused kernel of torch, which a compiler may put in the place of a formula it recognises.
FUSED = frozenset({"aten::_scaled_dot_product_*_attention*", "triton_tem_fused_*flex_attention*"})


class Backend:
    """One way to compute attention; subclasses say what it can do, and do it in `__call__`.

    keeps_scores: whether scores are written out, so that memory grows with N². by_name_only: why
    `auto` never picks it, None where it may.
    """

    name: str
    capabilities: Mapping[str, Capability] = {}  # by device type
    keeps_scores: bool = False
    by_name_only: str | None = None

    def capability(self, request: Request) -> Capability | None:
        """What it can do on the request's device, None for nothing at all."""
        return self.capabilities.get(request.device, self.capabilities.get(EVERYWHERE))

    def refuse(self, request: Request) -> list[str]:
        """Why this backend cannot serve the request; empty when it can."""
        capability = self.capability(request)
        return [f"run on {request.device}"] if capability is None else capability.missing(request)

    def variant(self, request: Request) -> str | None:
        """Which of several kernels behind this name serves the request, with its version."""
        return None

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        """What a profiler must and must not see when this backend serves the request.

        compiled: inside a graph of torch.compile, which fuses what is written out in torch.
        """
        raise NotImplementedError

    def __call__(self, q, k, v, *, mask: Mask, bias, scale: float, dropout_p: float) -> Tensor:
        """softmax(q k^T * scale + bias, over what is visible) v, (B, h, N, d); dead rows give 0.

        q, k, v: (B, h, N, d), with any number of keys. bias: (1|B, 1|h, N, N) float, or None.
        """
        raise NotImplementedError

    def packed(self, q, k, v, *, cu_seqlens, max_seqlen: int, scale: float, dropout_p: float):
        """Attention of each sample to itself on packed tokens (total, h, d), in one kernel.

        cu_seqlens: (B + 1,) int32, where each sample begins, and the total. Only for a backend
        whose capability says `packed`.
        """
        raise NotImplementedError


class WrittenOut(Backend):
    """The formula written out in torch, and not handed to a fused kernel."""

    keeps_scores = True
    capabilities = {EVERYWHERE: Capability()}

    def kernels(self, request: Request, *, compiled: bool = False) -> Kernels:
        if compiled:  # softmax is fused with its neighbours, under a name of the compiler's making
            return Kernels(forbidden=FUSED)
        return Kernels(
            required=frozenset({"aten::bmm", "aten::_softmax"}),
            forbidden=frozenset({"aten::scaled_dot_product_attention", "aten::_safe_softmax"}),
        )


def names() -> list[str]:
    """Every kernel, by the listing of this folder; `auto`, which chooses among them, is none."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != AUTO)


@cache
def load(name: str) -> Backend:
    """The backend of that name; its file, and any optional package, is imported only now."""
    there = [AUTO, *names()]
    if name not in there:
        near = get_close_matches(str(name), there, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"backend={name} does not exist; {hint}there are {', '.join(there)}")
    home = "vitrail.attention.selection" if name == AUTO else __name__
    return importlib.import_module(f"{home}.{name}").BACKEND


def lacks(name: str, request: Request) -> list[str]:
    """Why the backend of that name cannot serve the request; one that is broken cannot either."""
    try:
        backend = load(name)
    except ImportError as error:
        return [f"be imported ({str(error).splitlines()[0]})"]
    return backend.refuse(request)


def permitted(request: Request) -> list[str]:
    """Names of the backends that can serve the request."""
    return [name for name in names() if not lacks(name, request)]


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """That of a CUDA device, None for any other kind."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def resolve(request: Request, backend: str | Backend, *, because: str = "") -> Backend:
    """The backend that was named, or `Refused` with what clashes and what would work.

    because: who asks for what clashes, for the message.
    """
    backend = load(backend) if isinstance(backend, str) else backend
    if cannot := backend.refuse(request):
        able = permitted(request)
        way_out = f"{', '.join(able)} can" if able else "no backend can"
        clash = f"backend={backend.name} cannot {' or '.join(cannot)}{because}"
        raise Refused(f"{clash}; {way_out}")
    return backend


def without_autocast(device: str) -> AbstractContextManager:
    """A context in which nothing is cast; the meta device, for counting, knows no autocast."""
    if torch.amp.is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
