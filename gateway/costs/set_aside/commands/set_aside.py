"""florin cost set-aside | exclude"""

from __future__ import annotations

from typing import Annotated

import typer

from adapters.wording import counted
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import REFUSED, Session, command, confirm
from gateway.costs.set_aside.schemas import Exclusion, HourSetAside
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/finance/v1/set-aside"


@command(app, "set-aside")
def set_aside(session: Session) -> None:
    """List engine-hours that cannot be rolled up, and why. They are in no report and no bill.

    Example: florin cost set-aside
    """
    session.result(session.api.get(_PATH, Listed[HourSetAside]), _listed)


def _listed(hours: Listed[HourSetAside]) -> None:
    if not hours.data:
        note("No engine-hour is set aside.")
        return
    rows = [(hour.engine, hour.hour, hour.gpu_type, hour.since, hour.reason) for hour in hours.data]
    show(table(("engine", "hour", "GPU", "since", "reason"), rows))
    note("To quarantine the implausible records: florin cost exclude ENGINE HOUR")


@command(app, "exclude")
def exclude(
    session: Session,
    engine: Annotated[str, typer.Argument(help="The engine shown by `florin cost set-aside`.")],
    hour: Annotated[str, typer.Argument(help="The hour shown by `florin cost set-aside`.")],
    *,
    everything: Annotated[
        bool, typer.Option("--everything", help="Exclude all records of the hour, not only implausible ones.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Quarantine the implausible records of an engine-hour, and roll up the rest of the hour.

    Quarantined usage is not billed. Exit code 1 if the hour still cannot be rolled up.

    Example: florin cost exclude gpu-a 2026-11-03T14:00:00Z
    """
    confirm(f"Exclude records of {engine} at {hour} from all reports and bills?", yes=yes)
    body = {"engine": engine, "hour": hour, "everything": everything}
    exclusion = session.api.post(f"{_PATH}/exclude", body, Exclusion)
    session.result(exclusion, _excluded)
    if exclusion.set_aside:
        raise typer.Exit(REFUSED)


def _excluded(exclusion: Exclusion) -> None:
    say(f"{counted(exclusion.quarantined, 'record')} quarantined.")
    if exclusion.kept:
        kept = counted(
            exclusion.kept,
            "record belongs to a closed month and stays",
            "records belong to closed months and stay",
        )
        note(f"{kept}; the figures do not change.")
    if exclusion.set_aside:
        note(
            f"{clean(exclusion.engine)} at {clean(exclusion.hour)} still cannot be rolled up: "
            "see florin cost set-aside, or exclude all of its records with --everything."
        )
    else:
        note(f"{clean(exclusion.engine)} at {clean(exclusion.hour)} is rolled up again.")
