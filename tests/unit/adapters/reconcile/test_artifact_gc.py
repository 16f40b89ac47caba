"""When files of versions that are gone can go: the decision, and the act against concurrent publishers."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.drivers.driver import Listing
from adapters.errors import EngineUnreachableError, FencedError
from adapters.model import Engine, PendingDeletion, Version, dump
from adapters.placement.residency import Residency
from adapters.reconcile.artifact_gc import ArtifactCollector, plan
from adapters.reconcile.artifact_remover import FRESH_SECONDS, ArtifactRemover
from adapters.registry.artifacts import Artifact, ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.registry import Change
from tests.doubles.memory_store import MemoryStore

HOUR = 3600 * 1_000_000
NOW = 1_000 * HOUR
PENDING = PendingDeletion("acme/a@v1", "sha256:aa", "/artifacts/aa", since=NOW - 25 * HOUR)


def version(digest: str, *, number: int = 1, retired: int | None = None) -> Version:
    return Version("acme/a", number, digest, f"fl-{number}", "/x", "base", 8, 1, "/src", 0, retired)


def found(pending_deletions, *, versions=(), listed=None, placed=(), grace=24 * HOUR):
    listed = {"e1": frozenset()} if listed is None else listed
    return plan(pending_deletions, versions, listed, placed, now=NOW, grace=grace)


def test_what_no_engine_can_hold_and_nothing_needs_can_go():
    pending_deletions = {"fl-1": PENDING, "fl-2": replace(PENDING, since=NOW - 30 * HOUR)}
    assert found(pending_deletions).ready == {"sha256:aa": ("fl-1", "fl-2")}
    assert found(pending_deletions, versions=[version("sha256:bb"), version("sha256:aa", retired=1)]).ready
    assert found({"fl-1": PENDING}, listed={}).ready, "no engines at all"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"placed": {"fl-1"}}, "the version still has a slot"),
        ({"listed": {"e1": frozenset({"fl-1"}), "e2": None}}, "e1 still holds it"),
        ({"grace": 26 * HOUR}, "its grace period has not passed"),
        ({"listed": {"e1": frozenset(), "e2": None}}, "e2 does not respond and may hold it"),
    ],
)
def test_a_grave_that_must_stay_says_why(how, why):
    decision = found({"fl-1": PENDING}, **how)
    assert decision.waiting == {"fl-1": why}
    assert not decision.ready
    assert not decision.closed


def test_content_that_a_version_needs_stays_though_the_grave_can_go():
    decision = found({"fl-1": PENDING}, versions=[version("sha256:aa", number=2)])
    assert (decision.ready, decision.closed) == ({}, ("fl-1",))


def test_content_stays_for_the_sake_of_its_other_grave():
    other = replace(PENDING, since=NOW - HOUR)
    decision = found({"fl-1": PENDING, "fl-2": other})
    assert decision.ready == {}
    assert set(decision.waiting) == {"fl-1", "fl-2"}


# -- the files


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    store = ArtifactStore(tmp_path / "artifacts")
    store.open()
    return store


def publish(artifacts: ArtifactStore, content: str = "w"):
    with artifacts.staging() as staged:
        (staged / "adapter_config.json").write_text("{}")
        (staged / "adapter_model.safetensors").write_text(content)
        return artifacts.publish(staged)


def age(path: Path, seconds: float = FRESH_SECONDS + 60) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def aged(artifacts: ArtifactStore) -> tuple[Artifact, ArtifactRemover]:
    """Content that nobody has published lately."""
    artifact = publish(artifacts)
    age(artifact.path)
    return artifact, ArtifactRemover(artifacts)


def detached(artifacts: ArtifactStore) -> tuple[Artifact, ArtifactRemover]:
    artifact, remover = aged(artifacts)
    remover.detach(artifact.digest)
    return artifact, remover


def no_one(_: str) -> bool:
    return False


def test_what_was_just_published_again_stays(artifacts):
    artifact, remover = aged(artifacts)
    assert publish(artifacts) == artifact
    assert remover.detach(artifact.digest) is False
    age(artifact.path, -500)  # some clock is ahead
    assert remover.detach(artifact.digest) is False
    assert artifact.path.exists()


def test_what_was_freshened_as_it_was_taken_is_put_back(artifacts):
    artifact, remover = detached(artifacts)
    (entry,) = (artifacts.root / ".trash").iterdir()
    os.utime(entry)  # a publisher touched it a moment before the rename
    assert remover.delete_or_restore(no_one) == set()
    assert artifact.path.exists()


def test_what_was_published_anew_meanwhile_wins(artifacts):
    artifact, remover = detached(artifacts)
    publish(artifacts)
    assert remover.delete_or_restore(lambda _: True) == set()
    assert artifact.path.exists()
    assert remover.is_empty()


def test_what_a_process_that_died_left_half_deleted_is_never_put_back(artifacts, monkeypatch):
    artifact, remover = detached(artifacts)

    def die(directory):
        (directory / "adapter_config.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            remover.delete_or_restore(no_one)
    assert remover.delete_or_restore(lambda _: True) == set()
    assert remover.is_empty()
    assert not artifact.path.exists()


def test_what_is_removed_while_a_publisher_sets_its_time_is_written_anew(artifacts, monkeypatch):
    artifact, remover = aged(artifacts)
    set_time = os.utime

    def looked_up_before(path, *args):
        if Path(path) == artifact.path and remover.detach(artifact.digest):
            remover.delete_or_restore(no_one)
            return
        set_time(path, *args)

    monkeypatch.setattr(os, "utime", looked_up_before)
    assert (publish(artifacts).path / "adapter_model.safetensors").exists()


# -- the collector


class Lists:
    """Engines that list what they are told to, or do not answer."""

    def __init__(self) -> None:
        self.holding: dict[str, set[str] | None] = {}

    async def serving(self, engine: Engine, *, timeout: float) -> Listing:
        names = self.holding.get(engine.name, set())
        if names is None:
            raise EngineUnreachableError("away")
        return Listing({}, frozenset(names), None)


class Collector:
    def __init__(self, artifacts: ArtifactStore) -> None:
        self.store = MemoryStore(clock=lambda: 1000)
        self.catalog = Catalog()
        self.lists = Lists()
        self.artifacts = artifacts
        self.collector = ArtifactCollector(
            self.store, self.catalog, Residency(), self.lists, ArtifactRemover(artifacts),  # type: ignore[arg-type]
            grace=24 * 3600, probe_timeout=1, now=lambda: NOW,
        )  # fmt: skip

    async def add(self, *changes: Change) -> None:
        await self.store.commit(changes)
        self.catalog.load((await self.store.snapshot()).documents)

    async def collect(self, owner: str = "w") -> None:
        fence = Fence("reconciler", await self.store.lead("reconciler", owner, 5000))
        await self.collector.collect(fence)
        self.catalog.load((await self.store.snapshot()).documents)


@pytest.fixture
async def harness(artifacts):
    harness = Collector(artifacts)
    await harness.add(Change("engine", "e1", dump(Engine("e1", "http://e1", "base", "h", 1, 8))))
    return harness


async def buried(harness: Collector, name: str = "fl-1", content: str = "w", *, aged: bool = True):
    artifact = publish(harness.artifacts, content)
    if aged:
        age(artifact.path)
    pending_deletion = PendingDeletion("acme/a@v1", artifact.digest, str(artifact.path), NOW - 25 * HOUR)
    await harness.add(Change("pending_deletion", name, dump(pending_deletion)))
    return artifact


async def test_a_grave_is_dug_up_with_a_note(harness):
    artifact = await buried(harness)
    harness.lists.holding["e1"] = {"fl-1"}
    await harness.collect()
    assert artifact.path.exists()
    harness.lists.holding["e1"] = None
    await harness.collect()
    assert artifact.path.exists()
    harness.lists.holding["e1"] = set()
    await harness.collect()
    assert not artifact.path.exists()
    assert harness.catalog.pending_deletions == {}
    (entry,) = await harness.store.audit()
    assert (entry.note.action, entry.note.subject, entry.note.version) == ("version.erase", "acme/a", "v1")
    assert entry.note.details == {"digest": artifact.digest, "files": True}


async def test_a_version_that_this_worker_has_not_heard_of_keeps_its_files(harness):
    artifact = await buried(harness)
    added = version(artifact.digest, number=2)
    await harness.store.commit([Change("version", added.id, dump(added))])  # the mirror does not know it yet
    await harness.collector.collect(Fence("reconciler", await harness.store.lead("reconciler", "w", 5000)))
    assert artifact.path.exists()
    await harness.add()
    await harness.collect()
    assert harness.catalog.pending_deletions == {}, "the grave goes, the files stay"
    assert artifact.path.exists()


async def test_what_was_published_lately_is_left_for_later(harness):
    artifact = await buried(harness, aged=False)
    await harness.collect()
    assert artifact.path.exists()
    assert "fl-1" in harness.catalog.pending_deletions


async def test_files_that_are_not_florins_are_never_removed(harness, tmp_path):
    elsewhere = tmp_path / "elsewhere" / hashlib.sha256(b"").hexdigest()
    elsewhere.mkdir(parents=True)
    pending_deletion = PendingDeletion(
        "acme/a@v1", f"sha256:{elsewhere.name}", str(elsewhere), NOW - 25 * HOUR
    )
    await harness.add(Change("pending_deletion", "fl-1", dump(pending_deletion)))
    await harness.collect()
    assert elsewhere.exists()
    assert harness.catalog.pending_deletions == {}


async def test_files_that_are_gone_already_end_the_grave(harness):
    artifact = await buried(harness)
    shutil.rmtree(artifact.path)
    await harness.collect()
    assert harness.catalog.pending_deletions == {}


async def test_a_collector_who_leads_no_longer_removes_nothing(harness):
    artifact = await buried(harness)
    stale = Fence("reconciler", await harness.store.lead("reconciler", "w", 5000))
    await harness.store.resign("reconciler", "w")
    await harness.store.lead("reconciler", "other", 5000)
    with pytest.raises(FencedError):
        await harness.collector.collect(stale)
    assert artifact.path.exists()
    assert "fl-1" in harness.catalog.pending_deletions


async def test_what_a_collector_died_over_is_settled_by_the_next(harness):
    artifact = await buried(harness)
    ArtifactRemover(harness.artifacts).detach(artifact.digest)
    await harness.collect()
    assert ArtifactRemover(harness.artifacts).is_empty()
    assert harness.catalog.pending_deletions == {}
