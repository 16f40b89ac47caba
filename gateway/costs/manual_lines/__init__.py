"""Fees, charges, credits and refunds that a person enters."""
