"""The policies that allocate unused GPU time, as options of commands."""

from __future__ import annotations

from enum import StrEnum


class IdlePolicy(StrEnum):
    NONE = "none"
    PROPORTIONAL = "proportional"
    EVEN = "even"
    FIXED = "fixed"
