"""Chooses and proves the kernel of each attention layer; it stands above what computes."""
