"""Remarks of libraries at every start, which say less than the run's own summary."""

import logging
import warnings


def quiet() -> None:
    """Leave their warnings and errors; once imported, since Lightning sets its own level then."""
    for library in ("pytorch_lightning", "lightning_fabric", "matplotlib"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # From Lightning 2.6 to torch 2.14, about themselves.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
    # torch 2.14, of what a compiled part of a model is given, while it traces the part.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf Tensor")
