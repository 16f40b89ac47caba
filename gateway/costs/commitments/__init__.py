"""Commitments: GPUs that are paid for whether an engine is up or not."""
