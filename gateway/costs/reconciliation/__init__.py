"""Compares Florin's figures with the engines' own counters and the GPU provider's bill."""
