"""Amounts of money as options."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from gateway.commands.client import UsageError


def decimal(option: str, text: str) -> str:
    """`text`, if it is a decimal number of zero or more. It is sent as text, never as a float. Raises
    UsageError, so that a typo does not reach the gateway."""
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise UsageError(f"{option}: {text!r} is not a decimal number like 2.50.") from error
    if not value.is_finite() or value < 0:
        raise UsageError(f"{option}: {text!r} must be zero or more.")
    return text
