"""Checks that an adapter must pass before it reaches a GPU."""
