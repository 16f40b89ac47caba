"""Takes a backup. The gateways may go on serving."""

from __future__ import annotations

import asyncio
import time
import zipfile
from pathlib import Path

from sqlalchemy import Engine

from adapters.checks.validate import FILES
from adapters.model import Version, load
from adapters.progress import CHUNK, Progress, ProgressMeter, silent
from adapters.registry.artifacts import size_of
from adapters.registry.storage import artifact_store
from adapters.store import registry_format
from adapters.store.redis.registry_backup import RegistryContents
from gateway.config import Settings
from gateway.installation.backup.operations.archive import (
    FORMAT,
    MANIFEST,
    REGISTRY,
    BackupError,
    Manifest,
    TableEntry,
    contents_codec,
    created,
    manifest_codec,
    member,
)
from gateway.installation.backup.operations.source import ledger_engine, registry, registry_url
from gateway.metering.ledger import dump
from gateway.metering.ledger.database import reading
from gateway.metering.ledger.migrations import REVISIONS, revision_of
from gateway.observability import build_info


def take(settings: Settings, out: Path, *, artifacts: bool = True, progress: Progress = silent) -> Manifest:
    """Write the installation to `out`. Blocking. `artifacts`: False leaves out the files of adapters, which
    must then be copied separately.

    Raises BackupError, EmbeddedError, StoreUnavailableError, LedgerUnavailableError."""
    taken_at = time.time_ns() // 1000
    if not settings.redis_url and not (settings.state_dir / "valkey").is_dir():
        raise BackupError(f"There is no installation in {settings.state_dir}: set FLORIN_STATE_DIR.")
    with created(out) as archive:
        with registry_url(settings) as url:
            contents = asyncio.run(_registry(settings, url))
        members: dict[str, str] = {}
        with member(archive, REGISTRY, members) as file:
            file.write(contents_codec.dump_json(contents))
        kept, missing = _artifacts(settings, archive, contents, members, progress) if artifacts else ({}, {})
        with ledger_engine(settings) as engine:
            revision, tables = _ledger(engine, archive, members, progress)
        manifest = Manifest(
            florin_backup=FORMAT,
            florin=build_info.version(),
            at=taken_at,
            installation=contents.position.installation,
            epoch=contents.position.epoch,
            seq=contents.position.seq,
            artifact_root=artifact_store(settings.artifacts, settings.artifact_bucket).where,
            ledger_revision=revision,
            registry_format=registry_format.FORMAT,
            documents={kind: len(texts) for kind, texts in contents.documents.items()},
            tables=tables,
            artifacts=kept,
            missing=missing,
            members=members,
        )
        archive.writestr(MANIFEST, manifest_codec.dump_json(manifest, indent=1))
    return manifest


async def _registry(settings: Settings, url: str) -> RegistryContents:
    async with registry(settings, url) as store:
        contents = await store.read()
    if not contents.position.installation:
        raise BackupError("Redis holds no registry: check FLORIN_REDIS_URL and FLORIN_REDIS_PREFIX.")
    return contents


def _artifacts(
    settings: Settings,
    archive: zipfile.ZipFile,
    contents: RegistryContents,
    members: dict[str, str],
    progress: Progress,
) -> tuple[dict[str, int], dict[str, str]]:
    """Write the files of each version once. Returns what was written, and what could not be."""
    store = artifact_store(settings.artifacts, settings.artifact_bucket)
    versions = [load(Version, text) for text in contents.documents["version"].values()]
    unretired = [version for version in versions if version.retired is None]
    total = sum({version.digest: version.size_bytes for version in unretired}.values())
    meter = ProgressMeter("adapters", progress, total)
    kept: dict[str, int] = {}
    missing: dict[str, str] = {}
    for version in sorted(unretired, key=lambda version: version.id):
        hexdigest = version.digest.removeprefix("sha256:")
        if hexdigest in kept:
            continue
        with store.files(version.digest) as files:  # which keeps them from being removed for an hour
            if files is None:
                missing[version.id] = f"{store.location(version.digest)} is missing or damaged."
                continue
            for name in sorted(FILES):
                with (
                    (files / name).open("rb") as source,
                    member(archive, f"artifacts/{hexdigest}/{name}", members, compressed=False) as file,
                ):
                    while data := source.read(CHUNK):
                        file.write(data)
                        meter.add(len(data))
            kept[hexdigest] = size_of(files)
    meter.tell()
    return kept, missing


def _ledger(
    engine: Engine, archive: zipfile.ZipFile, members: dict[str, str], progress: Progress
) -> tuple[str, dict[str, TableEntry]]:
    """Write all tables as of one moment. Returns the schema's revision and the tables."""
    written: dict[str, TableEntry] = {}
    with reading(engine) as connection:
        revision = revision_of(connection)
        if revision is None:
            raise BackupError("There is no ledger yet: start a gateway first, or check FLORIN_LEDGER_URL.")
        if revision not in REVISIONS:
            raise BackupError(
                f"The ledger's schema is {revision}, of a newer Florin than this one: use that version's "
                "florin backup."
            )
        meter = ProgressMeter("ledger", progress)
        for table in dump.tables(connection):
            digest = dump.RowsDigest()
            with member(archive, f"ledger/{table.name}.jsonl", members) as file:
                for line in dump.lines(connection, table):
                    digest.add(line)
                    file.write(line + b"\n")
                    meter.add(len(line) + 1)
            columns = [column.name for column in table.columns]
            written[table.name] = TableEntry(columns, digest.rows, digest.hexdigest())
        meter.tell()
    return revision, written
