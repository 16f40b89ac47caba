"""Backup, wipe, restore: as people run it, and step by step on both databases."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from openai import OpenAI
from sqlalchemy import text

from adapters.model import Version, dump, load
from adapters.registry.artifacts import ArtifactStore
from adapters.store import registry_format
from adapters.store.protocol.registry import AuditNote, Change
from adapters.store.redis import RedisStore
from adapters.store.redis.registry_backup import RegistryBackup
from gateway.config import Settings
from gateway.costs.closing.closing import GRACE, close
from gateway.installation.backup.operations import restoring
from gateway.installation.backup.operations.archive import BackupError, opened
from gateway.installation.backup.operations.restoring import restore
from gateway.installation.backup.operations.taking import take
from gateway.metering.ledger import dump as ledger_dump
from gateway.metering.ledger import migrations
from gateway.metering.ledger.ledger import Ledger
from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import add_engine, florin, serving
from tests.support.forking import FORKED
from tests.support.lora import lora_config, write_adapter
from tests.support.waiting import PATIENCE_S
from tests.unit.gateway.costs.month import DECEMBER, fill


def answer(url: str, key: str) -> str:
    with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S) as client:
        said = client.chat.completions.with_raw_response.create(
            model="support", messages=[{"role": "user", "content": "hello"}], max_tokens=2
        )
        return said.headers["x-florin-adapter"]


def test_backup_wipe_restore(tmp_path: Path, model: Path):
    """While the gateway runs; then everything of it is deleted."""
    state, out = tmp_path / "state", tmp_path / "florin.zip"
    source = write_adapter(tmp_path / "support", config=lora_config(base_model_name_or_path="base"))
    with MockProcess(root=str(model)) as engine:
        with serving(state) as gateway:
            add_engine(gateway, engine)
            gateway.call("POST", "/admin/v1/tenants", {"name": "acme"})
            gateway.call("POST", "/admin/v1/prices", {"gpu_type": "H200", "rate_per_gpu_hour": "2.50"})
            key = gateway.call("POST", "/admin/v1/keys", {"tenant": "acme", "role": "tenant"})["key"]
            gateway.call("POST", "/admin/v1/adapters", {"adapter": "acme/support", "source": str(source)})
            assert answer(gateway.url, key) == "acme/support@v1"
            until = gateway.json("cost", "report")  # ships what was used
            made = florin("backup", "--out", str(out), "--json", FLORIN_STATE_DIR=str(state))
            assert made.returncode == 0, made.stderr
            told = json.loads(made.stdout)
            assert (told["documents"]["tenant"], told["artifacts"], told["missing"]) == (1, 1, {})
            assert out.stat().st_mode & 0o077 == 0
            again = florin("backup", "--out", str(out), FLORIN_STATE_DIR=str(state))
            assert (again.returncode, "already exists" in again.stderr) == (1, True)
            running = florin("restore", str(out), FLORIN_STATE_DIR=str(state))
            assert (running.returncode, "already holds a registry" in running.stderr) == (1, True)
        shutil.rmtree(state)
        moved = tmp_path / "elsewhere"
        done = florin("restore", str(out), FLORIN_STATE_DIR=str(moved))
        assert done.returncode == 0, done.stderr
        assert "1 tenant," in done.stdout
        with serving(moved) as gateway:
            assert answer(gateway.url, key) == "acme/support@v1"
            listed = gateway.json("audit", "list")
            actions = [entry["action"] for entry in listed["data"]]
            assert {"tenant.add", "registry.restore"} <= set(actions)
            assert gateway.json("cost", "report")["currency"] == until["currency"]


class Installation:
    """A registry with one version, and a ledger with a closed month."""

    def __init__(self, tmp: Path, url: str, prefix: str, ledger_url: str) -> None:
        self.settings = Settings(
            state_dir=tmp, redis_url=url, redis_prefix=prefix, ledger_url=ledger_url, operator_key="x"
        )

    async def furnish(self, source: Path) -> Installation:
        store = ArtifactStore(self.settings.artifacts)
        store.open("i1")
        with store.staging() as staged:
            shutil.copytree(source, staged, dirs_exist_ok=True)
            artifact = store.publish(staged)
        version = Version(
            *("acme/support", 1, artifact.digest, "fl-1", str(artifact.path), "base", 4),
            *(artifact.size_bytes, "/x", 1),
        )
        redis = RedisStore(self.settings.redis_url, prefix=self.settings.redis_prefix)
        for name in ("installation", "agent", "cache_salt"):
            await redis.secret(name, f"{name}-1")
        await redis.commit(
            [Change("version", version.id, dump(version)), Change("tenant", "acme", "{}")],
            audit=AuditNote("bootstrap", "tenant.create", "acme"),
        )
        await redis.report_activity({"k1": 7}, {})
        await redis.close()
        return self

    async def contents(self):
        store = RegistryBackup(self.settings.redis_url, prefix=self.settings.redis_prefix)
        found = await store.read()
        await store.close()
        return found

    def clear_registry(self) -> None:
        async def clear() -> None:
            store = RegistryBackup(self.settings.redis_url, prefix=self.settings.redis_prefix)
            await store._redis.delete(*store._durable)
            await store.close()

        asyncio.run(clear())


@pytest.fixture
def made(tmp_path, valkey_url, fresh_prefix, ledger_url) -> Installation:
    here = Installation(tmp_path / "from", valkey_url, fresh_prefix(), ledger_url)
    asyncio.run(here.furnish(write_adapter(tmp_path / "support")))
    return here


@pytest.fixture
def empty(tmp_path, valkey_url, fresh_prefix) -> Installation:
    return Installation(tmp_path / "to", valkey_url, fresh_prefix(), f"sqlite:///{tmp_path / 'to.db'}")


def rows(settings: Settings) -> dict[str, tuple[int, str]]:
    ledger = Ledger(settings.ledger)
    with ledger.read() as connection:
        found = {}
        for table in ledger_dump.tables(connection):
            digest = ledger_dump.RowsDigest()
            for line in ledger_dump.lines(connection, table):
                digest.add(line)
            found[table.name] = (digest.rows, digest.hexdigest())
    ledger.close()
    return found


@pytest.mark.both_databases
def test_the_registry_the_files_and_every_row_come_back(made, empty, tmp_path):
    ledger = Ledger(made.settings.ledger)
    fill(ledger)
    close(ledger, "2026-10", now=DECEMBER + GRACE, by="key", policy="even")
    ledger.close()
    take(made.settings, tmp_path / "b.zip")
    done = restore(empty.settings, tmp_path / "b.zip")
    assert done.ok
    assert [period.month for period in done.periods] == ["2026-10"]
    assert done.absent == ()
    assert rows(empty.settings) == rows(made.settings)
    before, after = asyncio.run(made.contents()), asyncio.run(empty.contents())
    assert after.secrets == before.secrets
    assert after.last_use == before.last_use == {"k1": 7}
    assert after.audit[:-1] == before.audit
    assert after.documents | {"version": {}} == before.documents | {"version": {}}
    [version] = (load(Version, t) for t in after.documents["version"].values())
    assert Path(version.path).parent == empty.settings.artifacts
    with ArtifactStore(empty.settings.artifacts).files(version.digest) as files:
        assert files is not None
    assert (after.position.epoch, after.position.installation) == (
        before.position.epoch + 1,
        "installation-1",
    )


def test_a_ledger_of_sqlite_is_restored_to_postgresql(tmp_path, valkey_url, fresh_prefix, postgres):
    source = write_adapter(tmp_path / "support")
    here = Installation(tmp_path / "a", valkey_url, fresh_prefix(), f"sqlite:///{tmp_path / 'a.db'}")
    asyncio.run(here.furnish(source))
    ledger = Ledger(here.settings.ledger)
    fill(ledger)
    close(ledger, "2026-10", now=DECEMBER + GRACE, by="key", policy="even")
    ledger.close()
    take(here.settings, tmp_path / "b.zip")
    with postgres.database() as url:
        there = Installation(tmp_path / "b", valkey_url, fresh_prefix(), url)
        assert restore(there.settings, tmp_path / "b.zip").ok
        assert rows(there.settings) == rows(here.settings)
        ledger = Ledger(url)
        with ledger.write() as connection:  # the sequence is beyond the restored rows
            last = connection.execute(text("SELECT max(id) FROM prices")).scalar_one()
            sequence = text("SELECT nextval(pg_get_serial_sequence('prices', 'id'))")
            assert connection.execute(sequence).scalar_one() == last + 1
        ledger.close()


@pytest.fixture
def small(tmp_path, valkey_url, fresh_prefix) -> Installation:
    here = Installation(tmp_path / "from", valkey_url, fresh_prefix(), f"sqlite:///{tmp_path / 'from.db'}")
    asyncio.run(here.furnish(write_adapter(tmp_path / "support")))
    with Ledger(here.settings.ledger).read():
        pass
    return here


def untouched(there: Installation) -> bool:
    contents = asyncio.run(there.contents())
    files = (
        [p for p in there.settings.artifacts.rglob("*") if p.is_file()]
        if there.settings.artifacts.exists()
        else []
    )
    return not contents.position.installation and not contents.documents["tenant"] and not files


def damage(path: Path, name: str) -> Path:
    """The same archive with one byte of one member changed, and its CRC made to fit."""
    target = path.with_name("damaged.zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            content = bytearray(old.read(entry))
            if entry.filename == name:
                content[len(content) // 2] ^= 1
            new.writestr(entry.filename, bytes(content))
    return target


def test_a_damaged_backup_is_refused_before_anything_is_written(small, empty, tmp_path):
    take(small.settings, tmp_path / "b.zip")
    whole = (tmp_path / "b.zip").read_bytes()
    with opened(tmp_path / "b.zip") as (_, manifest):
        names = sorted(manifest.members)
    damaged = [
        damage(tmp_path / "b.zip", name)
        for name in ("registry/contents.json", next(n for n in names if "safetensors" in n))
    ]
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rubbish.zip").write_bytes(b"x" * 1000)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("a", "b")
    for path in (
        *damaged,
        tmp_path / "cut.zip",
        tmp_path / "rubbish.zip",
        tmp_path / "other.zip",
        tmp_path / "none.zip",
    ):
        with pytest.raises(BackupError):
            restore(empty.settings, path)
        assert untouched(empty), path


def test_a_backup_of_a_newer_florin_is_refused(small, empty, tmp_path):
    ledger = Ledger(small.settings.ledger)
    with ledger.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    ledger.close()
    with pytest.raises(BackupError, match="schema is 9999, of a newer Florin"):
        take(small.settings, tmp_path / "b.zip")
    assert not list(tmp_path.glob("*.zip*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "gateway.installation.backup.operations.taking.REVISIONS", (*migrations.REVISIONS, "9999")
        )
        take(small.settings, tmp_path / "b.zip")
    with pytest.raises(BackupError, match="was made by a newer Florin"):
        restore(empty.settings, tmp_path / "b.zip")
    assert untouched(empty)


def test_a_backup_of_a_newer_registry_is_refused(small, empty, tmp_path):
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(registry_format, "FORMAT", registry_format.FORMAT + 1)
        take(small.settings, tmp_path / "b.zip")
    with pytest.raises(BackupError, match=r"was made by a newer Florin .* its registry's format is 2"):
        restore(empty.settings, tmp_path / "b.zip")
    assert untouched(empty)


def test_a_backup_of_an_older_florin_is_migrated(small, empty, tmp_path, monkeypatch):
    take(small.settings, tmp_path / "b.zip")
    upgrades = []

    def upgrade(connection, revision):
        upgrades.append(revision)
        if revision in migrations.REVISIONS:
            migrations.upgrade(connection, revision)

    monkeypatch.setattr(ledger_dump, "upgrade", upgrade)
    monkeypatch.setattr(ledger_dump, "HEAD", "9999")
    restore(empty.settings, tmp_path / "b.zip")
    assert upgrades == [migrations.HEAD, "9999"]


def test_a_used_installation_is_refused(small, empty, tmp_path):
    take(small.settings, tmp_path / "b.zip")
    restore(empty.settings, tmp_path / "b.zip")
    with pytest.raises(BackupError, match="Redis already holds a registry"):
        restore(empty.settings, tmp_path / "b.zip")
    empty.clear_registry()
    ledger = Ledger(empty.settings.ledger)
    with ledger.write() as connection:
        connection.execute(text("INSERT INTO ledger_state (name, value) VALUES ('other', 1)"))
    ledger.close()
    with pytest.raises(BackupError, match="already holds a ledger"):
        restore(empty.settings, tmp_path / "b.zip")


def test_an_interrupted_restore_is_completed_by_another(small, empty, tmp_path, monkeypatch):
    ledger = Ledger(small.settings.ledger)
    fill(ledger)
    ledger.close()
    take(small.settings, tmp_path / "b.zip")
    for step in ("_publish", "_fill", "_write_registry"):

        def dies(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(restoring, step, dies)
            with pytest.raises(KeyboardInterrupt):
                restore(empty.settings, tmp_path / "b.zip")
        assert not asyncio.run(empty.contents()).position.installation
    assert restore(empty.settings, tmp_path / "b.zip").ok
    assert rows(empty.settings) == rows(small.settings)


def test_a_ledger_that_is_killed_while_it_is_filled_stays_empty(small, empty, tmp_path):
    ledger = Ledger(small.settings.ledger)
    fill(ledger)
    ledger.close()
    take(small.settings, tmp_path / "b.zip")
    code = FORKED + textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from gateway.config import Settings
        from gateway.installation.backup.operations.restoring import restore
        def die(step, done, total):
            if step == "ledger rows":
                os.kill(os.getpid(), signal.SIGKILL)
        restore(Settings.model_validate_json(sys.argv[1]), Path(sys.argv[2]), progress=die)
    """)
    said = empty.settings.model_dump_json(include={"state_dir", "redis_url", "redis_prefix", "ledger_url"})
    done = subprocess.run(
        [sys.executable, "-c", code, said, str(tmp_path / "b.zip")], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not asyncio.run(empty.contents()).position.installation
    assert restore(empty.settings, tmp_path / "b.zip").ok
    assert rows(empty.settings) == rows(small.settings)


def test_a_backup_that_is_killed_leaves_no_file(small, tmp_path):
    code = FORKED + textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from gateway.config import Settings
        from gateway.installation.backup.operations.taking import take
        def die(step, done, total):
            os.kill(os.getpid(), signal.SIGKILL)
        take(Settings.model_validate_json(sys.argv[1]), Path(sys.argv[2]), progress=die)
    """)
    said = small.settings.model_dump_json(include={"state_dir", "redis_url", "redis_prefix", "ledger_url"})
    done = subprocess.run(
        [sys.executable, "-c", code, said, str(tmp_path / "b.zip")], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "b.zip").exists()
    [left] = tmp_path.glob(".b.zip.*")
    with pytest.raises(BackupError), opened(left):
        pass


def test_missing_files_are_named_and_the_rest_is_backed_up(small, empty, tmp_path):
    shutil.rmtree(small.settings.artifacts)
    manifest = take(small.settings, tmp_path / "b.zip")
    assert list(manifest.missing) == ["acme/support@v1"]
    assert restore(empty.settings, tmp_path / "b.zip").absent == ("acme/support@v1",)


def test_there_must_be_something_to_back_up(tmp_path):
    done = florin("backup", "--out", str(tmp_path / "b.zip"), FLORIN_STATE_DIR=str(tmp_path / "none"))
    assert (done.returncode, "There is no installation" in done.stderr) == (1, True)
    assert not list(tmp_path.glob("*"))
