"""Shares of policy `fixed`, as people write them. Loaded by commands, so it imports nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from gateway.costs.field_error import FieldError

_SHARE = re.compile(r"([^=,\s]+)=([0-9]{1,9})", re.ASCII)
_PERCENT = re.compile(r"([^=,\s]+)=([0-9]{1,3})(?:\.([0-9]{1,6}))?%", re.ASCII)


class PolicyError(FieldError):
    """An invalid policy. `param` names the parameter."""


def parse_shares(texts: Iterable[str]) -> tuple[dict[str, int], int | None]:
    """Shares by tenant, and what they must sum to. Each text is `acme=60`, in any proportion (None), or
    `acme=60%`: then all must be, and sum to 100 %. Raises PolicyError."""
    given = [text.strip() for text in texts]
    percent = [_PERCENT.fullmatch(text) for text in given]
    if not any(percent):
        return _collected(
            given, [_SHARE.fullmatch(text) for text in given], lambda match: int(match[2])
        ), None
    places = max(len(match[3] or "") for match in percent if match)
    units = _collected(given, percent, lambda match: int(match[2] + (match[3] or "").ljust(places, "0")))
    return units, 100 * 10**places


def _collected(
    given: Sequence[str],
    matches: Sequence[re.Match[str] | None],
    share: Callable[[re.Match[str]], int],
) -> dict[str, int]:
    shares: dict[str, int] = {}
    for text, match in zip(given, matches, strict=True):
        if match is None or match[1] in shares:
            raise PolicyError(
                "shares",
                f"shares: {text[:40]!r} is not TENANT=SHARE, like acme=60 or acme=60%, once per tenant and "
                "the same for all.",
            )
        shares[match[1]] = share(match)
    return shares
