"""florin engine …"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import Json, segment
from gateway.commands.options import with_options
from gateway.commands.output import busy, clean, label_pairs, note, say, show, table
from gateway.commands.session import Session, Yes, YesInScripts, command, confirm
from gateway.fleet.engines.schemas.engines import Engine, RegisteredEngine, TrustedEngine
from gateway.fleet.engines.schemas.registration import NewEngine
from gateway.schemas.base import Listed, Removed

app = typer.Typer()

Columns = tuple[tuple[str, Callable[[Engine], object]], ...]
"""Names, and what each shows of an engine."""
Name = Annotated[str, typer.Argument(help="The engine's name.")]


_STATES = {
    "active": "is active: it accepts adapters and requests",
    "cordoned": "is cordoned: it accepts no new adapters",
}


@command(app, "add")
@with_options(NewEngine)
def add(session: Session, *, changes: Json) -> None:
    """Register an engine by its URL, or update its registration. Repeating the command changes nothing.

    For engines on a shared filesystem, or not started by Florin; `florin engine run` registers its own.

    The gateway asks the engine what it serves and compares the answers with these options.

    Example: florin engine add --name a1 --url http://10.0.0.7:8000 --base llama-8b --gpu-type H200 --slots 8
    --max-rank 64
    """
    with busy(f"Asking {changes['url']} …"):
        engine = session.api.post("/admin/v1/engines", changes, RegisteredEngine)
    session.result(engine, _added)


@command(app, "list")
def list_(
    session: Session,
    *,
    wide: Annotated[
        bool,
        typer.Option(
            "--wide", "-w", help="Also agent, highest rank, labels, version, prompt scores and URL."
        ),
    ] = False,
) -> None:
    """List engines with their health and the requests that run and wait there, in 80 columns; --wide shows
    the rest. Agent: uptime of the engine process, as reported by `florin engine run` on its host, or silent
    if no report arrives. Prompt scores: whether requests with `prompt_logprobs`, or `echo` and `logprobs`,
    are safe there; only then are they sent there.

    Example: florin engine list --wide
    """
    engines = session.api.get("/admin/v1/engines", Listed[Engine])
    session.result(engines, lambda engines: show_list(engines.data, wide=wide))


def show_list(engines: Sequence[Engine], *, wide: bool) -> None:
    if not engines:
        note("No engines yet: florin engine add --name … --url …")
    columns = (*_COLUMNS, *(_WIDE if wide else ()), *_LAST)
    rows = [[shown_field(engine) for _, shown_field in columns] for engine in engines]
    names = [name for name, _ in columns]
    right = [name for name in ("slots", "max rank", "run", "wait") if name in names]
    show(table(names, rows, right=right))
    for engine in engines:
        if engine.serves:
            note(f"{clean(engine.name)} serves {clean(engine.serves)} only, {_merged(engine)}.")
        if engine.hang:
            note(f"{clean(engine.name)} {clean(engine.hang.reason)}.")
        if not wide and _agent(engine) == "silent":
            note(f"{clean(engine.name)}: its agent, florin engine run, sends no reports.")


@command(app, "cordon")
def cordon(session: Session, name: Name) -> None:
    """Stop placing new adapters on an engine; adapters it holds are still served.

    Example: florin engine cordon a1
    """
    _state(session, name, "cordoned")


@command(app, "uncordon")
def uncordon(session: Session, name: Name) -> None:
    """Return an engine to service after a cordon or a drain. Ends a drain in progress.

    Example: florin engine uncordon a1
    """
    _state(session, name, "active")


@command(app, "remove")
def remove(
    session: Session,
    name: Name,
    *,
    yes: Yes = False,
) -> None:
    """Remove an engine and its placements. Repeating the command changes nothing.

    Example: florin engine remove a1 --yes
    """
    confirm(f"Remove engine {name}?", yes=yes)
    removed = session.api.delete(f"/admin/v1/engines/{segment(name)}", Removed)
    end = "removed" if removed.removed else "was not registered; nothing to do"
    session.result(removed, lambda _: say(f"Engine {clean(name)} {end}."))


@command(app, "trust")
def trust(
    session: Session,
    name: Name,
    *,
    yes: YesInScripts = False,
) -> None:
    """Accept an engine's current base model answers as the reference for its fleet.

    Use it after changing the base model, its quantization or vLLM, when loads are refused because engines are
    suspect. Versions of the fleet get new references at their next loads; quarantines stay.

    Example: florin engine trust a1 --yes
    """
    confirm(f"Use the answers of {name} as the reference for its whole fleet?", yes=yes, unattended=False)
    path = f"/admin/v1/engines/{segment(name)}/trust"
    session.result(session.api.post(path, None, TrustedEngine), _trusted)


def _added(engine: RegisteredEngine) -> None:
    say(f"Engine {clean(engine.name)} serves {clean(engine.serves or engine.base)} at {clean(engine.url)}.")
    if not engine.base_config:
        note(
            f"Florin does not have the config.json of {clean(engine.base)} and cannot check "
            "adapters without it: run the command again with --base-config PATH."
        )


def _merged(engine: Engine) -> str:
    if engine.drain is not None and not engine.drain.until:
        return "and rests until that is live"
    return "merged into its weights" if engine.resident else "and has yet to be compared with other engines"


def _shown_state(engine: Engine) -> str:
    if not engine.stopping:
        trial = engine.trial
        return f"trial {trial.share} %" if trial and engine.state == "active" else engine.state
    end = "stopped" if engine.stopped else "stopping"
    return end if engine.state == "active" else f"{engine.state}, {end}"


def _agent(engine: Engine) -> str | None:
    """`up 3h 12m`, or `silent`; None without one."""
    if not engine.agent:
        return None
    if not engine.heartbeat:
        return "silent"
    started = engine.heartbeat.started
    return f"up {lasting(time.time() - started / 1e6)}" if started else "up"


def lasting(seconds: float) -> str:
    """`42s`, `12m`, `3h 12m`, `5d 3h`."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{max(0, int(seconds))}s"
    if hours < 1:
        return f"{minutes}m"
    return f"{hours}h {minutes % 60}m" if hours < 24 else f"{hours // 24}d {hours % 24}h"


