"""Admission control: limits on body complexity, on requests in flight, on load, and concurrency per owner.

All of it is accounting without I/O.
"""
