"""Simulates a fleet: the real scheduler and claim rules, on a virtual clock, over a model of vLLM's engines.

`python -m loadtests.sim`. See loadtests/README.md.
"""
