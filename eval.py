"""Evaluate a checkpoint: `python eval.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from vitrail.cli import evaluate

if __name__ == "__main__":
    evaluate()
