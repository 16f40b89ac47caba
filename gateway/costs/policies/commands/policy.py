"""florin cost policy …"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, facts, note, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.policies.commands.shares import Share, in_words, policy_in_words, shares_of
from gateway.costs.policies.schemas import NewPolicy, PolicyChange, PolicyInForce, StandingPolicy

_policy = typer.Typer(
    no_args_is_help=True, help="Who pays for unused GPU time: the standing policy for open months."
)
app = typer.Typer()
app.add_typer(_policy, name="policy")

_PATH = "/finance/v1/policy"
_FIRST = "1970-01"
"""The first month of a policy that was set before any month was closed."""


@command(_policy, "show")
def show_policy(
    session: Session,
    *,
    month: Annotated[
        str | None, typer.Option(help="Month in UTC, for example 2026-11. Default: this month.")
    ] = None,
) -> None:
    """Show who pays for unused GPU time in a month, and every policy ever set.

    Example: florin cost policy show --month 2026-11
    """
    session.result(session.api.get(_PATH, PolicyInForce, {"month": month}), _shown)


@command(_policy, "set")
@with_options(NewPolicy)
def set_policy(
    session: Session,
    policy: Annotated[
        StandingPolicy,
        typer.Argument(
            metavar="POLICY",
            help="none: no tenant. proportional: by GPU time used. even: equally among the tenants that used "
            "GPUs of the type. fixed: by --share. default (with --tenant): like the installation.",
        ),
    ],
    *,
    share: Share = None,
    changes: Json,
) -> None:
    """Set who pays for unused GPU time in open months: idle time, spare capacity and start-up.

    Reports, preliminary statements and exports follow it, and so does closing a month. Closed months keep
    their policy, and so do their later corrections. Setting it again changes nothing.

    Example: florin cost policy set fixed --share acme=60% --share bolt=40% --reason "contract 17"
    """
    if policy == "default" and "tenant" not in changes:
        raise UsageError("default needs --tenant: that tenant then follows the installation's policy.")
    body: Json = {"policy": policy, **changes}
    if share:
        body["shares"], total = shares_of(share)
        body |= {} if total is None else {"shares_total": total}
    session.result(session.api.put(_PATH, body, PolicyInForce), _set)


def _set(terms: PolicyInForce) -> None:
    say(f"{clean(policy_in_words(terms))}, from {_since(terms.month)}.")
    if not terms.changed:
        note("It was set already; nothing changed.")
    later = {row.valid_from for row in terms.history or () if row.valid_from > terms.month}
    if later:
        note(f"Another policy was set from {clean(min(later))} on: see florin cost policy show.")


def _shown(terms: PolicyInForce) -> None:
    frozen = " (closed: it can no longer change)" if terms.frozen else ""
    show(facts((("month", terms.month), ("policy", policy_in_words(terms) + frozen))))
    if terms.history:
        show("")
        heads = ("from", "for", "policy", "set at", "by", "reason")
        show(table(heads, map(_row, terms.history)))
    elif terms.history is not None:
        note("None was set, so no tenant pays for unused time. To set one: florin cost policy set")


def _since(month: str) -> str:
    return "the beginning" if month == _FIRST else clean(month)


def _row(change: PolicyChange) -> tuple[str, ...]:
    return (
        _since(change.valid_from),
        change.tenant or "all tenants",
        in_words(change.policy, change.shares, {}),
        change.recorded_at,
        change.recorded_by,
        change.reason,
    )
