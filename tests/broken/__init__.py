"""Sound adapters of every kind, and every way in which one can be broken: strategies for Hypothesis.

A fault takes a sound adapter and breaks one thing; `table.FAULTS` says by which code that must be refused.
`table.ODDITIES` are the same for warnings.
"""
