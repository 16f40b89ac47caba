"""--policy and --share, as several commands take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from gateway.commands.client import UsageError
from gateway.costs.closing.schemas import ClosedMonth, ClosingPreview
from gateway.costs.fixed_shares import PolicyError, parse_shares
from gateway.costs.policies.schemas import PolicyInForce

SHARES = (
    "For policy fixed: TENANT=SHARE in any proportion, or TENANT=PERCENT%, which must sum to 100. Repeatable."
)
Share = Annotated[list[str] | None, typer.Option(help=SHARES, show_default=False)]


def shares_of(given: Sequence[str]) -> tuple[dict[str, int], int | None]:
    """The shares, and what they must sum to. Raises UsageError."""
    try:
        return parse_shares(given)
    except PolicyError:
        raise UsageError(
            f"--share: {' '.join(given)!r} is not TENANT=SHARE, like acme=60 or acme=60%, given once for "
            "each tenant and in the same way for all."
        ) from None


def in_words(policy: str, shares: Mapping[str, int], own: Mapping[str, str]) -> str:
    """`fixed (acme 60 %, bolt 40 %); none for corgi`."""
    total = sum(shares.values())
    parts = [f"{tenant} {100 * share / total:.6g} %" for tenant, share in sorted(shares.items()) if share]
    shared = f"{policy} ({', '.join(parts)})" if parts else policy
    return "; ".join([shared, *(f"{name} for {tenant}" for tenant, name in sorted(own.items()))])


def policy_in_words(terms: PolicyInForce | ClosedMonth | ClosingPreview) -> str:
    return in_words(terms.policy, terms.shares or {}, terms.own or {})
