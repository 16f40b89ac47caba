"""florin placement, florin explain"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from adapters.wording import counted
from gateway.commands import output
from gateway.commands.client import UnreachableError, UsageError, full_name, segment
from gateway.commands.output import facts, idle, say, show, table, when
from gateway.commands.session import Session, command
from gateway.fleet.placement.schemas import Decisions, EnginePlacement, Explanation, PlacementChange
from gateway.schemas.base import Listed

app = typer.Typer()

_HEALTH_STYLE = {
    "up": "green",
    "down": "bold red",
    "hung": "bold red",
    "ejected": "bold red",
    "unknown": "yellow",
}
_BLANK = Text("")
_STATE_STYLE = {"resident": "green", "loading": "yellow", "leaving": "magenta", "cached": "dim"}


@command(app, "placement")
def placement(
    session: Session,
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between refreshes.")] = 1.0,
    changes: Annotated[
        bool, typer.Option("--changes", help="The latest loads and evictions instead, newest first.")
    ] = False,
) -> None:
    """Show which adapter versions live on which engines' slots.

    Example: florin placement --watch

    Example: florin placement --changes
    """
    if changes and watch:
        raise UsageError("--changes cannot be combined with --watch.")
    if changes:
        session.result(session.api.get("/admin/v1/placement/changes", Listed[PlacementChange]), _show_changes)
        return
    if not watch:
        session.result(_fetch(session), lambda engines: show(placement_table(engines.data)))
        return
    if session.json:
        raise UsageError("--watch cannot be combined with --json.")
    _watch(session, interval)


@command(app, "explain")
def explain(
    session: Session,
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="An adapter, acme/support, or the x-request-id of an answer."),
    ],
) -> None:
    """Explain where a request would go now, or where a recent one went, and why.

    Example: florin explain acme/support
    """
    if "/" in what:
        session.result(session.api.get(f"/admin/v1/explain/{full_name(what)}", Explanation), _explained)
    else:
        session.result(session.api.get(f"/admin/v1/explain/{segment(what)}", Decisions), _decided)


def placement_table(engines: Sequence[EnginePlacement]) -> Table:
    """One line per slot and cached version; an engine's free slots share a line."""
    rows: list[tuple[Any, ...]] = []
    for engine in engines:
        used = sum(placed.state != "cached" for placed in engine.placements)
        health = Text(engine.health, _HEALTH_STYLE.get(engine.health, ""))
        head: tuple[Any, ...] = (engine.engine, engine.gpu_type, health, f"{used}/{engine.slots}")
        for placed in engine.placements:
            word = "lost; reloaded on recovery" if engine.health == "down" else placed.state
            state = Text(word, _STATE_STYLE.get(word, "red"))
            rows.append((*head, placed.version, state, placed.in_flight, idle(placed.idle_seconds)))
            head = (_BLANK,) * 4 if sys.stdout.isatty() else head  # complete lines on a pipe
        free = engine.slots - used
        if free > 0:
            rows.append((*head, Text(f"{free} free", "dim"), *(_BLANK,) * 3))
    columns = ("engine", "gpu", "health", "slots", "version", "state", "in flight", "idle")
    return table(columns, rows, right=("in flight", "idle"))


def _fetch(session: Session) -> Listed[EnginePlacement]:
    return session.api.get("/admin/v1/placement", Listed[EnginePlacement])


def _watch(session: Session, interval: float) -> None:
    """Until Ctrl-C: refreshes in place; on a pipe, prints one table after another."""
    pictures = _pictures(session, interval)
    try:
        if not sys.stdout.isatty():
            for picture in pictures:
                show(picture)
        with Live(next(pictures), console=output.console(), auto_refresh=False) as live:
            for picture in pictures:
                live.update(picture, refresh=True)
    except KeyboardInterrupt:
        return


def _pictures(session: Session, interval: float) -> Iterator[RenderableType]:
    """The first must succeed. If the gateway goes away later, the last table is shown with a note."""
    picture = placement_table(_fetch(session).data)
    yield picture
    while True:
        time.sleep(interval)
        try:
            picture = placement_table(_fetch(session).data)
            yield picture
        except UnreachableError as error:
            yield Group(picture, Text(f"{error} Retrying.", "bold red"))


def _show_changes(changes: Listed[PlacementChange]) -> None:
    rows = [
        (
            when(change.changed_at),
            change.version,
            change.kind.replace("_", " "),
            change.engine,
            "" if change.seconds is None else f"{change.seconds:.1f} s",
            change.why or "",
        )
        for change in changes.data
    ]
    show(table(("at", "version", "what", "engine", "took", "why"), rows, right=("took",)))


def _explained(explanation: Explanation) -> None:
    decision = explanation.decision
    show(
        facts(
            [
                ("adapter", explanation.adapter),
                ("version", explanation.version),
                ("decision", decision.action),
                ("engine", decision.engine),
                ("because", decision.reason),
            ]
        )
    )
    rows = [
        (
            candidate.engine,
            candidate.health,
            candidate.action if candidate.eligible else "",
            "" if candidate.cost_ms is None else f"{candidate.cost_ms:.0f} ms",
            ", ".join(f"{name} {ms:.0f}" for name, ms in candidate.terms.items() if ms),
            candidate.reason,
        )
        for candidate in decision.candidates
    ]
    columns = ("candidate", "health", "action", "cost", "terms (ms)", "reason")
    show(table(columns, rows, right=("cost",)))
    if explanation.moves:
        moves = [(when(m.moved_at), m.kind, m.version, m.engine, m.why) for m in explanation.moves]
        show(table(("moved", "kind", "version", "engine", "reason"), moves))


def _decided(decisions: Decisions) -> None:
    for decision in decisions.data:
        lines = [
            ("attempt", decision.attempt),
            ("at", when(decision.decided_at)),
            ("adapter", decision.adapter),
            ("sent to", decision.engine),
        ]
        if decision.picked:
            lines.append(("decision", f"{decision.action} on {decision.picked}"))
        if decision.expected_cached_tokens:
            lines.append(("cached tokens", f"{decision.expected_cached_tokens:,} expected"))
        show(facts(lines))
        if decision.considered:
            rows = [(engine, action, f"{ms:.0f} ms") for engine, action, ms in decision.considered]
            show(table(("considered", "action", "cost"), rows, right=("cost",)))
        if others := decision.others:
            say(f"{counted(others, 'other engine')} could not serve it, or not for less.")
