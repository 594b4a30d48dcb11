"""The vision transformer (Dosovitskiy et al. 2020) over vitrail's attention, in timm's names."""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.attention import Grid, Mask, MultiHeadAttention2d
from vitrail.attention.mask import valid_tokens
from vitrail.attention.patterns import Pattern
from vitrail.attention.patterns.full import Full
from vitrail.attention.positions import Position
from vitrail.attention.positions.learned import Learned
from vitrail.attention.selection.requests import attention_layers
from vitrail.errors import UserError
from vitrail.model.block import MLPS, Block
from vitrail.model.layers import Dropout
from vitrail.model.pool import AttentionPool, AveragePool, TokenPool
from vitrail.model.pretrained import load_pretrained
from vitrail.model.stems import STEMS, pair, patch_grid

# torch compiles the same code 8 times at most, and each kind for training and for evaluation.
KINDS = 3


class ViT(nn.Module):
    """stem -> position -> blocks -> norm -> pool -> head; (B, 3, H, W) -> (B, num_classes).

    The state dict loads strictly into timm's `VisionTransformer` of the same shape, and the
    reverse.

    Args:
        image_size, patch_size: pixels, one number or (height, width).
        dim, depth, heads: width of a token, number of blocks, and attention heads in each, which
            must divide `dim`.
        num_classes: width of the head.
        pattern: who sees whom, one for all blocks, or a plan of several that is repeated until
            each block has one.
        position: how a token is told where it sits.
        backend: the attention kernel of every layer.
        stem: `patch`, `conv` or `pool`, see their classes in `stems`.
        pixel_std: what images were divided by, see `whitening_filters`; None for CIFAR-10's.
        class_token, registers: whether there is a class token, and how many other learned tokens
            (Darcet et al. 2023).
        pool: `token` (the class token), `avg` (real tokens) or `map` (a learned query).
        mlp, mlp_ratio: `mlp` or `swiglu`, and its hidden width as a multiple of `dim`.
        qkv_bias, qk_norm, scale: see `MultiHeadAttention2d`.
        layer_scale, drop_path: see `Block`; the latter grows linearly with depth up to this value.
        dropout, attention_dropout: shares of features and of attention weights dropped in training.
        grad_checkpointing: compute activations again in backward, to save memory.
        pretrained: a timm model's name or a file of weights, see `load_pretrained`.

    Raises:
        UserError: sizes that do not divide, or parts that do not fit together.
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int],
        patch_size: int | tuple[int, int],
        dim: int,
        depth: int,
        heads: int,
        num_classes: int,
        pattern: Pattern | Sequence[Pattern] = Full(),  # noqa: B008 (frozen)
        position: Position = Learned(),  # noqa: B008 (frozen)
        backend: str = "sdpa",
        stem: str = "patch",
        pixel_std: Sequence[float] | None = None,
        class_token: bool = True,
        registers: int = 0,
        pool: str = "token",
        mlp: str = "mlp",
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        layer_scale: float | None = None,
        scale: float | str | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
        grad_checkpointing: bool = False,
        pretrained: str | None = None,
    ):
        super().__init__()
        _check_choice("stem", stem, STEMS)
        _check_choice("mlp", mlp, MLPS)
        _check_choice("pool", pool, ("token", "avg", "map"))
        if registers < 0:
            raise UserError(f"registers must be >= 0, got {registers}")
        if pool == "token" and not class_token:
            raise UserError(
                "pool=token reads the class token and class_token=false; use pool=avg or pool=map"
            )
        patch_size, prefix = pair(patch_size), int(class_token) + registers
        self.dim, self.grad_checkpointing = dim, grad_checkpointing
        self.grid = patch_grid(pair(image_size), patch_size, prefix)
        known = {"pixel_std": pixel_std} if stem == "pool" and pixel_std is not None else {}
        self.patch_embed = STEMS[stem](patch_size, dim, **known)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, registers, dim)) if registers else None
        self.position = position.for_grid(self.grid)
        self.pos_embed = self.position.table(dim)
        self.pos_drop = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                MultiHeadAttention2d(
                    dim,
                    heads,
                    pattern=own,
                    position=position.for_grid(own.tile(self.grid)),
                    backend=backend,
                    scale=scale,
                    dropout=attention_dropout,
                    qkv_bias=qkv_bias,
                    qk_norm=qk_norm,
                ),
                mlp=mlp,
                mlp_ratio=mlp_ratio,
                layer_scale=layer_scale,
                dropout=dropout,
                drop_path=drop_path * i / max(depth - 1, 1),
            )
            for i, own in enumerate(layer_patterns(pattern, depth))
        )
        # timm normalises after average pooling (`fc_norm`) and before every other one (`norm`).
        self.norm = nn.Identity() if pool == "avg" else nn.LayerNorm(dim, eps=1e-6)
        self.attn_pool = {
            "token": TokenPool,
            "avg": AveragePool,
            "map": lambda: AttentionPool(dim, heads, mlp_ratio=mlp_ratio, backend=backend),
        }[pool]()
        self.fc_norm = nn.LayerNorm(dim, eps=1e-6) if pool == "avg" else nn.Identity()
        self.head = nn.Linear(dim, num_classes)
        initialise(self)
        if pretrained is not None:
            load_pretrained(self, pretrained)

    def forward(self, images: Tensor, valid: Tensor | None = None) -> Tensor:
        """valid: (B, H, W) bool, True = real pixel; a patch is real when any pixel is.

        Image sizes may vary from call to call as long as whole patches fit.
        """
        grid = patch_grid(tuple(images.shape[-2:]), self.patch_embed.patch_size, self.grid.prefix)
        mask = Mask()
        if valid is not None:
            fits = (images.shape[0], *images.shape[-2:])
            if valid.dtype != torch.bool or valid.shape != fits:
                raise UserError(
                    f"valid must be torch.bool of shape {fits} for these images, True = real pixel,"
                    f" got {valid.dtype} of shape {tuple(valid.shape)}"
                )
            images = images.masked_fill(~valid[:, None], 0.0)
            patches = valid_patches(valid, self.patch_embed.patch_size)
            mask = Mask(valid=valid_tokens(patches, grid, images.shape[0]))
        x = self.tokens(images, grid)
        for block in self.blocks:
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, grid, mask, use_reentrant=False)
            else:
                x = block(x, grid, mask)
        return self.head(self.fc_norm(self.attn_pool(self.norm(x), grid, mask)))

    def tokens(self, images: Tensor, grid: Grid) -> Tensor:
        """(B, 3, H, W) -> (B, N, C): class token, registers, the map row by row, with positions."""
        x = self.patch_embed(images).flatten(2).transpose(1, 2)  # (B, area, C)
        prefix = [token for token in (self.cls_token, self.reg_token) if token is not None]
        prefix = [token.expand(x.shape[0], -1, -1).to(x.dtype) for token in prefix]
        x = torch.cat([*prefix, x], dim=1)
        return self.pos_drop(self.position.embed(x, self.pos_embed, grid))

    def compile(self, *args, **kwargs) -> None:
        """torch.compile as `nn.Module.compile` calls it, on each block rather than on the whole.

        Blocks of a kind share one graph: half the time to compile, and steps as fast. Of more than
        `KINDS` kinds, which is what different rates of drop path make of them, some would stay
        uncompiled, and the model is one graph. A stem of convolutions is slower in one on a CPU.
        """
        if len({(block.drop_path1.drop_prob, block.attn.pattern) for block in self.blocks}) > KINDS:
            super().compile(*args, **kwargs)
            return
        for part in (*self.blocks, self.attn_pool):
            if attention_layers(part):
                part.compile(*args, **kwargs)

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh head for another number of classes."""
        self.head = nn.Linear(self.dim, num_classes)
        _initialise_linear(self.head)

    def no_weight_decay(self) -> set[str]:
        """Names that weight decay must leave alone: position tables, class and register tokens."""
        tables = (name for name, _ in self.named_parameters() if ".position." in name)
        return {"pos_embed", "cls_token", "reg_token", "attn_pool.latent", *tables}

    def group_matcher(self, coarse: bool = False) -> dict:
        """Regular expressions that tell timm's layer decay which parameter lies at which depth."""
        return {
            "stem": r"^cls_token|reg_token|pos_embed|patch_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }


def layer_patterns(plan: Pattern | Sequence[Pattern], depth: int) -> list[Pattern]:
    """One pattern a block; a plan of several is repeated, UserError when it does not come out."""
    plan = [plan] if isinstance(plan, Pattern) else list(plan)
    if not plan or depth % len(plan):
        raise UserError(
            f"depth must be a multiple of the {len(plan)} blocks that pattern plans, got {depth}"
        )
    return plan * (depth // len(plan))


def valid_patches(valid: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(B, H, W) bool -> (B, rows, cols) bool: a patch is real when any of its pixels is."""
    return F.max_pool2d(valid.float(), patch_size).bool()


def initialise(model: ViT) -> None:
    """Every weight's first value, as timm's VisionTransformer has it.

    Linear weights: normal(0, 0.02) truncated; linear biases: 0; class and register tokens:
    normal(0, 1e-6); everything else: as its own module sets it.
    """
    for token in (model.cls_token, model.reg_token):
        if token is not None:
            nn.init.normal_(token, std=1e-6)
    # Children come first, so that a parent has the last word.
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.Linear):
            _initialise_linear(module)
        elif hasattr(module, "init_weights"):
            module.init_weights()  # timm's SwiGLU opens its gate


def _initialise_linear(linear: nn.Linear) -> None:
    nn.init.trunc_normal_(linear.weight, std=0.02)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def _check_choice(key: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise UserError(f"{key}={value} does not exist; use {' or '.join(choices)}")
