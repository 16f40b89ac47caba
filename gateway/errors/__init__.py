"""The errors that callers can get: `codes` is the table of all of them. The gateway raises FlorinError with
one of these codes; `adapters` raises its own exceptions, and `from_adapters` has the code of each of them.
"""

from __future__ import annotations

from gateway.errors.codes import CODES, Code
from gateway.errors.error import FlorinError, method_not_allowed, too_deep, unsupported_endpoint
from gateway.errors.from_adapters import for_tenant, translate

__all__ = [
    "CODES",
    "Code",
    "FlorinError",
    "for_tenant",
    "method_not_allowed",
    "too_deep",
    "translate",
    "unsupported_endpoint",
]
