"""Divides engine-hours among the requests that ran in them."""
