"""florin key …"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, facts, idle, note, say, show, table, when
from gateway.commands.session import Session, command
from gateway.schemas.base import Listed
from gateway.tenants.keys.schemas import CreatedKey, Key, KeyFields, NewKey, RotatedKey, Rotation
from gateway.tenants.schemas.terms import KeyTerms, in_words, section

app = typer.Typer()

_SCOPES = section("scopes", KeyTerms)
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The id shown by `florin key list`.")]


@command(app, "create")
@with_options(NewKey)
def create(session: Session, *, changes: Json) -> None:
    """Create a key and print it once: Florin stores only its hash. For GPU hosts, prefer
    `florin engine token create`.

    Example: OPENAI_API_KEY=$(florin key create --tenant acme --label checkout --expires 90d)
    """

    def people(key: CreatedKey) -> None:
        sys.stdout.write(f"{key.key}\n")
        owner = f" of {key.tenant or key.engine}" if key.tenant or key.engine else ""
        until = f", valid until {when(key.expires)}" if key.expires else ""
        note(clean(f"Key {key.id}{owner}, role {key.role}{until}. It will not be shown again."))

    session.result(session.api.post("/admin/v1/keys", changes, CreatedKey), people)


@command(app, "list")
def list_(
    session: Session, tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None
) -> None:
    """List keys by id; secrets are never shown.

    Example: florin key list --tenant acme
    """
    keys = session.api.get("/admin/v1/keys", Listed[Key], {"tenant": tenant})
    session.result(keys, lambda keys: show(key_table(keys.data)))


@command(app, "show")
def show_(session: Session, key_id: KeyId) -> None:
    """Show one key: its scopes, limits, state and last use. The secret is never shown.

    Example: florin key show 3f9c2a
    """
    session.result(session.api.get(f"/admin/v1/keys/{segment(key_id)}", Key), _people)


@command(app, "update")
@with_options(KeyFields, changes_only=True)
def update(session: Session, key_id: KeyId, *, changes: Json) -> None:
    """Change a key. Omitted options keep their values, and `none` removes a limit. Its secret, role and owner
    never change.

    Example: florin key update 3f9c2a --adapter support --expires 2027-06-30
    """
    if not changes:
        raise UsageError("Nothing to change: give at least one option (florin key update --help).")
    session.result(session.api.patch(f"/admin/v1/keys/{segment(key_id)}", changes, Key), _people)


@command(app, "rotate")
@with_options(Rotation)
def rotate(session: Session, key_id: KeyId, *, changes: Json) -> None:
    """Replace a key: print a new one with the same owner, role, scopes and limits. The old one expires once
    the overlap is over. Repeating the command is refused, so that no second key is made by mistake.

    Example: florin key rotate 3f9c2a --overlap 48h
    """

    def people(key: RotatedKey) -> None:
        sys.stdout.write(f"{key.key}\n")
        old, new = key.replaced, clean(key.id)
        note(f"Key {new} replaces {clean(old.id)}, which is valid until {when(old.expires)}.")
        note(f"{new} will not be shown again.")

    key = session.api.post(f"/admin/v1/keys/{segment(key_id)}/rotate", changes, RotatedKey)
    session.result(key, people)


@command(app, "revoke")
def revoke(session: Session, key_id: KeyId) -> None:
    """Revoke a key: every worker refuses it within a second. Repeating the command changes nothing. An engine
    registered with the key is drained until you run `florin engine uncordon`.

    Example: florin key revoke 3f9c2a
    """
    key = session.api.delete(f"/admin/v1/keys/{segment(key_id)}", Key)
    session.result(key, lambda key: say(f"Key {clean(key.id)} revoked at {when(key.revoked)}."))


def key_table(keys: Sequence[Key]) -> Table:
    rows = [
        (
            key.id,
            key.tenant,
            key.role,
            key.label,
            key.engine,
            in_words(key.scopes, _SCOPES),
            when(key.created),
            ago(key.last_used),
            _state(key),
        )
        for key in keys
    ]
    columns = ("key", "tenant", "role", "label", "engine", "scopes", "created", "last used", "state")
    return table(columns, rows)


def ago(micros: int | None) -> str:
    """`3m ago`; empty for None."""
    return "" if micros is None else f"{idle(max(0.0, time.time() - micros / 1e6))} ago"


def _people(key: Key) -> None:
    show(
        facts(
            [
                ("key", key.id),
                ("tenant", key.tenant),
                ("role", key.role),
                ("label", key.label),
                ("engine", key.engine),
                ("state", _state(key)),
                ("scopes", in_words(key.scopes, _SCOPES) or "everything that its role may"),
                ("limits", in_words(key.limits, section("limits")) or "its tenant's"),
                ("budget", in_words(key.budget, section("budget")) or "its tenant's"),
                ("priority", key.priority),
                ("cost centre", key.cost_centre),
                ("created", when(key.created)),
                ("last used", ago(key.last_used)),
                ("replaced by", key.replaced_by),
            ]
        )
    )


def _state(key: Key) -> str:
    if key.revoked:
        return f"{'used' if key.role == 'enrolment' else 'revoked'} {when(key.revoked)}"
    if key.expires is None:
        return "valid"
    return f"{'expired' if key.expires / 1e6 <= time.time() else 'valid until'} {when(key.expires)}"
