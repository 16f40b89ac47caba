"""Rubbish from every side, against a real `florin serve`, and what must hold all the same.

`python -m loadtests.fuzz` searches as long as one likes; tests/integration/test_fuzz.py is its short form,
the same every time. `parts` lists what is sent, `judge` says what may come back, `world` is what gets it.
"""
