"""Florin's figures against others': engines' own counters, and the GPU provider's bill."""
