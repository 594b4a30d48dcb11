"""No position at all: attention that sees a set of tokens."""

from dataclasses import dataclass

from vitrail.attention.positions import Position


@dataclass(frozen=True)
class NoPosition(Position):
    """Tokens are told nothing; attention is equivariant to their order."""
