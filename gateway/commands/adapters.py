"""florin adapter …"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands.client import Json, UsageError, full_name
from gateway.commands.output import busy, clean, facts, note, say, show, table
from gateway.commands.session import Session, command, confirm
from gateway.commands.times import when

app = typer.Typer(no_args_is_help=True, help="LoRA adapters: register, ship, roll back.")

_DIGEST_SHOWN = len("sha256:") + 12
"""Enough to tell versions apart; --json has it whole."""

Adapter = Annotated[str, typer.Argument(metavar="TENANT/NAME", help="For example acme/support.")]


@command(app, "add")
def add(
    session: Session,
    adapter: Adapter,
    *,
    source: Annotated[str, typer.Option(help="Directory with the adapter's config and weights, or a URI.")],
    base_model: Annotated[
        str | None, typer.Option(help="The fleet it is for, where several fleets could be meant.")
    ] = None,
    assume_base: Annotated[
        bool,
        typer.Option(
            "--assume-base", help="Accept it though it names another base model; shapes are still checked."
        ),
    ] = False,
) -> None:
    """Register an adapter, or a new version of one. The same files again change nothing.

    The first version is live at once; a later one when it is promoted. What cannot work is refused here, with
    each check that failed.

    Example: florin adapter add acme/support --source ./out/checkpoint-300
    """
    full_name(adapter)
    body: Json = {
        "adapter": adapter,
        "source": absolute(source),
        "assume_base": assume_base,
        "base_model": base_model,
    }
    with busy(f"Checking and copying {source} …"):
        answer = session.api.post("/admin/v1/adapters", body)
    session.result(answer, _added)


@command(app, "list")
def list_(
    session: Session, tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None
) -> None:
    """List adapters: what is live, and where it lives.

    Example: florin adapter list --tenant acme
    """

    def people(body: Json) -> None:
        if not body["data"]:
            note("No adapters yet: florin adapter add TENANT/NAME --source DIR")
        rows = [
            (a["adapter"], a["live"], a["versions"], a["pinned"], _placed(a["placed"])) for a in body["data"]
        ]
        show(table(("adapter", "live", "versions", "pinned", "placed on"), rows))

    session.result(session.api.get("/admin/v1/adapters", {"tenant": tenant}), people)


@command(app, "show")
def show_(session: Session, adapter: Adapter) -> None:
    """Show one adapter with its versions.

    Example: florin adapter show acme/support
    """
    session.result(session.api.get(f"/admin/v1/adapters/{full_name(adapter)}"), _details)


@command(app, "promote")
def promote(
    session: Session, adapter: Adapter, version: Annotated[str, typer.Argument(help="For example v2.")]
) -> None:
    """Make a version live: the bare name means it from the next request on.

    Example: florin adapter promote acme/support v2
    """
    version = f"v{version}" if version.isdecimal() else version
    body = session.api.put(f"/admin/v1/adapters/{full_name(adapter)}/live", {"version": version})
    session.result(body, _live)


@command(app, "rollback")
def rollback(session: Session, adapter: Adapter) -> None:
    """Make live again what was live before. A second rollback undoes the first.

    Example: florin adapter rollback acme/support
    """
    session.result(session.api.post(f"/admin/v1/adapters/{full_name(adapter)}/rollback"), _live)


@command(app, "pin")
def pin(session: Session, adapter: Adapter) -> None:
    """Keep an adapter's live version in its slot: it is never evicted.

    Example: florin adapter pin acme/support
    """
    _pin(session, adapter, pinned=True)


@command(app, "unpin")
def unpin(session: Session, adapter: Adapter) -> None:
    """Let an adapter give way to others again when it is idle.

    Example: florin adapter unpin acme/support
    """
    _pin(session, adapter, pinned=False)


@command(app, "remove")
def remove(
    session: Session,
    adapter: Adapter,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove an adapter with all of its versions. A second time changes nothing.

    Example: florin adapter remove acme/support --yes
    """
    path = f"/admin/v1/adapters/{full_name(adapter)}"
    confirm(f"Remove {adapter} and all of its versions?", yes=yes)
    session.result(
        session.api.delete(path),
        lambda b: say(
            f"{clean(b['adapter'])} {'is removed' if b['removed'] else 'was not registered: nothing to do'}."
        ),
    )


def absolute(source: str) -> str:
    """A path as this machine means it; a URI as it is. Raises UsageError for an empty one."""
    if not source:
        raise UsageError("--source is empty: name the directory of the adapter's files.")
    if "://" in source:
        return source
    try:
        return str(Path(source).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"--source: {source!r} is not a usable path ({error}).") from error


def _pin(session: Session, adapter: str, *, pinned: bool) -> None:
    body = session.api.put(f"/admin/v1/adapters/{full_name(adapter)}/pin", {"pinned": pinned})
    session.result(
        body, lambda b: say(f"{clean(b['adapter'])} is {'pinned' if b['pinned'] else 'not pinned'}.")
    )


def _added(body: Json) -> None:
    adapter, version, live = clean(body["adapter"]), clean(body["version"]), body.get("live")
    if not body.get("created", True):
        say(f"{adapter}@{version} has these files already: nothing to do. Live: {clean(live)}.")
    elif live == body["version"]:
        say(f"{adapter}@{version} is registered and live.")
    else:
        say(
            f"{adapter}@{version} is registered. Live is still {clean(live)}: "
            f"florin adapter promote {adapter} {version}"
        )


def _live(body: Json) -> None:
    say(f"{clean(body['adapter'])} is {clean(body['live'])} from now on.")


def _placed(placed: list[dict[str, Any]]) -> list[str]:
    """Each place once: several versions may share an engine."""
    places = (p["engine"] if p["state"] == "resident" else f"{p['engine']} ({p['state']})" for p in placed)
    return list(dict.fromkeys(places))


def _details(body: Json) -> None:
    show(
        facts(
            [
                ("adapter", body["adapter"]),
                ("live", body["live"]),
                ("pinned", body["pinned"]),
                ("placed on", _placed(body["placed"])),
            ]
        )
    )
    rows = [
        (
            v["version"],
            v["rank"],
            v["size_bytes"],
            v["base_model"],
            v["digest"][:_DIGEST_SHOWN],
            when(v["created"]),
            v["source"],
        )
        for v in body["version_details"]
    ]
    columns = ("version", "rank", "bytes", "base model", "digest", "created", "source")
    show(table(columns, rows, right=("rank", "bytes")))
