"""florin cost set-aside | exclude"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import REFUSED, Session, command, confirm

app = typer.Typer()

_PATH = "/finance/v1/set-aside"


@command(app, "set-aside")
def set_aside(session: Session) -> None:
    """List the engine-hours that cannot be rolled up, with the reason. They are in no report and no bill.

    Example: florin cost set-aside
    """
    session.result(session.api.get(_PATH), _listed)


def _listed(body: Json) -> None:
    if not body["data"]:
        note("No engine-hour is set aside.")
        return
    rows = [
        (one["engine"], one["hour"], one["gpu_type"], one["since"], one["reason"]) for one in body["data"]
    ]
    show(table(("engine", "hour", "GPU", "since", "reason"), rows))
    note("florin cost exclude ENGINE HOUR puts the records that cannot be into quarantine.")


@command(app, "exclude")
def exclude(
    session: Session,
    engine: Annotated[str, typer.Argument(help="As `florin cost set-aside` shows it.")],
    hour: Annotated[str, typer.Argument(help="As `florin cost set-aside` shows it.")],
    *,
    everything: Annotated[
        bool, typer.Option("--everything", help="All records of the hour, not only those that cannot be.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Put the records of an engine-hour that cannot be into quarantine, and roll up the rest of the hour.

    Nobody is billed for what is in quarantine. Exit code 1 when the hour still cannot be rolled up.

    Example: florin cost exclude gpu-a 2026-11-03T14:00:00Z
    """
    confirm(f"Exclude records of {engine} at {hour} from the books?", yes=yes)
    asked = {"engine": engine, "hour": hour, "everything": everything}
    body = session.api.post(f"{_PATH}/exclude", asked)
    session.result(body, _excluded)
    if body["set_aside"]:
        raise typer.Exit(REFUSED)


def _excluded(body: Json) -> None:
    say(f"{body['quarantined']:,} records are in quarantine.")
    if body["kept"]:
        note(f"{body['kept']:,} records of closed months stay where they are, as do those months' figures.")
    if body["set_aside"]:
        note(
            f"{clean(body['engine'])} at {clean(body['hour'])} still cannot be rolled up: "
            "florin cost set-aside says why; --everything excludes all of its records."
        )
    else:
        note(f"{clean(body['engine'])} at {clean(body['hour'])} is in the books again.")
