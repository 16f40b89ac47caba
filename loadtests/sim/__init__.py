"""`python -m loadtests.sim` compares policies in the simulator, `gateway/planning/simulator`.

See loadtests/README.md.
"""
