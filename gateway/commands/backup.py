"""florin backup, florin restore: run beside the gateway, with its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, console, fail, note, say, when
from gateway.commands.session import REFUSED, Session, command

if TYPE_CHECKING:
    from adapters.progress import Progress
    from gateway.config import Settings
    from gateway.operations.backup.archive import Manifest

app = typer.Typer()


@command(app, "backup", local=True)
def backup(
    session: Session,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write; it must not exist.")],
    artifacts: Annotated[
        bool,
        typer.Option(
            help="Include the adapters' files. They never change, so you may copy them by other means."
        ),
    ] = True,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Afterwards, delete all but the newest N backups of this installation in the directory of "
            "FILE. The new one is read back first; other files stay.",
        ),
    ] = None,
) -> None:
    """Write registry, ledger and adapter files to one file. The gateways may keep serving.

    Run it on a gateway's host, as Florin's user, with the gateway's settings (FLORIN_* or florin.yaml). The
    file holds secrets and is readable only by you. It does not contain settings, certificates, or the last
    second or so of usage, which is still in the gateways' logs.

    Example: florin backup --out /backups/florin-$(date +%F).zip --keep 14
    """
    from gateway.operations.backup.pruning import prune
    from gateway.operations.backup.taking import take

    deleted: list[Path] = []
    with _explained(), _bars() as progress:
        manifest = take(_settings(), out.absolute(), artifacts=artifacts, progress=progress)
        if keep is not None:
            deleted = prune(out.absolute(), manifest, keep, progress=progress)
    body = {**_file(out), **_summary(manifest), "deleted": [str(path) for path in deleted]}
    session.result(body, _taken)


@command(app, "restore", local=True)
def restore(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that florin backup wrote.")],
    *,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only rehearse: restore it into a temporary installation, which is deleted. Touches nothing "
            "else and needs no settings; gateways may serve.",
        ),
    ] = False,
) -> None:
    """Restore a backup into an empty installation. Stop the gateways first, and start them afterwards.

    Run it with the settings of the new installation. Everything is checked before anything is written. If it
    was interrupted, run it again. Exit code 1 if a closed month does not verify afterwards.

    With --check, it says what a backup contains and whether it can be restored: checksums, the registry, each
    version's files, every row of the ledger, and the closed months. TMPDIR needs room for the ledger.

    Example: FLORIN_STATE_DIR=/var/lib/florin florin restore /backups/florin-2026-11-30.zip
    """
    from dataclasses import asdict

    from gateway.operations.backup.restoring import rehearse
    from gateway.operations.backup.restoring import restore as restore_

    with _explained(), _bars() as progress:
        done = (
            rehearse(path.absolute(), progress=progress)
            if check
            else restore_(_settings(), path.absolute(), progress=progress)
        )
    body = {
        **_file(path),
        "restored": not check,
        **_summary(done.manifest),
        "absent": list(done.absent),
        "ok": done.ok,
        "months": [
            {"month": p.month, "ok": p.ok, "checks": [asdict(check) for check in p.checks]}
            for p in done.periods
        ],
    }
    session.result(body, _rehearsed if check else _restored)
    if not done.ok:
        raise typer.Exit(REFUSED)


def _settings() -> Settings:
    from gateway.config import load_settings

    return load_settings()


@contextmanager
def _explained() -> Iterator[None]:
    from adapters.errors import AdaptersError
    from adapters.store.embedded import EmbeddedError
    from gateway.config import SettingsError
    from gateway.metering.ledger.database import LedgerUnavailableError
    from gateway.operations.backup.archive import BackupError

    try:
        yield
    except SettingsError as error:
        raise UsageError(str(error)) from error
    except (BackupError, EmbeddedError, AdaptersError, LedgerUnavailableError, OSError) as error:
        fail(str(error))
        raise typer.Exit(REFUSED) from error


@contextmanager
def _bars() -> Iterator[Progress]:
    """One bar for each step, on a terminal."""
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    screen = console(stderr=True)
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bars:

        def tell(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step)
            bars.update(tasks[step], completed=done, total=total)

        yield tell


def _file(path: Path) -> dict[str, Any]:
    return {"file": str(path.absolute()), "bytes": path.stat().st_size}


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "florin": manifest.florin,
        "at": manifest.at,
        "installation": manifest.installation,
        "documents": manifest.documents,
        "artifacts": len(manifest.artifacts),
        "artifact_bytes": sum(manifest.artifacts.values()),
        "missing": manifest.missing,
        "ledger_revision": manifest.ledger_revision,
        "ledger_rows": {name: table.rows for name, table in manifest.tables.items() if table.rows},
    }


def _in_words(body: Json) -> str:
    counts = body["documents"]
    names = (("tenant", "tenants"), ("key", "keys"), ("version", "versions"), ("engine", "engines"))
    registry = ", ".join(f"{counts.get(kind, 0):,} {plural}" for kind, plural in names)
    rows = sum(body["ledger_rows"].values())
    return f"{registry}; the files of {body['artifacts']:,} versions; {rows:,} rows of the ledger"


def _taken(body: Json) -> None:
    say(f"{clean(body['file'])} ({body['bytes'] / 1e6:,.1f} MB): {_in_words(body)}.")
    for version, why in body["missing"].items():
        note(f"Not in the backup: {clean(version)}: {clean(why)}")
    if body["deleted"]:
        say(f"Deleted {len(body['deleted'])} older: {clean([Path(name).name for name in body['deleted']])}.")


def _restored(body: Json) -> None:
    say(f"Restored {_in_words(body)}.")
    if body["absent"]:
        note(f"Without files here: {clean(body['absent'])}. Copy them to FLORIN_ARTIFACT_DIR.")
    _months(body["months"])
    say("Start the gateways now.")


def _rehearsed(body: Json) -> None:
    verdict = "can be restored" if body["ok"] else "can be restored, but its months do not add up"
    say(
        f"{clean(body['file'])} ({body['bytes'] / 1e6:,.1f} MB), of {when(body['at'])}, by Florin "
        f"{clean(body['florin'])}, {verdict}: {_in_words(body)}."
    )
    if body["absent"]:
        note(f"{len(body['absent'])} versions have no files in it, like {clean(body['absent'][0])}.")
    _months(body["months"])


def _months(months: list[Json]) -> None:
    failed = [month["month"] for month in months if not month["ok"]]
    if failed:
        say(f"These closed months do not verify: {', '.join(failed)}. See florin cost verify.")
    elif months:
        say(f"All {len(months)} closed months verify.")
