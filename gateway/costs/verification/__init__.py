"""Recomputes the figures of a closed month from the data below them."""
