"""The reference pages of the documentation, written from the code that they describe.

`python -m tests.tools.docs` writes docs/reference/. A test holds the pages to the code; edit the code, never them.
"""
