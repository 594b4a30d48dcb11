"""A run: a model trained or evaluated, and everything that this makes in one folder."""
