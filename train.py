"""Train a model: `python train.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from vitrail.cli import train

if __name__ == "__main__":
    train()
