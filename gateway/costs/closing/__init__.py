"""Closing a month for good: cut off, freeze, sum, seal."""
