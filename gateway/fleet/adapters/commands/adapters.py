"""florin adapter …: listing adapters, and managing their versions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.output import busy, clean, say
from gateway.commands.session import Session, command, confirm
from gateway.fleet.adapters.commands.page import show_list, show_page, show_problems, show_scale, show_switch
from gateway.fleet.adapters.schemas import adapters as schemas
from gateway.fleet.adapters.schemas.adapters import (
    AdapterDetails,
    AdapterVersion,
    PromotedAdapter,
    RemovedAdapter,
    ScaledAdapter,
)
from gateway.fleet.engines.commands.tokens import seconds
from gateway.schemas.base import Listed

app = typer.Typer()


class GuardAction(StrEnum):
    ROLLBACK = "rollback"
    HOLD = "hold"
    NONE = "none"


Adapter = Annotated[
    str,
    typer.Argument(
        metavar="TENANT/NAME", help="For example acme/support, or support with a tenant's own key."
    ),
]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="For example v2.")]


class AdapterState(StrEnum):
    CANARY = "canary"
    HELD = "held"
    PINNED = "pinned"
    LOADED = "loaded"
    UNLOADED = "unloaded"


@command(app, "list")
def list_(
    session: Session,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    base: Annotated[str | None, typer.Option(help="Only those whose live version is for this base.")] = None,
    engine: Annotated[
        str | None, typer.Option(help="Only those with a version placed on this engine.")
    ] = None,
    state: Annotated[
        AdapterState | None,
        typer.Option(
            help="Only those with a canary, with one that its guard holds, pinned ones, or those whose live "
            "version is on an engine, or on none."
        ),
    ] = None,
    problems: Annotated[
        bool,
        typer.Option("--problems", help="Only those with a version that is not served, with the reasons."),
    ] = False,
) -> None:
    """List adapters with their live and canary versions, problems and placements. Options narrow the list,
    and can be combined.

    Example: florin adapter list --problems --tenant acme
    """
    params: Json = {"tenant": tenant, "base": base, "engine": engine, "state": state and state.value}
    params |= {"problems": True} if problems else {}
    adapters = session.api.get("/admin/v1/adapters", Listed[schemas.Adapter], params)
    filtered = any(params.values())
    session.result(adapters, show_problems if problems else lambda a: show_list(a, filtered=filtered))


@command(app, "show")
def show_(session: Session, adapter: Adapter) -> None:
    """Show an adapter with its versions, their states and problems.

    Example: florin adapter show acme/support
    """
    session.result(session.api.get(session.adapter_path(adapter), AdapterDetails), show_page)


@command(app, "promote")
def promote(
    session: Session,
    adapter: Adapter,
    version: Version,
    *,
    weight: Annotated[
        int,
        typer.Option(min=1, max=100, help="Percentage of calls. Below 100, the version becomes a canary."),
    ] = 100,
    guard: Annotated[
        GuardAction | None,
        typer.Option(help="What to do if the canary is worse than the live version; none: nothing."),
    ] = None,
    max_error_rate: Annotated[
        float | None, typer.Option(help="Fraction of its requests that may fail. Default: 0.01.")
    ] = None,
    max_latency_ratio: Annotated[
        float | None,
        typer.Option(help="Highest ratio of its latency to the live version's. Default: 1.5."),
    ] = None,
    min_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests that it must get before the guard decides. Default: 50."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How far back requests count, and how long each weight is watched. Default: 30m.",
        ),
    ] = None,
    then: Annotated[
        list[int] | None,
        typer.Option(
            min=2, max=100, help="The next weight, set automatically if nothing is wrong. Repeat it for more."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Change the weight although the guard holds it. Ends the hold.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Switch immediately; the first request loads the version.")
    ] = False,
    require_eval: Annotated[
        bool, typer.Option("--require-eval", help="Refuse unless it has passed its last evaluation.")
    ] = False,
    require_eval_of: Annotated[
        str | None,
        typer.Option(
            "--require-eval-of",
            metavar="SHA256",
            help="Also require that the evaluation used this held-out set.",
        ),
    ] = None,
) -> None:
    """Make a version live: from the next request on, the bare name resolves to it.

    It is loaded first, on as many engines as hold the live version; if none can, nothing changes. With
    --weight it gets that share of calls, always from the same end users (by the field `user`); raising the
    weight adds users. With --guard, Florin compares it with the live version, and holds it or rolls it back
    automatically if it fails more often or is slower.

    Example: florin adapter promote acme/support v2 --weight 10 --guard rollback --then 50 --then 100
    """
    path = f"{session.adapter_path(adapter)}/live"
    change: Json = {"version": _version(version), "weight": weight, "wait": not no_wait}
    if force:
        change["force"] = True
    if require_eval or require_eval_of:
        change |= {"require_eval": True, "require_eval_of": require_eval_of or ""}
    terms = {
        "max_error_rate": max_error_rate,
        "max_latency_ratio": max_latency_ratio,
        "min_requests": min_requests,
        "window_seconds": None if window is None else seconds(window, "--window"),
        "then": then or None,
    }
    limits: Json = {name: value for name, value in terms.items() if value is not None}
    if guard in (None, GuardAction.NONE):
        if limits:
            raise UsageError("These options need --guard rollback or --guard hold.")
        if guard is not None:
            change["guard"] = None
    else:
        change["guard"] = {"action": str(guard), **limits}
    with busy(f"Loading {adapter}@{change['version']} before the switch …"):
        promoted = session.api.put(path, change, PromotedAdapter)
    session.result(promoted, show_switch)


@command(app, "rollback")
def rollback(session: Session, adapter: Adapter) -> None:
    """End the canary; without one, restore the previous live version, one step further back each time.

    Example: florin adapter rollback acme/support
    """
    path = f"{session.adapter_path(adapter)}/rollback"
    session.result(session.api.post(path, None, schemas.Adapter), show_switch)


@command(app, "retire")
def retire(session: Session, adapter: Adapter, version: Version) -> None:
    """Retire a version that is neither live nor canary: it can no longer be called, and its files are
    deleted.

    Running requests finish. Files are deleted once no engine can hold them. The same files can be added again
    as a new version.

    Example: florin adapter retire acme/support v1
    """
    path = f"{session.adapter_path(adapter)}/versions/{segment(_version(version))}/retire"
    retired = session.api.post(path, None, AdapterVersion)
    session.result(retired, lambda v: say(f"{clean(v.adapter)}@{clean(v.version)} is retired."))


@command(app, "pin")
def pin(session: Session, adapter: Adapter) -> None:
    """Pin an adapter: its live and canary versions are never evicted.

    Example: florin adapter pin acme/support
    """
    _pin(session, adapter, pinned=True)


@command(app, "unpin")
def unpin(session: Session, adapter: Adapter) -> None:
    """Unpin an adapter: it may be evicted again when idle.

    Example: florin adapter unpin acme/support
    """
    _pin(session, adapter, pinned=False)


@command(app, "scale")
def scale(
    session: Session,
    adapter: Adapter,
    *,
    least: Annotated[
        int | None,
        typer.Option(
            "--min", min=0, help="Minimum number of engines that hold it, even if it is not called."
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max", min=1, help="Maximum number of engines that hold one version of it."),
    ] = None,
    no_max: Annotated[bool, typer.Option("--no-max", help="Allow as many engines as it needs.")] = False,
) -> None:
    """Set how many engines hold an adapter, at least and at most. In between, Florin follows the demand.
    Without options, nothing changes.

    Example: florin adapter scale acme/support --min 2 --max 4
    """
    if most is not None and no_max:
        raise UsageError("--max and --no-max exclude each other.")
    bounds: Json = {} if least is None else {"min_replicas": least}
    if most is not None or no_max:
        bounds["max_replicas"] = most
    path = f"{session.adapter_path(adapter)}/replicas"
    session.result(session.api.put(path, bounds, ScaledAdapter), show_scale)


@command(app, "remove")
def remove(
    session: Session,
    adapter: Adapter,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required in scripts.")
    ] = False,
) -> None:
    """Remove an adapter with all its versions. Repeating the command changes nothing.

    If it is registered again later, its version numbers continue.

    Example: florin adapter remove acme/support --yes
    """
    path = session.adapter_path(adapter)
    confirm(f"Remove {adapter} and all of its versions?", yes=yes, unattended=False)
    removed = session.api.delete(path, RemovedAdapter)
    end = "removed" if removed.removed else "was not registered; nothing to do"
    session.result(removed, lambda r: say(f"{clean(r.adapter)} {end}."))


def _version(text: str) -> str:
    return f"v{text}" if text.isdecimal() else text


def _pin(session: Session, adapter: str, *, pinned: bool) -> None:
    path, end = f"{session.adapter_path(adapter)}/pin", "pinned" if pinned else "not pinned"
    answer = session.api.put(path, {"pinned": pinned}, schemas.Adapter)
    session.result(answer, lambda a: say(f"{clean(a.adapter)} is {end}."))
