"""florin engine drain"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError, segment
from gateway.commands.engines import Name
from gateway.commands.output import clean, console, idle, note, say, show, table
from gateway.commands.session import Session, command

app = typer.Typer()

_POLL_SECONDS = 0.3
_GRACE_SECONDS = 10.0
"""How much later than asked the gateway may do something before that is reported."""

Update = Callable[[str, int, int], object]
"""Shows a line with what is done, out of a total (0: unknown)."""

Timeout = Annotated[
    float,
    typer.Option(
        min=0,
        max=86_400,
        help="Seconds for loading its adapters elsewhere, and again for its requests to finish.",
    ),
]


@command(app, "drain")
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
    timeout: Timeout = 600.0,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep its adapters assigned to it: after a restart they are loaded again."
        ),
    ] = False,
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
        session.result(session.api.get(path), _planned)
        return
    body = session.api.post(path, {"timeout": timeout, "release": not keep})
    if not wait:
        session.result(body, _started)
        return
    if not session.json:
        show_plan(body)
    session.result(follow(session.api, body, timeout), _drained)


def follow(api: Api, body: Json, timeout: float) -> Json:
    """Wait until the engine of this drain is drained; returns its last status. Shows progress on stderr.
    Raises ApiError if it takes too long, or if the drain was ended."""
    name, total, phase, deadline = body["engine"], 0, "", 0.0
    with _progress(name) as told:
        while body["phase"] != "drained":
            if body["phase"] == "serving":
                raise ApiError(409, f"The drain of {name} was ended: the engine is {body['state']}.")
            if body["phase"] != phase:  # the time counts anew for the requests
                phase, deadline = body["phase"], time.monotonic() + timeout + _GRACE_SECONDS
            total = max(total, len(body["moves"]))
            told(body, total)
            if time.monotonic() > deadline:
                raise ApiError(408, _late(body, timeout))
            time.sleep(_POLL_SECONDS)
            body = _polled(api, name, deadline)
    return body


def _polled(api: Api, name: str, deadline: float) -> Json:
    """The drain's status. A gateway that is away for a moment, as during its restart, ends nothing."""
    while True:
        try:
            return api.get(_path(name))
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
        except ApiError as error:
            if error.status < 500 or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _late(body: Json, timeout: float) -> str:
    name = clean(body["engine"])
    if body["phase"] == "loading":
        return f"Engine {name} has not stopped taking requests after {timeout:g} s: see florin doctor."
    if not body["in_flight"]:
        return f"Engine {name} still holds {_adapters(body['held'])} after {timeout:g} s: see florin doctor."
    return (
        f"Engine {name} gets no new requests, but after {timeout:g} s: {_running(body)}. Wait longer "
        f"with `florin engine drain {name} --wait`, or stop it, which aborts them."
    )


@contextmanager
def _progress(name: str) -> Iterator[_Told]:
    """A bar on a terminal; on a pipe, a line whenever something changes. On stderr."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield _Told(name)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(clean(name), total=None)
        yield _Told(name, lambda line, done, total: progress.update(
            task, description=line, completed=done, total=total or None
        ))  # fmt: skip


class _Told:
    def __init__(self, name: str, update: Update | None = None) -> None:
        self._name = name
        self._update = update
        self._last = ""  # mutable

    def __call__(self, body: Json, total: int) -> None:
        done = total - len(body["moves"])
        loading = body["phase"] == "loading"
        doing = "loading its adapters elsewhere" if loading else _running(body)
        line = f"{clean(self._name)}: {doing}"
        if self._update:
            self._update(line, done, total)
            return
        line += f", {done} of {total} done" if loading and total else ""
        if line != self._last:
            self._last = line
            note(line)


def _running(body: Json) -> str:
    running = body["in_flight"]
    return f"{running} request{'s' * (running != 1)} still running" if running else "releasing its slots"


def show_plan(body: Json) -> None:
    """A line for each adapter on the engine."""
    rows = [
        (m["version"], f"load on {m['to']}{_replacing(m)}", idle(m["idle_seconds"]), m["in_flight"])
        for m in body["moves"]
    ]
    rows += [(e["version"], f"on {', '.join(e['engines'])} already", "", "") for e in body["elsewhere"]]
    rows += [(s["version"], f"not loaded elsewhere ({s['reason']})", "", "") for s in body["stays"]]
    if rows:
        show(table(("adapter", "plan", "idle", "running"), rows, right=("idle", "running")))
    if body["alone"] and body["phase"] != "drained":
        note(
            f"No other engine serves what {clean(body['engine'])} serves: once it is drained, requests get "
            "a 503."
        )


def _replacing(move: Json) -> str:
    return f", in place of {move['replaces']}" if move["replaces"] else ""


def _planned(body: Json) -> None:
    show_plan(body)
    name = clean(body["engine"])
    if body["phase"] != "serving":
        _started(body)
    elif not body["moves"]:
        say(f"A drain of {name} would load nothing elsewhere.")
    else:
        say(f"A drain of {name} would load {_adapters(len(body['moves']))} elsewhere. Nothing was changed.")


def _started(body: Json) -> None:
    name = clean(body["engine"])
    if body["phase"] == "drained":
        _drained(body)
    elif body["phase"] == "loading":
        show_plan(body)
        say(
            f"Engine {name} is draining: once its adapters are loaded elsewhere, it gets no new requests. "
            f"To follow: florin engine drain {name} --wait"
        )
    else:
        say(f"Engine {name} is draining: it gets no new requests, {_running(body)}.")


def _drained(body: Json) -> None:
    name = clean(body["engine"])
    kept = f"it keeps {_adapters(body['held'])} for its restart" if body["held"] else "it holds no adapters"
    say(
        f"Engine {name} is drained: no request runs there, and {kept}. Stop it and run `florin engine "
        f"remove {name}`, or return it to service: florin engine uncordon {name}"
    )
    for stay in body["stays"]:
        note(f"Not loaded elsewhere: {clean(stay['version'])} ({clean(stay['reason'])}).")


def _adapters(count: int) -> str:
    return f"{count} adapter{'s' * (count != 1)}"


def _path(name: str) -> str:
    return f"/admin/v1/engines/{segment(name)}/drain"
