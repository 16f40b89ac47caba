"""Anybody can look again: Merkle trees and proofs, and every figure recomputed from what lies under it."""
