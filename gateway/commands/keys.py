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
        str, typer.Option(help="Whose key it is; needed for role tenant.", show_default=False)
    ] = "",
    role: Annotated[
        KeyRole,
        typer.Option(help="What it may do. engine: what one GPU host needs; metrics: read /metrics."),
    ] = KeyRole.TENANT,
    engine: Annotated[
        str, typer.Option(help="Whose host's key it is; needed for role engine.", show_default=False)
    ] = "",
) -> None:
    """Create a key and print it, this once: Florin keeps only its hash. GPU hosts come to their keys by
    `florin engine token create`, unless you carry one there yourself.

    Example: OPENAI_API_KEY=$(florin key create --tenant acme)
    """

    def people(body: Json) -> None:
        sys.stdout.write(f"{body['key']}\n")
        whose = f" of {body['tenant'] or body['engine']}" if body["tenant"] or body.get("engine") else ""
        note(clean(f"Key {body['id']}{whose}, role {body['role']}. It is not shown again."))

    body = {"tenant": tenant, "role": role.value} | ({"engine": engine} if engine else {})
    session.result(session.api.post("/admin/v1/keys", body), people)


@command(app, "list")
def list_(
    session: Session, tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None
) -> None:
    """List keys, never the keys themselves.

    Example: florin key list --tenant acme
    """
    session.result(
        session.api.get("/admin/v1/keys", {"tenant": tenant}), lambda b: show(key_table(b["data"]))
    )


@command(app, "revoke")
def revoke(
    session: Session, key_id: Annotated[str, typer.Argument(metavar="ID", help="As in florin key list.")]
) -> None:
    """Revoke a key: every worker refuses it within a second. A second time changes nothing. An engine that
    was registered with it is drained: it is sent no new requests until you `florin engine uncordon` it.

    Example: florin key revoke 3f9c2a
    """
    body = session.api.delete(f"/admin/v1/keys/{segment(key_id)}")
    session.result(body, lambda b: say(f"Key {clean(b['id'])} is revoked since {when(b['revoked'])}."))


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
