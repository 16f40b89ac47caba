"""Fuzzes a real `florin serve` from clients and engines, and checks invariants.

`python -m loadtests.fuzz` runs for as long as desired; tests/integration/test_fuzz.py is a short,
deterministic form. `parts` generates the inputs, `judge` checks the responses, `world` is the target.
"""
