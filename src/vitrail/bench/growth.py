"""How a figure grows with a size: the exponent of a power that is fitted to both."""

import numpy as np


def exponent(sizes: list[float], figures: list[float]) -> float | None:
    """p of figure = c * size**p, by least squares on both logarithms; None below three sizes."""
    if len(set(sizes)) < 3:
        return None
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])
