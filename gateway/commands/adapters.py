"""florin adapter …: listing adapters, and managing their versions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands.canary_page import compared
from gateway.commands.client import Json, UsageError, segment
from gateway.commands.output import busy, clean, facts, findings_table, note, say, show, table, when
from gateway.commands.session import Session, command, confirm
from gateway.commands.tokens import seconds

app = typer.Typer()


class GuardAction(StrEnum):
    ROLLBACK = "rollback"
    HOLD = "hold"
    NONE = "none"


_DIGEST_SHOWN = len("sha256:") + 12
"""Enough to tell versions apart; --json has all digits."""

Adapter = Annotated[
    str,
    typer.Argument(
        metavar="TENANT/NAME", help="For example acme/support; with a tenant's own key also support."
    ),
]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="For example v2.")]


@command(app, "list")
def list_(
    session: Session, tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None
) -> None:
    """List adapters with their live and canary versions, problems and placements.

    Example: florin adapter list --tenant acme
    """

    def people(body: Json) -> None:
        if not body["data"]:
            note("No adapters yet: florin adapter add TENANT/NAME --source DIR")
        rows = [
            (
                a["adapter"],
                a["live"],
                _canary(a),
                a["versions"],
                a.get("pinned"),
                _replicas(a),
                [f"{t['version']} is {t['state']}" for t in a["trouble"]],
                _where(a),
            )
            for a in body["data"]
        ]
        columns = ("adapter", "live", "canary", "versions", "pinned", "replicas", "problems", "placed on")
        show(table(columns, rows))

    session.result(session.api.get("/admin/v1/adapters", {"tenant": tenant}), people)


@command(app, "show")
def show_(session: Session, adapter: Adapter) -> None:
    """Show an adapter with its versions, their states and problems.

    Example: florin adapter show acme/support
    """
    session.result(session.api.get(session.adapter_path(adapter)), _details)


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
        float | None, typer.Option(help="Part of its requests that may fail. Default: 0.01.")
    ] = None,
    max_latency_ratio: Annotated[
        float | None,
        typer.Option(help="How many times the live version's latency its own may be. Default: 1.5."),
    ] = None,
    min_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of it before anything is decided. Default: 50.")
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
            min=2, max=100, help="The weight that follows by itself if nothing is wrong. Repeat it for more."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Change a weight that the guard holds, which ends the hold.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Switch immediately; the first request loads the version.")
    ] = False,
    require_eval: Annotated[
        bool, typer.Option("--require-eval", help="Refuse unless it has passed its last evaluation.")
    ] = False,
    require_eval_of: Annotated[
        str | None,
        typer.Option("--require-eval-of", metavar="SHA256", help="The same, of this held-out set."),
    ] = None,
) -> None:
    """Make a version live: from the next request on, the bare name resolves to it.

    It is loaded first, on as many engines as hold the live version; if none can, nothing changes. With
    --weight it gets that share of calls, always from the same end users (by the field `user`); raising the
    weight adds users. With --guard, Florin compares it with the live version, and holds it or rolls it back
    by itself if it fails more often or is slower.

    Example: florin adapter promote acme/support v2 --weight 10 --guard rollback --then 50 --then 100
    """
    path = f"{session.adapter_path(adapter)}/live"
    wanted: Json = {"version": _version(version), "weight": weight, "wait": not no_wait}
    if force:
        wanted["force"] = True
    if require_eval or require_eval_of:
        wanted |= {"require_eval": True, "require_eval_of": require_eval_of or ""}
    terms = {
        "max_error_rate": max_error_rate,
        "max_latency_ratio": max_latency_ratio,
        "min_requests": min_requests,
        "window_seconds": None if window is None else seconds(window, "--window"),
        "then": then or None,
    }
    said: Json = {name: value for name, value in terms.items() if value is not None}
    if guard in (None, GuardAction.NONE):
        if said:
            raise UsageError("These options need --guard rollback or --guard hold.")
        if guard is not None:
            wanted["guard"] = None
    else:
        wanted["guard"] = {"action": str(guard), **said}
    with busy(f"Loading {adapter}@{wanted['version']} before the switch …"):
        body = session.api.put(path, wanted)
    session.result(body, _switched)


@command(app, "rollback")
def rollback(session: Session, adapter: Adapter) -> None:
    """End the canary; without one, restore the previous live version, one step further back each time.

    Example: florin adapter rollback acme/support
    """
    session.result(session.api.post(f"{session.adapter_path(adapter)}/rollback"), _switched)


@command(app, "retire")
def retire(session: Session, adapter: Adapter, version: Version) -> None:
    """Retire a version that is neither live nor canary: it can no longer be called, and its files are
    deleted.

    Running requests finish. Files are deleted once no engine can hold them. The same files can be added again
    as a new version.

    Example: florin adapter retire acme/support v1
    """
    path = f"{session.adapter_path(adapter)}/versions/{segment(_version(version))}/retire"
    session.result(
        session.api.post(path), lambda b: say(f"{clean(b['adapter'])}@{clean(b['version'])} is retired.")
    )


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
        typer.Option("--min", min=0, help="Minimum number of engines that hold it, even uncalled."),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Most engines that hold one version of it.")
    ] = None,
    no_max: Annotated[bool, typer.Option("--no-max", help="Allow as many engines as it needs.")] = False,
) -> None:
    """Bound the number of engines that hold an adapter; between the bounds, Florin follows the demand.
    Without options, nothing changes.

    Example: florin adapter scale acme/support --min 2 --max 4
    """
    if most is not None and no_max:
        raise UsageError("--max and --no-max exclude each other.")
    bounds: Json = {} if least is None else {"min_replicas": least}
    if most is not None or no_max:
        bounds["max_replicas"] = most
    session.result(session.api.put(f"{session.adapter_path(adapter)}/replicas", bounds), _scaled)


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

    If it is added again later, its version numbers continue.

    Example: florin adapter remove acme/support --yes
    """
    path = session.adapter_path(adapter)
    confirm(f"Remove {adapter} and all of its versions?", yes=yes, unattended=False)
    session.result(
        session.api.delete(path),
        lambda b: say(
            f"{clean(b['adapter'])} {'removed' if b['removed'] else 'was not registered; nothing to do'}."
        ),
    )


