"""florin apply, florin export"""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from adapters.wording import counted
from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, console, note, print_json, show
from gateway.commands.session import REFUSED, Session, command, confirm, unconfirmed
from gateway.declarative.commands import fleet_file
from gateway.declarative.schemas import Action, Applied, FieldChange, Verb
from gateway.schemas.base import Answer
from gateway.schemas.progress import ProgressLine

app = typer.Typer()

PENDING = 4
"""Exit code of `--dry-run` when something would change."""

_PATH = "/admin/v1/apply"
_SIGNS = {"create": ("+", "green"), "change": ("~", "yellow"), "remove": ("-", "red"), "refuse": ("!", "red")}
_DIGEST = len("sha256:") + 12
_LONGEST = 120
_FEW = 6
"""Fields of a new base model's config that are listed individually."""
_DONE: dict[Verb, str] = {"create": "created", "change": "changed", "remove": "removed"}


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
        plan = session.api.work(_PATH, Applied, body=body, params=params | {"dry_run": True})
        if dry_run:
            session.result(plan, _show)
            pending = PENDING if plan.actions else 0
            raise typer.Exit(REFUSED if plan.failed else pending)
        if _prices_confirmed(session, plan):
            params["confirm"] = True
            plan = session.api.work(_PATH, Applied, body=body, params=params | {"dry_run": True})
        if removals := plan.counts.remove:
            if not yes and not session.json:
                _show(plan)
            confirm(f"Remove {counted(removals, 'object')}?", yes=yes, unattended=False)
        params["plan"] = plan.plan  # exactly what was confirmed
    with _bars() as show_progress:
        applied = session.api.work(_PATH, Applied, body=body, params=params, show=show_progress)
    session.result(applied, _show)
    if not prune and _prices_confirmed(session, applied):
        applied = session.api.work(_PATH, Applied, body=body, params=params | {"confirm": True})
        _show(applied)
    if applied.failed:
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
    document = session.api.get("/admin/v1/export", Answer).body
    if session.json:
        print_json(document)
        return
    text = fleet_file.write(document)
    if output is None:
        sys.stdout.write(text)
        return
    _replace(output, text)
    counts = ", ".join(f"{len(document[s])} {s}" for s in ("tenants", "engines", "adapters"))
    note(f"{output}: {counts}.")


def _prices_confirmed(session: Session, result: Applied) -> bool:
    """Whether there were prices that may be slips, and somebody said that they are right. Raises
    typer.Abort."""
    errors = [action.error for action in result.actions if action.error]
    doubtful = [error.message for error in errors if unconfirmed(error.code)]
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


def _show(result: Applied) -> None:
    """The diff, the failures and a summary."""
    for action in result.actions:
        show(_diff(action))
    show(Text(_sum(result), "bold"))
    if result.failed and not result.dry_run:
        note(f"{counted(result.failed, 'object')} failed: fix the errors above and apply again.")


def _diff(action: Action) -> Text:
    sign, colour = _SIGNS[action.action]
    text = Text(f"{sign} {clean(action.kind)} {clean(action.id)}", colour)
    for change in _collapsed(action.fields, new=action.action == "create"):
        name, old, new = clean(change.field), change.old, change.new
        if old is None:
            text.append(f"\n  + {name}: {_value(new)}", "green")
        elif new is None:
            text.append(f"\n  - {name}: {_value(old)}", "red")
        else:
            text.append(f"\n  ~ {name}: {_value(old)} → {_value(new)}", "yellow")
    if error := action.error:
        text.append(f"\n    {'skipped' if action.outcome == 'skipped' else 'refused'}: ", "bold red")
        text.append(clean(error.message))
        for finding in error.findings if len(error.findings) > 1 else ():
            text.append(f"\n      {clean(finding.code)}: {clean(finding.message)}")
    return text


def _collapsed(fields: Sequence[FieldChange], *, new: bool) -> Iterator[FieldChange]:
    """Omits empty fields of a new object, and shows a base model's config in one line."""
    if not new:
        yield from fields
        return
    config = [f for f in fields if f.field.startswith("config.")]
    if len(config) > _FEW:
        yield FieldChange(field="config", old=None, new=f"{len(config)} fields")
    else:
        config = []
    yield from (f for f in fields if f not in config and f.new != "")


def _value(value: Any) -> str:
    if isinstance(value, str) and value.startswith("sha256:"):
        value = f"{value[:_DIGEST]}…"
    text = "{…}" if isinstance(value, dict) else clean(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _sum(result: Applied) -> str:
    unchanged = result.counts.unchanged
    if not result.actions:
        return f"Nothing to do: {counted(unchanged, 'object')} up to date."
    counts = Counter(action.action for action in result.actions if action.outcome in {"planned", "done"})
    words = {verb: f"to {verb}" for verb in _DONE} if result.dry_run else _DONE
    parts = [f"{counts[verb]} {words[verb]}" for verb in _DONE]
    parts += [f"{result.failed} failed"] if result.failed else []
    return f"{', '.join(parts)}, {unchanged} unchanged."


@contextmanager
def _bars() -> Iterator[Callable[[ProgressLine], None]]:
    """Progress on stderr if it is a terminal: one bar overall, one for each version in progress."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        overall = progress.add_task("applying", total=None)
        versions: dict[str, TaskID] = {}

        def show_progress(line: ProgressLine) -> None:
            version, colon, what = line.step.partition(": ")
            if colon and version not in versions:
                versions[version] = progress.add_task(clean(version), total=None)
            progress.update(
                versions[version] if colon else overall,
                description=clean(f"{version} {what}".rstrip()),
                completed=line.done,
                total=line.total,
            )

        yield show_progress
