"""florin cost policy …"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.cost.shares import Share, in_words, policy_in_words, shares_of
from gateway.commands.output import clean, facts, note, say, show, table
from gateway.commands.session import Session, command

_policy = typer.Typer(
    no_args_is_help=True, help="Who pays for unused GPU time: the standing policy for open months."
)
app = typer.Typer()
app.add_typer(_policy, name="policy")

_PATH = "/finance/v1/policy"
_FIRST = "1970-01"
"""Of a policy set before any month was closed."""


class StandingPolicy(StrEnum):
    NONE = "none"
    PROPORTIONAL = "proportional"
    EVEN = "even"
    FIXED = "fixed"
    DEFAULT = "default"


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
    session.result(session.api.get(_PATH, {"month": month}), _shown)


@command(_policy, "set")
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
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Only for this tenant: none, proportional, even or default. What it does not pay is not "
            "charged to other tenants.",
            show_default=False,
        ),
    ] = None,
    share: Share = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="First month, for example 2026-11. Default: the first open month."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the history and the audit log.")] = "",
) -> None:
    """Set who pays for unused GPU time in open months: idle time, spare capacity and start-up.

    Reports, preliminary statements and exports follow it, and so does closing a month. Closed months keep
    their policy, and so do their later corrections. Setting it again changes nothing.

    Example: florin cost policy set fixed --share acme=60% --share bolt=40% --reason "contract 17"
    """
    if policy is StandingPolicy.DEFAULT and tenant is None:
        raise UsageError("default needs --tenant: that tenant then follows the installation's policy.")
    shares, total = shares_of(share) if share else (None, None)
    body: Json = {"policy": policy.value, "reason": reason}
    optional = {"shares": shares, "shares_total": total, "tenant": tenant, "valid_from": start}
    body |= {name: value for name, value in optional.items() if value is not None}
    session.result(session.api.put(_PATH, body), _set)


def _set(body: Json) -> None:
    say(f"{clean(policy_in_words(body))}, from {_since(body['month'])}.")
    if not body["changed"]:
        note("It was set already; nothing changed.")
    later = {row["valid_from"] for row in body["history"] if row["valid_from"] > body["month"]}
    if later:
        note(f"Another policy was set from {clean(min(later))} on: see florin cost policy show.")


def _shown(body: Json) -> None:
    frozen = " (closed: it can no longer change)" if body["frozen"] else ""
    show(facts((("month", body["month"]), ("policy", policy_in_words(body) + frozen))))
    if rows := body.get("history"):
        show("")
        heads = ("from", "for", "policy", "set at", "by", "reason")
        show(table(heads, (_row(row) for row in rows)))
    elif rows is not None:
        note("None was set, so no tenant pays for unused time. To set one: florin cost policy set")


def _since(month: str) -> str:
    return "the beginning" if month == _FIRST else clean(month)


def _row(row: Json) -> tuple[str, ...]:
    policy = in_words(row["policy"], row["shares"], {})
    return (
        _since(row["valid_from"]),
        row["tenant"] or "all tenants",
        policy,
        row["recorded_at"],
        row["recorded_by"],
        row["reason"],
    )