def absolute(source: str) -> str:
    """The absolute path, or a URI unchanged. Raises UsageError if empty."""
    if not source:
        raise UsageError("--source is empty: name the directory with the adapter's files.")
    if "://" in source:
        return source
    try:
        return str(Path(source).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"--source: {source!r} is not a usable path ({error}).") from error


def outcome(evaluation: Json | None) -> str:
    """In a few words: `passed: exact 0.950`; empty without one."""
    if evaluation is None:
        return ""
    if evaluation["status"] == "failed":
        return "failed"
    words = {True: "passed", False: "not passed", None: "no criterion"}[evaluation["passed"]]
    score = evaluation.get("score")
    return words if score is None else f"{words}: {evaluation['metric']} {score:.3f}"


def _version(text: str) -> str:
    return f"v{text}" if text.isdecimal() else text


def _pin(session: Session, adapter: str, *, pinned: bool) -> None:
    body = session.api.put(f"{session.adapter_path(adapter)}/pin", {"pinned": pinned})
    session.result(
        body, lambda b: say(f"{clean(b['adapter'])} is {'pinned' if b['pinned'] else 'not pinned'}.")
    )


def _scaled(body: Json) -> None:
    say(f"{clean(body['adapter'])} has {_replicas(body)} replicas.")
    for warning in body["warnings"]:
        note(f"Warning: {clean(warning)}.")


def _replicas(body: Json) -> str:
    """`2 to 4`, or `at least 0`; empty if only operators see it."""
    least, most = body.get("min_replicas"), body.get("max_replicas")
    if least is None:
        return ""
    return f"at least {least}" if most is None else f"{least} to {most}"


