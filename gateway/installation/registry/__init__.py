"""The registry's format and its rewriting."""
