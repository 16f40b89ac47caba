"""Merkle trees over records and statements, and proofs made of them."""
