"""florin key …"""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from gateway.commands.client import Json, segment
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command
from gateway.commands.times import when

app = typer.Typer()


class KeyRole(StrEnum):
    TENANT = "tenant"
    OPERATOR = "operator"
    FINANCE = "finance"
    ENGINE = "engine"
    METRICS = "metrics"


@command(app, "create")
def create(
    session: Session,
    *,
    tenant: Annotated[
        str, typer.Option(help="Tenant that owns the key; required for role tenant.", show_default=False)
    ] = "",
    role: Annotated[
        KeyRole,
        typer.Option(help="Role of the key. engine: for one GPU host; metrics: read /metrics."),
    ] = KeyRole.TENANT,
    engine: Annotated[
        str, typer.Option(help="Engine of the host; required for role engine.", show_default=False)
    ] = "",
) -> None:
    """Create a key and print it once: Florin stores only its hash. For GPU hosts, prefer
    `florin engine token create`.

    Example: OPENAI_API_KEY=$(florin key create --tenant acme)
    """

    def people(body: Json) -> None:
        sys.stdout.write(f"{body['key']}\n")
        whose = f" of {body['tenant'] or body['engine']}" if body["tenant"] or body.get("engine") else ""
        note(clean(f"Key {body['id']}{whose}, role {body['role']}. It will not be shown again."))

    body = {"tenant": tenant, "role": role.value} | ({"engine": engine} if engine else {})
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


@command(app, "revoke")
def revoke(
    session: Session,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id shown by `florin key list`.")],
) -> None:
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
            k.get("engine"),
            when(k["created"]),
            _state(k),
        )
        for k in keys
    ]
    return table(("key", "tenant", "role", "engine", "created", "state"), rows)


def _state(key: Json) -> str:
    token = key["role"] == "enrolment"
    if key["revoked"]:
        return f"{'used' if token else 'revoked'} {when(key['revoked'])}"
    expires = key.get("expires")
    if expires is None:
        return "valid"
    return f"{'expired' if expires / 1e6 <= time.time() else 'valid until'} {when(expires)}"
