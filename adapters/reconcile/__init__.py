"""Compares the registry in Redis with what engines report, and repairs differences."""
