"""Nightly backups do not fill the disk, and one can be checked before it is needed.

Source: a day of operations
Sent: `backup --keep 2` on the third night, beside another installation's backup, a damaged one and a note; and
`restore --check` of a good backup, a damaged one, and one whose file has another content than its name says
Right: the oldest of this installation goes, once the new one has been read back, and nothing else; the check says what
the backup contains and whether it can be restored, and touches nothing but a temporary directory
Why: backups that nobody deletes end with a full disk, and one that was never restored is a hope
"""

from __future__ import annotations

import asyncio
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.costs.closing.closing import GRACE, close
from gateway.installation.backup.operations.archive import (
    MANIFEST,
    BackupError,
    manifest_codec,
    opened,
    prune,
)
from gateway.installation.backup.operations.restoring import rehearse
from gateway.installation.backup.operations.taking import take
from gateway.metering.ledger.ledger import Ledger
from tests.integration.test_backup import Installation, damage
from tests.integration.test_cli import florin
from tests.support.lora import write_adapter
from tests.unit.gateway.costs.month import DECEMBER, fill


@pytest.fixture
def installation(tmp_path: Path, valkey_url: str, fresh_prefix) -> Installation:
    here = Installation(tmp_path / "from", valkey_url, fresh_prefix(), f"sqlite:///{tmp_path / 'from.db'}")
    asyncio.run(here.furnish(write_adapter(tmp_path / "support")))
    ledger = Ledger(here.settings.ledger)
    fill(ledger)
    close(ledger, "2026-10", now=DECEMBER + GRACE, by="key", policy="even")
    ledger.close()
    return here


def rewritten(path: Path, name: str, **changes: object) -> Path:
    """A copy with another manifest."""
    target = path.with_name(name)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            if entry.filename != MANIFEST:
                new.writestr(entry.filename, old.read(entry))
        manifest = replace(manifest_codec.validate_json(old.read(MANIFEST)), **changes)
        new.writestr(MANIFEST, manifest_codec.dump_json(manifest))
    return target


def test_only_older_backups_of_this_installation_go(installation: Installation, tmp_path: Path):
    backups = tmp_path / "backups"
    backups.mkdir()
    for name in ("1.zip", "2.zip"):
        take(installation.settings, backups / name)
    rewritten(backups / "1.zip", "others.zip", installation="another", at=1)
    (backups / "damaged.zip").write_bytes((backups / "1.zip").read_bytes()[:500])
    (backups / "note.txt").write_text("tapes are in the safe")
    stays = {path.name for path in backups.iterdir()} - {"1.zip"}
    settings, new = installation.settings, backups / "3.zip"
    variables = {
        "FLORIN_STATE_DIR": str(settings.state_dir),
        "FLORIN_REDIS_URL": settings.redis_url,
        "FLORIN_REDIS_PREFIX": settings.redis_prefix,
        "FLORIN_LEDGER_URL": settings.ledger_url,
    }
    done = florin("backup", "--out", str(new), "--keep", "2", "--json", **variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["deleted"] == [str(backups / "1.zip")]
    assert {path.name for path in backups.iterdir()} == stays | {"3.zip"}


def test_nothing_goes_if_the_new_one_is_damaged(installation: Installation, tmp_path: Path):
    for name in ("1.zip", "2.zip"):
        manifest = take(installation.settings, tmp_path / name)
    new = damage(tmp_path / "2.zip", "registry/contents.json")
    with pytest.raises(BackupError, match="checksum"):
        prune(new, manifest, 1)
    assert (tmp_path / "1.zip").exists()


def test_a_backup_is_checked_without_an_installation(installation: Installation, tmp_path: Path):
    path, scratch = tmp_path / "b.zip", tmp_path / "scratch"
    scratch.mkdir()
    take(installation.settings, path)
    elsewhere = {"FLORIN_STATE_DIR": str(tmp_path / "none"), "FLORIN_REDIS_URL": "redis://127.0.0.1:1"}
    checked = florin("restore", str(path), "--check", "--json", TMPDIR=str(scratch), **elsewhere)
    assert checked.returncode == 0, checked.stderr
    body = json.loads(checked.stdout)
    assert (body["ok"], body["restored"], body["artifacts"], body["absent"]) == (True, False, 1, [])
    assert [month["month"] for month in body["months"]] == ["2026-10"]
    assert not list(scratch.iterdir())
    assert not (tmp_path / "none").exists()


def test_what_could_not_be_restored_is_found(installation: Installation, tmp_path: Path):
    path = tmp_path / "b.zip"
    manifest = take(installation.settings, path)
    [digest] = manifest.artifacts
    with pytest.raises(BackupError, match="checksum"):
        rehearse(damage(path, f"artifacts/{digest}/adapter_config.json"))
    with opened(path) as (archive, _):
        files = {Path(name).name: archive.read(name) for name in manifest.members if digest in name}
    renamed = tmp_path / "renamed.zip"
    members = {name.replace(digest, "0" * 64): checksum for name, checksum in manifest.members.items()}
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(renamed, "w") as new:
        for name in manifest.members:
            new.writestr(name.replace(digest, "0" * 64), old.read(name))
        other = replace(manifest, members=members, artifacts={"0" * 64: sum(map(len, files.values()))})
        new.writestr(MANIFEST, manifest_codec.dump_json(other))
    with pytest.raises(BackupError, match="not what their name says"):
        rehearse(renamed)
