"""Restores a backup into an installation that holds nothing.

Everything is checked before anything is written: versions, emptiness, checksums. Then the files are published
(content-addressed, so that repeating it changes nothing), the ledger is filled in one transaction, and the
registry is written at once, last: without it, no gateway serves anything. A restore that was interrupted is
completed by running it again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, Table

from adapters.checks.validate import FILES
from adapters.model import PendingDeletion, Version, load
from adapters.model import dump as dump_document
from adapters.progress import CHUNK, Progress, ProgressMeter, silent
from adapters.registry.artifacts import ArtifactStore, digest_of
from adapters.registry.storage import artifact_store
from adapters.security import state_directory
from adapters.store import registry_format
from adapters.store.continuity import Position, next_epoch
from adapters.store.protocol.registry import AuditNote
from adapters.store.redis.registry_backup import RegistryContents
from gateway.config import Settings, load_settings
from gateway.costs.verification.chain_check import VerifiedChain, verify_chain
from gateway.costs.verification.verify import VerifiedPeriod
from gateway.costs.verification.verify import verify as verify_periods
from gateway.installation.backup.operations.archive import (
    REGISTRY,
    BackupError,
    Manifest,
    contents_codec,
    opened,
    size_of,
    verify,
)
from gateway.installation.backup.operations.source import ledger_engine, registry, registry_url
from gateway.metering.ledger import dump
from gateway.metering.ledger.database import reading
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.migrations import HEAD, REVISIONS, revision_of


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    manifest: Manifest
    absent: tuple[str, ...]
    """Versions whose files are neither in the backup nor in the artifact directory."""
    periods: tuple[VerifiedPeriod, ...]
    """The closed months, verified in the restored ledger."""
    chain: VerifiedChain
    """What was written to the books, likewise."""

    @property
    def ok(self) -> bool:
        return self.chain.ok and all(period.ok for period in self.periods)


def rehearse(path: Path, *, progress: Progress = silent) -> RestoredBackup:
    """Restore a backup into a temporary installation, which is deleted: nothing that exists is touched.
    Blocking.

    Needs room for the registry, the ledger and one version in the temporary directory (TMPDIR). Raises as
    `restore`, and SettingsError."""
    with tempfile.TemporaryDirectory(prefix="florin-check-") as scratch:
        settings = load_settings(
            state_dir=scratch, redis_url="", ledger_url="", artifact_dir=None, artifact_bucket=""
        )
        return restore(settings, path, progress=progress, rehearsal=True)


def restore(
    settings: Settings, path: Path, *, progress: Progress = silent, rehearsal: bool = False
) -> RestoredBackup:
    """Blocking. Stop the gateways first. `rehearsal`: versions' files are checked one by one, and not kept.

    Raises BackupError, EmbeddedError, StoreUnavailableError, LedgerUnavailableError."""
    with opened(path) as (archive, manifest):
        if manifest.ledger_revision not in REVISIONS:
            raise BackupError(
                f"{path} was made by a newer Florin ({manifest.florin}; its ledger's schema is "
                f"{manifest.ledger_revision}, and this version knows up to {HEAD}). Install that version."
            )
        if manifest.registry_format > registry_format.FORMAT:
            raise BackupError(
                f"{path} was made by a newer Florin ({manifest.florin}; its registry's format "
                f"is {manifest.registry_format}, and this version knows up to {registry_format.FORMAT}). "
                "Install that version."
            )
        state_directory.make_private(settings.state_dir)
        store = artifact_store(settings.artifacts, settings.artifact_bucket)
        with registry_url(settings) as url, ledger_engine(settings) as engine:
            asyncio.run(_refuse_used_registry(settings, url))
            filled = _refuse_used_ledger(engine, manifest)
            verify(path, archive, manifest, ProgressMeter("checking", progress, size_of(archive)))
            contents = _moved(contents_codec.validate_json(archive.read(REGISTRY)), manifest, store)
            _publish(store, archive, manifest, progress, keep=not rehearsal)
            if not filled:
                _fill(engine, archive, manifest, progress)
            asyncio.run(_write_registry(settings, url, contents, manifest))
    ledger = Ledger(settings.ledger)
    try:
        verified = verify_periods(ledger, progress=lambda *_: progress("verifying", 0, None))
        chain = verify_chain(ledger)
    finally:
        ledger.close()
    absent = _absent(contents, manifest, store)
    return RestoredBackup(manifest, absent, tuple(verified), chain)


async def _refuse_used_registry(settings: Settings, url: str) -> None:
    async with registry(settings, url) as store:
        if await store.holds():
            raise BackupError(
                "Redis already holds a registry, or a gateway has been started on it. Restore into an empty "
                "one: another FLORIN_REDIS_URL, FLORIN_REDIS_PREFIX or FLORIN_STATE_DIR."
            )


def _refuse_used_ledger(engine: Engine, manifest: Manifest) -> bool:
    """Whether the ledger already holds exactly this backup, from a restore that was interrupted."""
    with reading(engine) as connection:
        revision = revision_of(connection)
        if revision is None or (revision == manifest.ledger_revision and dump.is_empty(connection)):
            return False
        if revision == manifest.ledger_revision and all(
            table.name in manifest.tables and _same(connection, table, manifest)
            for table in dump.tables(connection)
        ):
            return True
    raise BackupError(
        "The ledger's database already holds a ledger. Restore into an empty database: another "
        "FLORIN_LEDGER_URL or FLORIN_STATE_DIR."
    )


def _same(connection: Connection, table: Table, manifest: Manifest) -> bool:
    digest = dump.RowsDigest()
    for line in dump.lines(connection, table):
        digest.add(line)
        if digest.rows > manifest.tables[table.name].rows:
            return False
    return digest.hexdigest() == manifest.tables[table.name].digest


def _moved(contents: RegistryContents, manifest: Manifest, store: ArtifactStore) -> RegistryContents:
    """The registry with the paths of this installation's artifact store."""
    before = manifest.artifact_root
    if before == store.where:
        return contents
    documents = dict(contents.documents)
    versions, deletions = (documents.get(kind, {}) for kind in ("version", "pending_deletion"))
    documents["version"] = {id_: _at(load(Version, text), before, store) for id_, text in versions.items()}
    documents["pending_deletion"] = {
        id_: _at(load(PendingDeletion, text), before, store) for id_, text in deletions.items()
    }
    return replace(contents, documents=documents)


