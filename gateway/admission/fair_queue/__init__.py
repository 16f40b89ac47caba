"""The fair queue: how many requests each engine gets, who goes next, and how workers agree on it.

Pure: no I/O, and times are arguments. `gateway.routing.turns` acts on it, and so does the simulator.
docs/fairness.md derives the bounds.
"""
