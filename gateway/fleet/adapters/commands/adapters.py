"""florin adapter …: listing adapters, and managing their versions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import busy, clean, note, say
from gateway.commands.session import Session, YesInScripts, command, confirm
from gateway.fleet.adapters.commands.page import show_list, show_page, show_problems, show_scale, show_switch
from gateway.fleet.adapters.schemas import adapters as schemas
from gateway.fleet.adapters.schemas.adapters import (
    AdapterDetails,
    AdapterVersion,
    NewLive,
    NewReplicas,
    PromotedAdapter,
    ReleasedVersion,
    RemovedAdapter,
    ScaledAdapter,
)
from gateway.schemas.base import Listed
from gateway.schemas.typed_text import NONE

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
@with_options(NewLive)
def promote(
    session: Session,
    adapter: Adapter,
    version: Version,
    *,
    guard: Annotated[
        GuardAction | None,
        typer.Option(help="What to do if the canary is worse than the live version; none: nothing."),
    ] = None,
    changes: Json,
) -> None:
    """Make a version live: from the next request on, the bare name resolves to it.

    It is loaded first, on as many engines as hold the live version; if none can, nothing changes. With
    --weight it gets that share of calls, always from the same end users (by the field `user`); raising the
    weight adds users. With --guard, Florin compares it with the live version, and holds it or rolls it back
    automatically if it fails more often or is slower.

    Example: florin adapter promote acme/support v2 --weight 10 --guard rollback --then 50 --then 100
    """
    terms = changes.pop("guard", {})
    if guard in (None, GuardAction.NONE):
        if terms:
            raise UsageError("These options need --guard rollback or --guard hold.")
        terms = None
    else:
        terms["action"] = str(guard)
    if guard is not None:
        changes["guard"] = terms
    changes["version"] = _version(version)
    with busy(f"Loading {adapter}@{changes['version']} before the switch …"):
        promoted = session.api.put(f"{session.adapter_path(adapter)}/live", changes, PromotedAdapter)
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
@with_options(NewReplicas, changes_only=True)
def scale(
    session: Session,
    adapter: Adapter,
    *,
    no_max: Annotated[bool, typer.Option("--no-max", help="Allow as many engines as it needs.")] = False,
    changes: Json,
) -> None:
    """Set how many engines hold an adapter, at least and at most. In between, Florin follows the demand.
    Without options, nothing changes.

    Example: florin adapter scale acme/support --min 2 --max 4
    """
    if no_max and changes.setdefault("max_replicas") is not None:
        raise UsageError("--max and --no-max exclude each other.")
    path = f"{session.adapter_path(adapter)}/replicas"
    session.result(session.api.put(path, changes, ScaledAdapter), show_scale)


@command(app, "remove")
def remove(
    session: Session,
    adapter: Adapter,
    *,
    yes: YesInScripts = False,
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


@command(app, "update")
def update(
    session: Session,
    adapter: Adapter,
    *,
    cost_centre: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Cost centre of its usage in `florin cost report --by cost_centre`; `none` to remove it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Change an adapter's cost centre. It applies from the next request on, to requests of the adapter's own
    tenant with a key that has no cost centre.

    Example: florin adapter update acme/support --cost-centre customer-care
    """
    if cost_centre is None:
        raise UsageError("Nothing to change: give --cost-centre LABEL, or --cost-centre none.")
    path = f"{session.adapter_path(adapter)}/cost-centre"
    label = None if cost_centre == NONE else cost_centre
    session.result(session.api.put(path, {"cost_centre": label}, schemas.Adapter), _labelled)


def _labelled(body: schemas.Adapter) -> None:
    label = body.cost_centre
    say(f"{clean(body.adapter)} has {f'the cost centre {clean(label)}' if label else 'no cost centre'}.")


@command(app, "release")
def release(
    session: Session,
    adapter: Adapter,
    version: Version,
    *,
    yes: YesInScripts = False,
) -> None:
    """Serve a version that is quarantined or failed. `adapter show` lists the evidence against it.

    A quarantined version may then answer like the base model; its answers after the next load become its new
    reference. If the version is being served already, nothing changes.

    Example: florin adapter release acme/support v2 --yes
    """
    name = _version(version)
    path = f"{session.adapter_path(adapter)}/versions/{segment(name)}/release"
    confirm(f"Serve {adapter}@{name} although it failed verification?", yes=yes, unattended=False)
    session.result(session.api.post(path, None, ReleasedVersion), _released)


def _released(body: ReleasedVersion) -> None:
    full = f"{clean(body.adapter)}@{clean(body.version)}"
    if body.released:
        say(f"{full} is released; the next request loads it.")
    else:
        note(f"{full} was neither quarantined nor failed; nothing to do.")


def _version(text: str) -> str:
    return f"v{text}" if text.isdecimal() else text


def _pin(session: Session, adapter: str, *, pinned: bool) -> None:
    path, end = f"{session.adapter_path(adapter)}/pin", "pinned" if pinned else "not pinned"
    answer = session.api.put(path, {"pinned": pinned}, schemas.Adapter)
    session.result(answer, lambda a: say(f"{clean(a.adapter)} is {end}."))
