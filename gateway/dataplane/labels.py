"""Labels of requests: whose they are within a tenant, for reports. Florin stores them and never interprets
them."""

from __future__ import annotations

import hashlib

LONGEST = 64
"""Characters of a label, as in OpenAI's `safety_identifier`."""
OTHER = "__other__"
"""Stands in roll-ups for labels beyond the cap."""
_DIGITS = 40
"""Hexadecimal digits of the hash: 160 bits."""


def label_of(value: object) -> str | None:
    """What is stored of a label that a client sends: the text itself, or None if it is not a text or empty.
    A text that cannot be stored as it is (longer than LONGEST, not printable, or OTHER) becomes
    `sha256:` and the first 40 hexadecimal digits of its SHA-256: a request is never refused for its label,
    and equal labels stay equal."""
    if type(value) is not str or not value:
        return None
    if storable(value):
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:_DIGITS]}"


def storable(label: str) -> bool:
    """Whether a label is stored as it is. Databases cannot store NUL, and terminals should not get control
    characters."""
    return 0 < len(label) <= LONGEST and label.isprintable() and label != OTHER
