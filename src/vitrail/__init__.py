"""Train, evaluate and compare vision transformers whose 2-D attention is their own.

Importing this package is cheap: torch and everything above it is imported by the subpackage that needs it.
"""

__version__ = "0.1.0"
