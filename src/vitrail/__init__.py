"""Train, evaluate and compare vision transformers whose 2-D attention is their own.

Importing this package is cheap: the subpackage that needs torch imports it.
"""

__version__ = "0.2.0"
