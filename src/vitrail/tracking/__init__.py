"""What a run leaves behind: metrics, a receipt of what computed it, pictures, its W&B run."""
