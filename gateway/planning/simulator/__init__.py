"""Simulates a fleet: the real scheduler and fair queue, on a virtual clock, over a model of vLLM's
engines.

`florin plan` asks it how many engines are enough; `python -m loadtests.sim` compares policies with it.
"""
