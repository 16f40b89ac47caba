"""florin adapter add: from a source that the gateway fetches, or from this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from gateway.commands.adapters import Adapter, absolute
from gateway.commands.client import Json, UsageError, full_name
from gateway.commands.output import clean, console, findings_table, note, say
from gateway.commands.packing import Parcel, parcel
from gateway.commands.session import Session, command

app = typer.Typer()

_STEPS = {
    "wait": "waiting for its turn",
    "fetch": "fetching",
    "unpack": "unpacking",
    "check": "checking",
    "store": "storing",
}


@command(app, "add")
def add(
    session: Session,
    adapter: Adapter,
    *,
    source: Annotated[
        str | None,
        typer.Option(help="Where the gateway gets it: a directory, or a file, http(s), s3 or hf URL."),
    ] = None,
    upload: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="A directory or archive of this machine, to be sent to the gateway."
        ),
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The fleet it is for, where several fleets could be meant.")
    ] = None,
    assume_base: Annotated[
        bool,
        typer.Option(
            "--assume-base", help="Accept it though it names another base model; shapes are still checked."
        ),
    ] = False,
    digest: Annotated[
        str | None, typer.Option(metavar="sha256:…", help="Refuse anything but the version of this digest.")
    ] = None,
) -> None:
    """Register an adapter, or a new version of one. The same files again change nothing.

    The first version is live at once; a later one when it is promoted. What cannot work is refused here, with
    each check that failed.

    Example: florin adapter add acme/support --source hf://acme/support-lora@v1.2
    """
    full_name(adapter)
    if (source is None) == (upload is None):
        raise UsageError("Say either --source or --upload.")
    body: Json = {"adapter": adapter, "assume_base": assume_base, "base_model": base_model, "digest": digest}
    if upload is None:
        assert source is not None
        with _bar(f"asking for {source}") as bar:
            answer = session.api.work(
                "/admin/v1/adapters", body=body | {"source": absolute(source)}, told=bar.told
            )
    else:
        answer = _upload(session, body, parcel(Path(upload).expanduser()))
    session.result(answer, _added)
    if answer.get("warnings") and not session.json:
        console(stderr=True).print(findings_table(answer["warnings"]))


def _upload(session: Session, body: Json, sent: Parcel) -> Json:
    with _bar(f"sending {sent.name}", sent.size) as bar:
        return session.api.work(
            "/admin/v1/adapters/upload",
            params=body | {"file_name": sent.name},
            content=bar.counted(sent.pieces()),
            size=sent.size,
            told=bar.told,
        )


class _Bar:
    """One line of progress: what is sent, then what the gateway says of itself."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._step = ""  # mutable

    def counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            self._progress.advance(self._task, len(piece))

    def told(self, line: Json) -> None:
        step, done, total = str(line.get("step", "")), line.get("done"), line.get("total")
        if step != self._step:
            self._step = step
            self._progress.reset(self._task, description=clean(_STEPS.get(step, step)), total=None)
        self._progress.update(self._task, completed=done or 0, total=total)


@contextmanager
def _bar(what: str, total: int | None = None) -> Iterator[_Bar]:
    """On stderr, and only where somebody watches."""
    err = console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        yield _Bar(progress, progress.add_task(clean(what), total=total))


def _added(body: Json) -> None:
    adapter, version, live = clean(body["adapter"]), clean(body["version"]), body.get("live")
    if not body.get("created", True):
        say(f"{adapter}@{version} has these files already: nothing to do. Live: {clean(live)}.")
    elif live == body["version"]:
        say(f"{adapter}@{version} is registered and live.")
    else:
        say(
            f"{adapter}@{version} is registered. Live is still {clean(live)}: "
            f"florin adapter promote {adapter} {version}"
        )
    if body.get("warnings"):
        note("It was let pass with warnings:")
