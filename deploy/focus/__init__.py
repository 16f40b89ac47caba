"""Validates exports with the FOCUS project's validator, in a separate environment."""
