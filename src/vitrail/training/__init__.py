"""What a run does with a model and batches: one LightningModule and the callbacks beside it."""

import vitrail.model  # noqa: F401, which imports timm, and sees to it that wandb stays out
