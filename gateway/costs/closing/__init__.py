"""Closing a month: cut off, freeze rates, sum, hash."""
