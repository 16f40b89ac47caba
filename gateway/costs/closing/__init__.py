"""Closes a month: cutoff, frozen rates, sums, hash."""
