"""What a run does with a model and batches: one LightningModule and the callbacks beside it."""