def _switched(body: Json) -> None:
    adapter, live, canary = clean(body["adapter"]), clean(body["live"]), body["canary"]
    if canary:
        others = 100 - canary["weight"]
        say(f"{adapter} now serves {clean(canary['version'])} for {canary['weight']} % of calls, "
            f"and {live} for the other {others} %.")  # fmt: skip
    else:
        say(f"{adapter} now serves {live}.")
    if body.get("resident"):
        note(f"Resident on {clean(body['resident'])}.")
    for warning in body.get("warnings", ()):
        note(f"Warning: {clean(warning)}.")


def _canary(body: Json) -> str | None:
    canary = body["canary"]
    if not canary:
        return None
    return f"{canary['version']}, {canary['weight']} %{', held' if canary.get('held') else ''}"


def _where(body: Json) -> list[str] | str:
    """The engines, or whether there is one."""
    return _placed(body["placed"]) if "placed" in body else "loaded" if body["loaded"] else ""


def _placed(placed: list[dict[str, Any]]) -> list[str]:
    """Each engine once, since several versions may share it."""
    places = (p["engine"] if p["state"] == "resident" else f"{p['engine']} ({p['state']})" for p in placed)
    return list(dict.fromkeys(places))


def _details(body: Json) -> None:
    show(
        facts(
            [
                ("adapter", body["adapter"]),
                ("live", body["live"]),
                ("canary", _canary(body)),
                ("rollback", _back(body)),
                ("previously live", body["history"]),
                ("pinned", body.get("pinned")),
                ("replicas", _replicas(body)),
                ("cost centre", body["cost_centre"]),
                ("promotion", "requires a passing evaluation" if body.get("require_eval") else None),
            ]
        )
    )
    compared(body)
    versions = body["version_details"]
    rows = [
        (
            v["version"],
            _state(body, v),
            v["rank"],
            v["size_bytes"],
            v["base_model"],
            v["digest"][:_DIGEST_SHOWN],
            when(v["created"]),
            v["source"],
            _where(v),
            outcome(v.get("evaluation")),
        )
        for v in versions
    ]
    columns = (
        *("version", "state", "rank", "bytes", "base model", "digest", "created", "source", "placed on"),
        "evaluation",
    )
    show(table(columns, rows, right=("rank", "bytes")))
    for version in versions:
        _troubles(version)


def _back(body: Json) -> str | None:
    if body["canary"]:
        return "ends the canary"
    return f"restores {body['previous']}" if body["previous"] else None


def _state(body: Json, version: Json) -> str:
    """`live`, `canary 10 %`, `ready`, `retired`; with `quarantined` or `failed` if it is not served."""
    canary, name = body["canary"], version["version"]
    role = ""
    if name == body["live"]:
        role = "live"
    elif canary and name == canary["version"]:
        role = f"canary {canary['weight']} %"
    state = version["state"]
    if state in {"quarantined", "failed"}:
        return f"{role}, {state}" if role else state
    return role or state


def _troubles(version: Json) -> None:
    name = clean(version["version"])
    if version["reason"]:
        say(f"{name} is {clean(version['state'])}: {clean(version['reason'])}")
        _evidence(version["evidence"] or {})
    if version["warnings"]:
        say(f"{name} was registered with warnings:")
        show(findings_table(version["warnings"]))


def _evidence(evidence: Json) -> None:
    """The compared values: one line each, and lists of objects as tables."""
    tables = {k: v for k, v in evidence.items() if isinstance(v, list) and v and isinstance(v[0], dict)}
    single = [
        (f"  {clean(what).replace('_', ' ')}", _plain(found))
        for what, found in evidence.items()
        if what not in tables and found is not None
    ]
    if single:
        show(facts(single))
    for rows in tables.values():
        columns = tuple(dict.fromkeys(column for row in rows for column in row))
        show(table(columns, [[row.get(column) for column in columns] for row in rows]))


def _plain(value: Any) -> Any:
    return [f"{k}: {clean(_plain(v))}" for k, v in value.items()] if isinstance(value, dict) else value
