"""Checking exports with the FOCUS project's own validator, in an environment of its own."""
