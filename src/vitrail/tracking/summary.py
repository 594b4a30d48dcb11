"""What a run is about to do, on one screen."""

from collections.abc import Mapping

from pytorch_lightning.utilities import rank_zero_only


@rank_zero_only
def show(facts: Mapping[str, str]) -> None:
    """Print one line a fact, names aligned; plain text, so that logs can be searched."""
    width = max(map(len, facts))
    for name, fact in facts.items():
        print(f"{name:<{width}}  {fact}")
