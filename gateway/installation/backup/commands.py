"""florin backup, florin restore: run beside the gateway, with its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from adapters.wording import counted
from gateway.commands.client import UsageError
from gateway.commands.output import clean, console, fail, note, say, when
from gateway.commands.session import REFUSED, Session, command
from gateway.schemas.base import Answer

if TYPE_CHECKING:
    from adapters.progress import Progress
    from gateway.config import Settings
    from gateway.installation.backup.operations.archive import Manifest

app = typer.Typer()


class BackupFile(Answer):
    """A backup, and what it contains."""

    file: str
    bytes: int
    florin: str
    begun_at: int
    installation: str
    documents: dict[str, int]
    artifacts: int
    artifact_bytes: int
    missing: dict[str, str]
    ledger_revision: str
    ledger_rows: dict[str, int]

    @classmethod
    def described(cls, path: Path, manifest: Manifest, **more: object) -> Self:
        return cls.of(
            manifest,
            begun_at=manifest.at,
            file=str(path.absolute()),
            bytes=path.stat().st_size,
            artifacts=len(manifest.artifacts),
            artifact_bytes=sum(manifest.artifacts.values()),
            ledger_rows={name: table.rows for name, table in manifest.tables.items() if table.rows},
            **more,
        )

    def in_words(self) -> str:
        kinds = ("tenant", "key", "version", "engine")
        registry = ", ".join(counted(self.documents.get(kind, 0), kind) for kind in kinds)
        rows = sum(self.ledger_rows.values())
        return (
            f"{registry}; the files of {counted(self.artifacts, 'version')}; {counted(rows, 'row')} of "
            "the ledger"
        )


class NewBackup(BackupFile):
    deleted: tuple[str, ...]


class BooksCheck(Answer):
    name: str
    ok: bool | None
    detail: str


class CheckedMonth(Answer):
    month: str
    ok: bool
    checks: tuple[BooksCheck, ...]


class CheckedChain(Answer):
    entries: int
    ok: bool
    checks: tuple[BooksCheck, ...]


class RestoredBackup(BackupFile):
    restored: bool
    absent: tuple[str, ...]
    ok: bool
    months: tuple[CheckedMonth, ...]
    chain: CheckedChain


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
    from gateway.installation.backup.operations.archive import prune
    from gateway.installation.backup.operations.taking import take

    deleted: list[Path] = []
    with _explained(), _bars() as progress:
        manifest = take(_settings(), out.absolute(), artifacts=artifacts, progress=progress)
        if keep is not None:
            deleted = prune(out.absolute(), manifest, keep, progress=progress)
    session.result(NewBackup.described(out, manifest, deleted=tuple(map(str, deleted))), _taken)


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
    was interrupted, run it again. Exit code 1 if the books do not verify afterwards.

    With --check, it says what a backup contains and whether it can be restored: checksums, the registry, each
    version's files, every row of the ledger, and the closed months. TMPDIR needs room for the ledger.

    Example: FLORIN_STATE_DIR=/var/lib/florin florin restore /backups/florin-2026-11-30.zip
    """
    from gateway.installation.backup.operations.restoring import rehearse
    from gateway.installation.backup.operations.restoring import restore as restore_

    with _explained(), _bars() as progress:
        done = (
            rehearse(path.absolute(), progress=progress)
            if check
            else restore_(_settings(), path.absolute(), progress=progress)
        )
    backup = RestoredBackup.described(
        path,
        done.manifest,
        restored=not check,
        absent=tuple(done.absent),
        ok=done.ok,
        months=tuple(done.periods),
        chain=done.chain,
    )
    session.result(backup, _rehearsed if check else _restored)
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
    from gateway.installation.backup.operations.archive import BackupError
    from gateway.metering.ledger.database import LedgerUnavailableError

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


def _taken(backup: NewBackup) -> None:
    say(f"{clean(backup.file)} ({backup.bytes / 1e6:,.1f} MB): {backup.in_words()}.")
    for version, reason in backup.missing.items():
        note(f"Not in the backup: {clean(version)}: {clean(reason)}")
    if backup.deleted:
        names = [Path(name).name for name in backup.deleted]
        say(f"Deleted {len(names)} older: {clean(names)}.")


def _restored(backup: RestoredBackup) -> None:
    say(f"Restored {backup.in_words()}.")
    if backup.absent:
        note(
            f"Without files here: {clean(backup.absent)}. Copy them to FLORIN_ARTIFACT_DIR, or to the bucket."
        )
    _books(backup)
    say("Start the gateways now.")


def _rehearsed(backup: RestoredBackup) -> None:
    verdict = "can be restored" if backup.ok else "can be restored, but its books do not add up"
    say(
        f"{clean(backup.file)} ({backup.bytes / 1e6:,.1f} MB), of {when(backup.begun_at)}, by Florin "
        f"{clean(backup.florin)}, {verdict}: {backup.in_words()}."
    )
    if backup.absent:
        note(
            f"{counted(len(backup.absent), 'version has', 'versions have')} no files in it, like "
            f"{clean(backup.absent[0])}."
        )
    _books(backup)


def _books(backup: RestoredBackup) -> None:
    months = backup.months
    if failed := [month.month for month in months if not month.ok]:
        say(f"These closed months do not verify: {', '.join(failed)}. See florin cost verify.")
    elif months:
        say(f"{counted(len(months), 'closed month verifies', 'closed months verify')}.")
    if wrong := [check.name for check in backup.chain.checks if check.ok is False]:
        say(f"Not as it was recorded: {', '.join(wrong)}. See florin cost verify.")
