"""florin key …"""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.output import clean, facts, idle, note, say, show, table, when
from gateway.commands.session import Session, command
from gateway.commands.terms import BUDGET, COST, KEY, LIMITS, in_words, scopes_in_words, with_terms

app = typer.Typer()

KeyId = Annotated[str, typer.Argument(metavar="ID", help="The id shown by `florin key list`.")]


class KeyRole(StrEnum):
    TENANT = "tenant"
    TENANT_ADMIN = "tenant-admin"
    OPERATOR = "operator"
    FINANCE = "finance"
    ENGINE = "engine"
    METRICS = "metrics"


@command(app, "create")
@with_terms(KEY, LIMITS, BUDGET, COST)
def create(
    session: Session,
    *,
    tenant: Annotated[
        str,
        typer.Option(help="Tenant that owns the key; required for its two roles.", show_default=False),
    ] = "",
    role: Annotated[
        KeyRole,
        typer.Option(
            help="Role of the key. tenant-admin: also manages its tenant's adapters and keys; engine: for "
            "one GPU host; metrics: read /metrics."
        ),
    ] = KeyRole.TENANT,
    engine: Annotated[
        str, typer.Option(help="Engine of the host; required for role engine.", show_default=False)
    ] = "",
    address: Annotated[
        str | None,
        typer.Option(
            help="Host name or IP address in the engine's URLs, if it differs from the address that the "
            "gateway sees (proxies, NAT, names)."
        ),
    ] = None,
    changes: Json,
) -> None:
    """Create a key and print it once: Florin stores only its hash. For GPU hosts, prefer
    `florin engine token create`.

    Example: OPENAI_API_KEY=$(florin key create --tenant acme --label checkout --expires 90d)
    """

    def people(body: Json) -> None:
        sys.stdout.write(f"{body['key']}\n")
        whose = f" of {body['tenant'] or body['engine']}" if body["tenant"] or body.get("engine") else ""
        until = f", valid until {when(body['expires'])}" if body.get("expires") else ""
        note(clean(f"Key {body['id']}{whose}, role {body['role']}{until}. It will not be shown again."))

    host = {name: value for name, value in (("engine", engine), ("address", address)) if value}
    body = {"tenant": tenant, "role": role.value} | host | changes
    session.result(session.api.post("/admin/v1/keys", body), people)


@command(app, "list")
def list_(
    session: Session, tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None
) -> None:
    """List keys by id; secrets are never shown.

    Example: florin key list --tenant acme
    """
    session.result(
        session.api.get("/admin/v1/keys", {"tenant": tenant}), lambda b: show(key_table(b["data"]))
    )


@command(app, "show")
def show_(session: Session, key_id: KeyId) -> None:
    """Show one key: its scopes, limits, state and last use. The secret is never shown.

    Example: florin key show 3f9c2a
    """
    session.result(session.api.get(f"/admin/v1/keys/{segment(key_id)}"), _people)


@command(app, "update")
@with_terms(KEY, LIMITS, BUDGET, COST)
def update(session: Session, key_id: KeyId, *, changes: Json) -> None:
    """Change a key. Omitted options keep their values, and `none` removes a limit. Its secret, role and owner
    never change.

    Example: florin key update 3f9c2a --adapter support --expires 2027-06-30
    """
    if not changes:
        raise UsageError("Nothing to change: give at least one option (florin key update --help).")
    session.result(session.api.patch(f"/admin/v1/keys/{segment(key_id)}", changes), _people)


@command(app, "rotate")
def rotate(
    session: Session,
    key_id: KeyId,
    *,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old key stays valid: 0s, 30m, 24h, 7d.")
    ] = "24h",
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="When the new key expires: 90d, or a date. Default: it is valid for as long as the old one "
            "was.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Replace a key: print a new one with the same owner, role, scopes and limits. The old one expires once
    the overlap is over. Repeating the command is refused, so that no second key is made by mistake.

    Example: florin key rotate 3f9c2a --overlap 48h
    """

    def people(body: Json) -> None:
        sys.stdout.write(f"{body['key']}\n")
        old, new = body["replaced"], clean(body["id"])
        note(f"Key {new} replaces {clean(old['id'])}, which is valid until {when(old['expires'])}.")
        note(f"{new} will not be shown again.")

    wanted = {"overlap": overlap} | ({"expires": expires} if expires else {})
    session.result(session.api.post(f"/admin/v1/keys/{segment(key_id)}/rotate", wanted), people)


@command(app, "revoke")
def revoke(session: Session, key_id: KeyId) -> None:
    """Revoke a key: every worker refuses it within a second. Repeating the command changes nothing. An engine
    registered with the key is drained until you run `florin engine uncordon`.

    Example: florin key revoke 3f9c2a
    """
    body = session.api.delete(f"/admin/v1/keys/{segment(key_id)}")
    session.result(body, lambda b: say(f"Key {clean(b['id'])} revoked at {when(b['revoked'])}."))


def key_table(keys: list[dict[str, Any]]) -> Table:
    rows = [
        (
            k["id"],
            k["tenant"],
            k["role"],
            k["label"],
            k["engine"],
            list(scopes_in_words(k)),
            when(k["created"]),
            ago(k.get("last_used")),
            _state(k),
        )
        for k in keys
    ]
    columns = ("key", "tenant", "role", "label", "engine", "scopes", "created", "last used", "state")
    return table(columns, rows)


def ago(micros: int | None) -> str:
    """`3m ago`; empty for None."""
    return "" if micros is None else f"{idle(max(0.0, time.time() - micros / 1e6))} ago"


def _people(body: Json) -> None:
    show(
        facts(
            [
                ("key", body["id"]),
                ("tenant", body["tenant"]),
                ("role", body["role"]),
                ("label", body["label"]),
                ("engine", body["engine"]),
                ("state", _state(body)),
                ("scopes", list(scopes_in_words(body)) or "everything that its role may"),
                ("limits", in_words(body["limits"]) or "its tenant's"),
                ("budget", in_words(body["budget"]) or "its tenant's"),
                ("priority", body["priority"]),
                ("cost centre", body["cost_centre"]),
                ("created", when(body["created"])),
                ("last used", ago(body.get("last_used"))),
                ("replaced by", body["replaced_by"]),
            ]
        )
    )


def _state(key: Json) -> str:
    token = key["role"] == "enrolment"
    if key["revoked"]:
        return f"{'used' if token else 'revoked'} {when(key['revoked'])}"
    expires = key.get("expires")
    if expires is None:
        return "valid"
    return f"{'expired' if expires / 1e6 <= time.time() else 'valid until'} {when(expires)}"
