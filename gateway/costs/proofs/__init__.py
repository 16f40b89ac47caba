"""Merkle trees over records and statements, and the proofs built from them."""
