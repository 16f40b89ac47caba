"""florin tenant …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.labels import labels, shown
from gateway.commands.output import clean, note, say, show, table, when
from gateway.commands.session import Session, command, confirm
from gateway.commands.tenant_page import show_page, show_terms
from gateway.commands.terms import BUDGET, COST, LIMITS, POLICY, QUOTAS, in_words, with_terms

app = typer.Typer()


Name = Annotated[str, typer.Argument(help="The tenant's name.")]
BaseAccess = Annotated[
    bool | None, typer.Option("--base-access/--no-base-access", help="Allow calls to the base model.")
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL=VALUE",
        help="Label that an engine must have to hold the tenant's adapters and to serve its requests, for "
        "example region=eu. Repeatable; replaces all earlier ones.",
    ),
]


@command(app, "add")
@with_terms(LIMITS, BUDGET, QUOTAS, POLICY, COST)
def add(
    session: Session,
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9, - and _.")],
    *,
    base_access: BaseAccess = None,
    require: Require = None,
    changes: Json,
) -> None:
    """Add a tenant. If it exists, the given options change it; repeating the command changes nothing. `none`
    removes a limit.

    Example: florin tenant add acme --requests-per-minute 600 --budget-money-month 500
    """
    wanted = {"name": name} | changes | _own(require, base_access=base_access)
    session.result(session.api.post("/admin/v1/tenants", wanted), show_terms)


@command(app, "update")
@with_terms(LIMITS, BUDGET, QUOTAS, POLICY, COST)
def update(
    session: Session,
    name: Name,
    *,
    base_access: BaseAccess = None,
    require: Require = None,
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
    if require and no_require:
        raise UsageError("--require and --no-require exclude each other.")
    if default_policy and "policy" in changes:
        raise UsageError("--default-policy excludes the options that set a policy.")
    wanted = changes | _own(require, base_access=base_access)
    if no_require:
        wanted["requires"] = {}
    if default_policy:
        wanted["policy"] = None
    session.result(session.api.patch(f"/admin/v1/tenants/{segment(name)}", wanted), show_terms)


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
        bool, typer.Option("--dry-run", help="Only list what has to be removed before.")
    ] = False,
    cascade: Annotated[
        bool,
        typer.Option(
            "--cascade",
            help="Also remove what stands in the way: revoke its keys, end the sharing of others' adapters "
            "with it, and remove its adapters. --dry-run lists them.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required in scripts.")
    ] = False,
) -> None:
    """Remove a tenant with its revoked and expired keys. Refused while it has adapters or valid keys, unless
    --cascade removes those, too. Its usage and costs stay in the ledger. Repeating the command changes
    nothing, and completes a removal that was interrupted.

    Example: florin tenant remove acme --cascade --dry-run
    """
    path = f"/admin/v1/tenants/{segment(name)}"
    if not dry_run:
        question = f"Remove the tenant {name}?"
        if cascade and not yes:
            obstacles = session.api.delete(path, {"dry_run": True})["obstacles"]
            if obstacles and not session.json:
                _show_obstacles(obstacles)
            question = f"Remove the tenant {name} and these {len(obstacles)}?" if obstacles else question
        confirm(question, yes=yes, unattended=False)
    params = ({"dry_run": True} if dry_run else {}) | ({"cascade": True} if cascade else {})
    session.result(session.api.delete(path, params or None), lambda body: _removed(body, cascade=cascade))


@command(app, "list")
def list_(session: Session) -> None:
    """List tenants.

    Example: florin tenant list
    """
    session.result(session.api.get("/admin/v1/tenants"), _list)


@command(app, "show")
def show_(session: Session, name: Name) -> None:
    """Show one tenant: its limits and what it uses of them, its adapters, keys (never their secrets) and
    latest errors.

    Example: florin tenant show acme
    """
    session.result(session.api.get(f"/admin/v1/tenants/{segment(name)}"), show_page)


def _own(require: list[str] | None, *, base_access: bool | None) -> Json:
    wanted: Json = {} if base_access is None else {"base_access": base_access}
    return wanted | ({"requires": labels("--require", require)} if require else {})


def _suspended(session: Session, name: str, *, suspended: bool) -> None:
    body = session.api.patch(f"/admin/v1/tenants/{segment(name)}", {"suspended": suspended})
    session.result(
        body,
        lambda b: say(
            f"{clean(b['name'])} is suspended since {when(b['suspended'])}."
            if b["suspended"]
            else f"{clean(b['name'])} is served."
        ),
    )


def _removed(body: Json, *, cascade: bool) -> None:
    name = clean(body["tenant"])
    if body["removed"]:
        for obstacle in body["obstacles"]:
            say(f"{_WORDS[obstacle['kind']]} {clean(obstacle['id'])}.")
        say(f"{name} removed.")
    elif not body["exists"]:
        say(f"{name} was not registered; nothing to do.")
    elif body["obstacles"]:
        say(
            f"{name} would go with these:"
            if cascade
            else f"{name} cannot be removed yet. First remove these:"
        )
        _show_obstacles(body["obstacles"])
        if not cascade:
            note(f"Or all at once: florin tenant remove {name} --cascade")
    else:
        say(f"Nothing stands in the way: florin tenant remove {name}")


def _list(body: Json) -> None:
    if not body["data"]:
        note("No tenants yet: florin tenant add NAME")
    rows = [
        (
            t["name"],
            "suspended" if t["suspended"] else "served",
            t["base_access"],
            f"{t['weight']:g}",
            in_words(t["limits"]),
            in_words(t["budget"]),
            shown(t["requires"]),
            when(t["created"]),
        )
        for t in body["data"]
    ]
    columns = ("tenant", "state", "base access", "weight", "limits", "budget", "requires", "created")
    show(table(columns, rows, right=("weight",)))


_WORDS = {"key": "Revoked key", "share": "Ended the sharing of", "adapter": "Removed adapter"}


def _show_obstacles(obstacles: Sequence[Json]) -> None:
    show(table(("what", "id", "how"), [(o["kind"], o["id"], o["command"]) for o in obstacles]))
