"""florin engine drain"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adapters.wording import counted
from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, console, idle, note, say, show, table
from gateway.commands.session import Session, command
from gateway.fleet.engines.commands.engines import Name
from gateway.fleet.engines.schemas.engines import Drain, DrainOptions, Move

app = typer.Typer()

_POLL_SECONDS = 0.3
_GRACE_SECONDS = 10.0
"""How much later than asked the gateway may do something before that is reported."""

Update = Callable[[str, int, int], object]
"""Shows a line with what is done, out of a total (0: unknown)."""


@command(app, "drain")
@with_options(DrainOptions)
def drain(
    session: Session,
    name: Name,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be loaded where, and change nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until no request runs there and it holds no adapters.")
    ] = False,
    changes: Json,
) -> None:
    """Empty an engine without slowing requests: load its adapters elsewhere, send it no new requests, then
    unload them. It can then be stopped and removed.

    Adapters in use are loaded on other engines first, the most recently used one first; until then the engine
    serves them. Running requests finish. The gateway continues if this command is interrupted;
    repeating the command continues the same drain. `florin engine uncordon` ends it.

    Example: florin engine drain a1 --dry-run

    Example: florin engine drain a1 --wait --timeout 300
    """
    if dry_run and wait:
        raise UsageError("--dry-run changes nothing, so there is nothing to wait for: omit --wait.")
    path = _path(name)
    if dry_run:
        session.result(session.api.get(path, Drain), _planned)
        return
    begun = session.api.post(path, changes, Drain)
    if not wait:
        session.result(begun, _started)
        return
    if not session.json:
        show_plan(begun)
    session.result(follow(session.api, begun, DrainOptions(**changes).timeout), _drained)


def follow(api: Api, drain: Drain, timeout: float) -> Drain:
    """Wait until the engine is drained; returns the last status. Shows progress on stderr. Raises ApiError if
    it takes too long, or if the drain was ended."""
    total, phase, deadline = 0, "", 0.0
    with _progress(drain.engine) as show_progress:
        while drain.phase != "drained":
            if drain.phase == "serving":
                raise ApiError(
                    409, f"The drain of {clean(drain.engine)} was ended: the engine is {drain.state}."
                )
            if drain.phase != phase:  # the time counts anew for the requests
                phase, deadline = drain.phase, time.monotonic() + timeout + _GRACE_SECONDS
            total = max(total, len(drain.moves))
            show_progress(drain, total)
            if time.monotonic() > deadline:
                raise ApiError(408, _late(drain, timeout))
            time.sleep(_POLL_SECONDS)
            drain = _polled(api, drain.engine, deadline)
    return drain


def _polled(api: Api, name: str, deadline: float) -> Drain:
    """The drain's status. A gateway that is away for a moment, as during its restart, ends nothing."""
    while True:
        try:
            return api.get(_path(name), Drain)
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
        except ApiError as error:
            if error.status < 500 or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _late(drain: Drain, timeout: float) -> str:
    name = clean(drain.engine)
    if drain.phase == "loading":
        return f"Engine {name} has not stopped taking requests after {timeout:g} s: see florin doctor."
    if not drain.in_flight:
        return f"Engine {name} still holds {_adapters(drain.held)} after {timeout:g} s: see florin doctor."
    return (
        f"Engine {name} gets no new requests, but after {timeout:g} s: {_running(drain)}. Wait longer "
        f"with `florin engine drain {name} --wait`, or stop it, which aborts them."
    )


@contextmanager
def _progress(name: str) -> Iterator[_ProgressLine]:
    """A bar on a terminal; on a pipe, a line whenever something changes. On stderr."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield _ProgressLine(name)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(clean(name), total=None)
        yield _ProgressLine(name, lambda line, done, total: progress.update(
            task, description=line, completed=done, total=total or None
        ))  # fmt: skip


class _ProgressLine:
    def __init__(self, name: str, update: Update | None = None) -> None:
        self._name = name
        self._update = update
        self._last = ""  # mutable

    def __call__(self, drain: Drain, total: int) -> None:
        done = total - len(drain.moves)
        loading = drain.phase == "loading"
        doing = "loading its adapters elsewhere" if loading else _running(drain)
        line = f"{clean(self._name)}: {doing}"
        if self._update:
            self._update(line, done, total)
            return
        line += f", {done} of {total} done" if loading and total else ""
        if line != self._last:
            self._last = line
            note(line)


def _running(drain: Drain) -> str:
    running = drain.in_flight
    return f"{counted(running, 'request')} still running" if running else "releasing its slots"


def show_plan(drain: Drain) -> None:
    """A line for each adapter on the engine."""
    rows: list[tuple[object, ...]] = [
        (move.version, f"load on {move.to}{_replacing(move)}", idle(move.idle_seconds), move.in_flight)
        for move in drain.moves
    ]
    rows += [
        (loaded.version, f"on {', '.join(loaded.engines)} already", "", "") for loaded in drain.elsewhere
    ]
    rows += [(stay.version, f"not loaded elsewhere ({stay.reason})", "", "") for stay in drain.stays]
    if rows:
        show(table(("adapter", "plan", "idle", "running"), rows, right=("idle", "running")))
    if drain.alone and drain.phase != "drained":
        note(
            f"No other engine serves what {clean(drain.engine)} serves: once it is drained, requests get a "
            "503."
        )


def _replacing(move: Move) -> str:
    return f", in place of {move.replaces}" if move.replaces else ""


def _planned(drain: Drain) -> None:
    show_plan(drain)
    name = clean(drain.engine)
    if drain.phase != "serving":
        _started(drain)
    elif not drain.moves:
        say(f"A drain of {name} would load nothing elsewhere.")
    else:
        say(f"A drain of {name} would load {_adapters(len(drain.moves))} elsewhere. Nothing was changed.")


def _started(drain: Drain) -> None:
    name = clean(drain.engine)
    if drain.phase == "drained":
        _drained(drain)
    elif drain.phase == "loading":
        show_plan(drain)
        say(
            f"Engine {name} is draining: once its adapters are loaded elsewhere, it gets no new requests. "
            f"To follow: florin engine drain {name} --wait"
        )
    else:
        say(f"Engine {name} is draining: it gets no new requests, {_running(drain)}.")


def _drained(drain: Drain) -> None:
    name = clean(drain.engine)
    kept = f"it keeps {_adapters(drain.held)} for its restart" if drain.held else "it holds no adapters"
    say(
        f"Engine {name} is drained: no request runs there, and {kept}. Stop it and run `florin engine "
        f"remove {name}`, or return it to service: florin engine uncordon {name}"
    )
    for stay in drain.stays:
        note(f"Not loaded elsewhere: {clean(stay.version)} ({clean(stay.reason)}).")


def _adapters(count: int) -> str:
    return counted(count, "adapter")


def _path(name: str) -> str:
    return f"/admin/v1/engines/{segment(name)}/drain"