def _gpus(engine: Engine) -> str:
    """`2 x H200`, with purchase model, region and tenant if set: `2 x H200 spot, eu-1, for acme`."""
    purchase = "" if engine.purchase == "on_demand" else f" {engine.purchase}"
    region = f", {engine.region}" if engine.region else ""
    owner = f", for {engine.tenant}" if engine.tenant else ""
    return f"{engine.gpu_count} x {engine.gpu_type}{purchase}{region}{owner}"


def _state(session: Session, name: str, state: str) -> None:
    engine = session.api.put(f"/admin/v1/engines/{segment(name)}/state", {"state": state}, Engine)
    session.result(engine, lambda engine: say(f"Engine {clean(engine.name)} {_STATES[engine.state]}."))


def _trusted(trusted: TrustedEngine) -> None:
    say(
        f"{clean(trusted.engine)} is now the reference for {clean(trusted.base)}; "
        f"{counted(trusted.fingerprints_forgotten, 'version gets', 'versions get')} new references at the "
        "next load."
    )


_COLUMNS: Columns = (
    ("engine", lambda e: e.name),
    ("state", _shown_state),
    ("health", lambda e: e.health),
    ("gpus", _gpus),
    ("slots", lambda e: "merged" if e.serves else f"{e.resident}/{e.slots}"),
    ("run", lambda e: e.running),
    ("wait", lambda e: e.waiting),
)
_WIDE: Columns = (
    ("agent", _agent),
    ("max rank", lambda e: e.max_rank),
    ("labels", lambda e: label_pairs(e.labels)),
    ("engine version", lambda e: f"{e.driver} {e.version}".strip()),
    ("prompt scores", lambda e: f"{e.prompt_scores} (set)" if e.declared_scores else e.prompt_scores),
    ("unload", lambda e: e.unloads),
    ("url", lambda e: e.url),
)
_LAST: Columns = (("base", lambda e: e.base),)
"""A model's name may be long, and then its column is the one that folds."""
