"""The registry's format and its restoration."""
