"""florin adapter add: from a source that the gateway fetches, or by upload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, console, findings_table, note, say
from gateway.commands.session import Session, command
from gateway.fleet.adapters.commands.adapters import Adapter
from gateway.fleet.adapters.commands.packing import Parcel, parcel
from gateway.fleet.adapters.schemas.adapters import NewAdapter, RegisteredVersion
from gateway.schemas.progress import ProgressLine

app = typer.Typer()

_STEPS = {
    "wait": "queued",
    "fetch": "fetching",
    "unpack": "unpacking",
    "check": "checking",
    "store": "storing",
}


@command(app, "add")
@with_options(NewAdapter, all_optional=True)
def add(
    session: Session,
    adapter: Adapter,
    *,
    upload: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Local directory or archive to upload."),
    ] = None,
    changes: Json,
) -> None:
    """Register an adapter, or a new version of one. Registering the same files again changes nothing.

    The first version is live at once; later versions when they are promoted. Adapters that cannot work are
    refused with every failed check.

    Example: florin adapter add acme/support --source hf://acme/support-lora@v1.2
    """
    if ("source" in changes) == (upload is not None):
        raise UsageError("Use either --source or --upload.")
    changes["adapter"] = session.adapter(adapter)
    if upload is None:
        with _bar(f"requesting {changes['source']}") as bar:
            version = session.api.work("/admin/v1/adapters", RegisteredVersion, body=changes, show=bar.show)
    else:
        version = _upload(session, changes, parcel(Path(upload).expanduser()))
    session.result(version, _added)
    if version.warnings and not session.json:
        warnings = [warning.model_dump() for warning in version.warnings]
        console(stderr=True).print(findings_table(warnings))


def _upload(session: Session, body: Json, sent: Parcel) -> RegisteredVersion:
    """With the warnings about the files that are here."""
    with _bar(f"sending {sent.name}", sent.size) as bar:
        version = session.api.work(
            "/admin/v1/adapters/upload",
            RegisteredVersion,
            params=body | {"file_name": sent.name},
            content=bar.counted(sent.pieces()),
            size=sent.size,
            show=bar.show,
        )
    warnings = [*(warning.model_dump() for warning in version.warnings), *sent.warnings]
    return RegisteredVersion.read(version.body | {"warnings": warnings})


class _Bar:
    """A line of progress: the upload, then the gateway's steps."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._step = ""  # mutable

    def counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            self._progress.advance(self._task, len(piece))

    def show(self, line: ProgressLine) -> None:
        if line.step != self._step:
            self._step = line.step
            self._progress.reset(self._task, description=clean(_STEPS.get(line.step, line.step)), total=None)
        self._progress.update(self._task, completed=line.done, total=line.total)


@contextmanager
def _bar(what: str, total: int | None = None) -> Iterator[_Bar]:
    """On stderr, if it is a terminal."""
    err = console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        yield _Bar(progress, progress.add_task(clean(what), total=total))


def _added(body: RegisteredVersion) -> None:
    adapter, version, live = clean(body.adapter), clean(body.version), body.live
    if not body.created:
        say(f"{adapter}@{version} already has these files; nothing to do. Live: {clean(live)}.")
    elif live == body.version:
        say(f"{adapter}@{version} is registered and live.")
    else:
        say(
            f"{adapter}@{version} is registered. Live is still {clean(live)}; to switch: "
            f"florin adapter promote {adapter} {version}"
        )
    if body.warnings:
        note("Accepted with warnings:")
