"""Merging checkpoints: plan, methods, tensors, run."""
