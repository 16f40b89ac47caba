"""The log of commands that run until they are stopped."""

from __future__ import annotations

import os

from gateway.commands.client import UsageError
from gateway.observability import logs


def begin() -> None:
    """Configures logging from FLORIN_LOG_FORMAT and FLORIN_LOG_LEVEL. Raises UsageError."""
    for variable, allowed in (("FLORIN_LOG_FORMAT", logs.FORMATS), ("FLORIN_LOG_LEVEL", logs.LEVELS)):
        value = os.environ.get(variable) or allowed[0]
        if value not in allowed:
            raise UsageError(f"{variable} must be one of {', '.join(allowed)}; it is {value!r}.")
    logs.log_to_stderr()
