"""Sound adapters of every kind, and every way in which one can be broken: strategies for Hypothesis.

A fault takes a sound adapter and breaks one thing; its decorator says by which code that must be refused.
An oddity is the same for warnings. `table` has them all.
"""
