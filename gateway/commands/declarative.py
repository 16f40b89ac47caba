"""florin apply, florin export"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from gateway.commands import fleet_file
from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, console, note, show
from gateway.commands.session import REFUSED, Session, command, confirm, unconfirmed

app = typer.Typer()

PENDING = 4
"""Exit code of `--dry-run` when something would change."""

_PATH = "/admin/v1/apply"
_SIGNS = {"create": ("+", "green"), "change": ("~", "yellow"), "remove": ("-", "red"), "refuse": ("!", "red")}
_DIGEST = len("sha256:") + 12
_LONGEST = 120
_FEW = 6
"""Fields of a new base model's config that are listed individually."""
_DONE = {"create": "created", "change": "changed", "remove": "removed"}


@command(app, "apply")
def apply(
    session: Session,
    *,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="A fleet file; - reads stdin.")],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show what would change. Exit code 4 if anything would, else 0."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove what the file's sections do not list. Asks for confirmation."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Skip the confirmation prompt, also for prices that are at least five times, or at most a "
            "fifth of, the ones before them. Required for those in scripts.",
        ),
    ] = False,
) -> None:
    """Change the installation to match a fleet file. Applying it again changes nothing.

    A failure stops only what depends on it; apply the file again to complete the rest.

    Example: florin apply -f fleet.yaml --dry-run
    """
    body = fleet_file.read(file)
    params: Json = {"prune": prune} | ({"confirm": True} if yes else {})
    if dry_run or prune:
        plan = session.api.work(_PATH, body=body, params=params | {"dry_run": True}, told=_ignore)
        if dry_run:
            session.result(plan, _show)
            pending = PENDING if plan["actions"] else 0
            raise typer.Exit(REFUSED if plan["failed"] else pending)
        if _prices_confirmed(session, plan):
            params["confirm"] = True
            plan = session.api.work(_PATH, body=body, params=params | {"dry_run": True}, told=_ignore)
        removals = plan["counts"]["remove"]
        if removals:
            if not yes and not session.json:
                _show(plan)
            confirm(f"Remove {_objects(removals)}?", yes=yes, unattended=False)
        params["plan"] = plan["plan"]  # exactly what was confirmed
    with _bars() as told:
        done = session.api.work(_PATH, body=body, params=params, told=told)
    session.result(done, _show)
    if not prune and _prices_confirmed(session, done):
        done = session.api.work(_PATH, body=body, params=params | {"confirm": True}, told=_ignore)
        _show(done)
    if done["failed"]:
        raise typer.Exit(REFUSED)


@command(app, "export")
def export(
    session: Session,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
    ] = None,
) -> None:
    """Write the registry as a fleet file. Applied to an empty installation, it restores this one.

    Example: florin export --output fleet.yaml
    """
    document = session.api.get("/admin/v1/export")
    if session.json:
        session.result(document, _ignore)
        return
    text = fleet_file.write(document)
    if output is None:
        sys.stdout.write(text)
        return
    _replace(output, text)
    counts = ", ".join(f"{len(document[s])} {s}" for s in ("tenants", "engines", "adapters"))
    note(f"{output}: {counts}.")


def _prices_confirmed(session: Session, result: Json) -> bool:
    """Whether there were prices that may be slips, and somebody said that they are right. Raises
    typer.Abort."""
    errors = [error for action in result["actions"] if (error := action.get("error"))]
    doubtful = [error["message"] for error in errors if unconfirmed(error["code"])]
    if session.json or not doubtful:
        return False
    for message in doubtful:
        note(clean(message))
    typer.confirm("Is that right?", abort=True, err=True)
    return True


def _replace(path: Path, text: str) -> None:
    """Atomically. Raises UsageError."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"--output: cannot write {path} ({error.strerror or error}).") from error


def _show(result: Json) -> None:
    """The diff, the failures and a summary."""
    actions = result["actions"]
    for action in actions:
        show(_diff(action))
    show(Text(_sum(result), "bold"))
    failed = [a for a in actions if a["outcome"] in {"failed", "skipped"}]
    if failed and not result["dry_run"]:
        note(f"{_objects(len(failed))} failed: fix the errors above and apply again.")


def _diff(action: Json) -> Text:
    sign, colour = _SIGNS[action["action"]]
    text = Text(f"{sign} {clean(action['kind'])} {clean(action['id'])}", colour)
    for field in _collapsed(action.get("fields") or [], new=action["action"] == "create"):
        name, old, new = clean(field["field"]), field["old"], field["new"]
        if old is None:
            text.append(f"\n  + {name}: {_value(new)}", "green")
        elif new is None:
            text.append(f"\n  - {name}: {_value(old)}", "red")
        else:
            text.append(f"\n  ~ {name}: {_value(old)} → {_value(new)}", "yellow")
    error = action.get("error")
    if error:
        text.append(f"\n    {'skipped' if action['outcome'] == 'skipped' else 'refused'}: ", "bold red")
        text.append(clean(error["message"]))
        findings = error.get("findings") or ()
        for finding in findings if len(findings) > 1 else ():
            text.append(f"\n      {clean(finding['code'])}: {clean(finding['message'])}")
    return text


def _collapsed(fields: Sequence[Json], *, new: bool) -> Iterator[Json]:
    """Omits empty fields of a new object, and shows a base model's config in one line."""
    if not new:
        yield from fields
        return
    config = [f for f in fields if f["field"].startswith("config.")]
    if len(config) > _FEW:
        yield {"field": "config", "old": None, "new": f"{len(config)} fields"}
    else:
        config = []
    yield from (f for f in fields if f not in config and f["new"] != "")


def _value(value: Any) -> str:
    if isinstance(value, str) and value.startswith("sha256:"):
        value = f"{value[:_DIGEST]}…"
    text = "{…}" if isinstance(value, dict) else clean(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _sum(result: Json) -> str:
    counts: dict[str, int] = dict.fromkeys(_DONE, 0)
    for action in result["actions"]:
        if action["outcome"] in {"planned", "done"}:
            counts[action["action"]] += 1
    if not result["actions"]:
        return f"Nothing to do: {_objects(_unchanged(result))} up to date."
    words = {verb: f"to {verb}" for verb in _DONE} if result["dry_run"] else _DONE
    parts = [f"{counts[verb]} {words[verb]}" for verb in _DONE]
    parts += [f"{result['failed']} failed"] if result["failed"] else []
    return f"{', '.join(parts)}, {_unchanged(result)} unchanged."


def _unchanged(result: Json) -> int:
    unchanged: int = result["counts"]["unchanged"]
    return unchanged


def _objects(count: int) -> str:
    return f"{count} object{'' if count == 1 else 's'}"


@contextmanager
def _bars() -> Iterator[Callable[[Json], None]]:
    """Progress on stderr if it is a terminal: one bar overall, one for each version in progress."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        whole = progress.add_task("applying", total=None)
        versions: dict[str, TaskID] = {}

        def told(line: Json) -> None:
            step, done, total = str(line.get("step", "")), line.get("done") or 0, line.get("total")
            version, colon, what = step.partition(": ")
            if not colon:
                progress.update(whole, description=clean(step), completed=done, total=total)
                return
            if version not in versions:
                versions[version] = progress.add_task(clean(version), total=None)
            progress.update(
                versions[version], description=clean(f"{version} {what}"), completed=done, total=total
            )

        yield told


def _ignore(line: Json) -> None:
    del line
