"""florin tenant …"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, label_pairs, note, say, show, table, when
from gateway.commands.session import Session, YesInScripts, command, confirm
from gateway.schemas.base import Listed
from gateway.tenants.commands.page import show_dry_run, show_page, show_terms
from gateway.tenants.schemas.limit_dry_run import MOST_DAYS, LimitDryRun
from gateway.tenants.schemas.tenants import (
    AddedTenant,
    ChangedTenant,
    FinalCharges,
    NewTenant,
    Obstacle,
    RemovedTenant,
    Tenant,
    TenantPage,
)
from gateway.tenants.schemas.terms import TenantTerms, in_words, section

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="The tenant's name.")]


@command(app, "add")
@with_options(NewTenant)
def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9, - and _.")],
    *,
    changes: Json,
) -> None:
    """Add a tenant. If it exists, the given options change it; repeating the command changes nothing. `none`
    removes a limit.

    Example: florin tenant add acme --requests-per-minute 600 --budget-money-month 500
    """
    tenant = session.api.post("/admin/v1/tenants", {"name": name} | changes, AddedTenant)
    session.result(tenant, _changed)


@command(app, "update")
@with_options(TenantTerms, changes_only=True)
def update(
    session: Session,
    name: Name,
    *,
    no_require: Annotated[
        bool, typer.Option("--no-require", help="Require nothing of the engines any more.")
    ] = False,
    default_policy: Annotated[
        bool,
        typer.Option("--default-policy", help="Treat its requests as the installation's settings say."),
    ] = False,
    changes: Json,
) -> None:
    """Change a tenant. Omitted options keep their values, and `none` removes a limit. Changes apply from the
    next request on; requirements apply even to adapters that are resident elsewhere.

    Example: florin tenant update acme --tokens-per-minute 200k --concurrent none
    """
    if no_require:
        if "requires" in changes:
            raise UsageError("--require and --no-require exclude each other.")
        changes["requires"] = {}
    if default_policy:
        if "policy" in changes:
            raise UsageError("--default-policy excludes the options that set a policy.")
        changes["policy"] = None
    tenant = session.api.patch(f"/admin/v1/tenants/{segment(name)}", changes, ChangedTenant)
    session.result(tenant, _changed)


@command(app, "try-limits")
def try_limits(
    session: Session,
    name: Name,
    *,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="LIMIT", help="As of `florin tenant update`; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=MOST_DAYS, help="How far back.")] = 7,
) -> None:
    """What limits would have refused of a tenant's requests in the last days, by their usage records; without
    --limit, its own. Changes nothing. An approximation: a client that is refused is assumed not to come
    again.

    Example: florin tenant try-limits acme --limit user:tokens/5h=200k --limit concurrent=20
    """
    body: Json = {"rules": limit or [], "days": days}
    path = f"/admin/v1/tenants/{segment(name)}/limits-dry-run"
    session.result(session.api.post(path, body, LimitDryRun), show_dry_run)


@command(app, "suspend")
def suspend(session: Session, name: Name) -> None:
    """Refuse a tenant's requests within a second, with 403 `tenant_suspended`. Running requests end normally,
    and its adapters, keys and usage stay. Repeating the command changes nothing.

    Example: florin tenant suspend acme
    """
    _suspended(session, name, suspended=True)


@command(app, "resume")
def resume(session: Session, name: Name) -> None:
    """Serve a suspended tenant again. Repeating the command changes nothing.

    Example: florin tenant resume acme
    """
    _suspended(session, name, suspended=False)


@command(app, "remove")
def remove(
    session: Session,
    name: Name,
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only list what has to be removed before, and what is still to be charged."
        ),
    ] = False,
    cascade: Annotated[
        bool,
        typer.Option(
            "--cascade",
            help="Also remove what stands in the way: revoke its keys, end the sharing of others' adapters "
            "with it, and remove its adapters. --dry-run lists them.",
        ),
    ] = False,
    yes: YesInScripts = False,
) -> None:
    """Remove a tenant with its revoked and expired keys. Refused while it has adapters or valid keys, unless
    --cascade removes those, too. Its usage and costs stay in the ledger, and its rate card ends with this
    month. Repeating the command changes nothing, and completes a removal that was interrupted.

    Example: florin tenant remove acme --cascade --dry-run
    """
    path = f"/admin/v1/tenants/{segment(name)}"
    if not dry_run:
        question = f"Remove the tenant {name}?"
        if cascade and not yes:
            obstacles = session.api.delete(path, RemovedTenant, {"dry_run": True}).obstacles
            if obstacles and not session.json:
                _show_obstacles(obstacles)
            question = f"Remove the tenant {name} and these {len(obstacles)}?" if obstacles else question
        confirm(question, yes=yes, unattended=False)
    params = ({"dry_run": True} if dry_run else {}) | ({"cascade": True} if cascade else {})
    removed = session.api.delete(path, RemovedTenant, params or None)
    session.result(removed, lambda removed: _removed(removed, cascade=cascade))


@command(app, "list")
def list_(session: Session) -> None:
    """List tenants.

    Example: florin tenant list
    """
    session.result(session.api.get("/admin/v1/tenants", Listed[Tenant]), _list)


@command(app, "show")
def show_(session: Session, name: Name) -> None:
    """Show one tenant: its limits and what it uses of them, its adapters, keys (never their secrets) and
    latest errors.

    Example: florin tenant show acme
    """
    session.result(session.api.get(f"/admin/v1/tenants/{segment(name)}", TenantPage), show_page)


def _changed(tenant: ChangedTenant) -> None:
    show_terms(tenant)
    for warning in tenant.warnings:
        note(f"Warning: {clean(warning)}.")


def _suspended(session: Session, name: str, *, suspended: bool) -> None:
    path = f"/admin/v1/tenants/{segment(name)}"
    tenant = session.api.patch(path, {"suspended": suspended}, ChangedTenant)
    state = f"is suspended since {when(tenant.suspended)}" if tenant.suspended else "is served"
    session.result(tenant, lambda tenant: say(f"{clean(tenant.name)} {state}."))


def _removed(removed: RemovedTenant, *, cascade: bool) -> None:
    name = clean(removed.tenant)
    if removed.removed:
        for obstacle in removed.obstacles:
            say(f"{_WORDS[obstacle.kind]} {clean(obstacle.id)}.")
        say(f"{name} removed.")
    elif not removed.exists:
        say(f"{name} was not registered; nothing to do.")
    elif removed.obstacles:
        first = [obstacle for obstacle in removed.obstacles if not (cascade and obstacle.cascades)]
        if first:
            say(f"{name} cannot be removed yet. First remove these:")
            _show_obstacles(first)
        if cascaded := [obstacle for obstacle in removed.obstacles if obstacle not in first]:
            say(f"{name} would go with these:")
            _show_obstacles(cascaded)
        if not cascade:
            note(f"Or all at once: florin tenant remove {name} --cascade")
    else:
        say(f"Nothing stands in the way: florin tenant remove {name}")
    _still_charged(removed.charges)


def _still_charged(charges: FinalCharges) -> None:
    if charges.months:
        note(f"Statements still to come: {', '.join(map(clean, charges.months))}.")
    if charges.pending_lines:
        note(f"Manual lines that wait for approval: {charges.pending_lines}.")
    if charges.rate_card is not None:
        minimum = (
            f", for which it pays at least {clean(charges.monthly_minimum)} {clean(charges.currency)}"
            if Decimal(charges.monthly_minimum)
            else ""
        )
        note(f"Rate card {clean(charges.rate_card)} ends with {clean(charges.last_month)}{minimum}.")


def _list(tenants: Listed[Tenant]) -> None:
    if not tenants.data:
        note("No tenants yet: florin tenant add NAME")
    rows = [
        (
            tenant.name,
            "suspended" if tenant.suspended else "served",
            tenant.base_access,
            f"{tenant.weight:g}",
            in_words(tenant.limits, section("limits")),
            in_words(tenant.budget, section("budget")),
            label_pairs(tenant.requires),
            when(tenant.created),
        )
        for tenant in tenants.data
    ]
    columns = ("tenant", "state", "base access", "weight", "limits", "budget", "requires", "created")
    show(table(columns, rows, right=("weight",)))


_WORDS = {"key": "Revoked key", "share": "Ended the sharing of", "adapter": "Removed adapter"}


def _show_obstacles(obstacles: Sequence[Obstacle]) -> None:
    show(table(("what", "id", "how"), [(o.kind, o.id, o.command) for o in obstacles]))