def _at(document: Version | PendingDeletion, before: str, store: ArtifactStore) -> str:
    ours = document.path.rpartition("/")[0] == before
    return dump_document(replace(document, path=store.location(document.digest)) if ours else document)


def _publish(
    store: ArtifactStore, archive: zipfile.ZipFile, manifest: Manifest, progress: Progress, *, keep: bool
) -> None:
    store.open(manifest.installation)
    meter = ProgressMeter("adapters", progress, sum(manifest.artifacts.values()))
    for hexdigest, size in manifest.artifacts.items():
        with store.files(f"sha256:{hexdigest}") as files:
            if files is not None:
                meter.add(size)
                continue
        with store.staging() as staged:
            for name in FILES:
                with (
                    archive.open(f"artifacts/{hexdigest}/{name}") as source,
                    (staged / name).open("wb") as target,
                ):
                    shutil.copyfileobj(source, target, CHUNK)
            digest = store.publish(staged).digest if keep else f"sha256:{digest_of(staged)}"
        if digest != f"sha256:{hexdigest}":
            raise BackupError(f"The files of {hexdigest} are not what their name says.")
        meter.add(size)
    meter.tell()


def _fill(engine: Engine, archive: zipfile.ZipFile, manifest: Manifest, progress: Progress) -> None:
    total = sum(table.rows for table in manifest.tables.values())
    done = 0

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        progress("ledger rows", done, total)

    def read(table: str) -> Iterator[bytes]:
        with archive.open(f"ledger/{table}.jsonl") as file:
            yield from file

    columns = {name: table.columns for name, table in manifest.tables.items()}
    try:
        dump.restore(engine, manifest.ledger_revision, columns, read, tell)
    except ValueError as error:
        raise BackupError(f"The ledger was not restored: {error}") from error


async def _write_registry(
    settings: Settings, url: str, contents: RegistryContents, manifest: Manifest
) -> None:
    begun = next_epoch(contents.position, Position(), restore=True)
    when = f"{datetime.fromtimestamp(manifest.at // 1_000_000, UTC):%Y-%m-%d %H:%M:%SZ}"
    details = {"epoch": begun.epoch, "why": f"restored the backup of {when}"}
    note = AuditNote("restore", "registry.restore", "registry", details=details)
    async with registry(settings, url) as store:
        await store.write(contents, begun, note=note)


def _absent(contents: RegistryContents, manifest: Manifest, store: ArtifactStore) -> tuple[str, ...]:
    """Versions whose files were neither in the backup nor in the store."""
    versions = (load(Version, text) for text in contents.documents.get("version", {}).values())
    others = [
        version
        for version in versions
        if version.retired is None and version.digest.removeprefix("sha256:") not in manifest.artifacts
    ]
    return tuple(sorted(store.problems(others))) if others else ()
