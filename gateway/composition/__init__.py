"""Wires a worker: settings in, everything that serves requests out. `build` has the order.

Importing it opens nothing. Each step opens what it needs, and pushes what closes it onto the worker's exit
stack, so that a worker is taken down in the opposite order.
"""
