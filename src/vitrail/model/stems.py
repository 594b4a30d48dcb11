"""The ways from an image to a map of tokens that `model.stem` may name."""

from vitrail.model.conv_stem import ConvStem
from vitrail.model.patch import PatchEmbed
from vitrail.model.pool_stem import PoolStem

STEMS = {"patch": PatchEmbed, "conv": ConvStem, "pool": PoolStem}
