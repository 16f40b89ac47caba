"""Versions' files in a directory and in a bucket: published whole, verified as they are read, and removed only if
nobody publishes them again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.model import Version
from adapters.reconcile.artifact_remover import FRESH_SECONDS, ArtifactRemover
from adapters.reconcile.bucket_remover import BucketRemover
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.bucket_artifacts import BucketArtifacts
from tests.support.archives import CONFIG, WEIGHTS
from tests.support.s3 import contents, new_bucket, s3_server, set_environment

LATER = FRESH_SECONDS + 60


@dataclass
class Storage:
    """One store. `age(hexdigest)`: as if what is there had been written an hour ago. `damage(hexdigest,
    content)`: puts other weights there, or none."""

    store: ArtifactStore
    another: Callable[[], ArtifactStore]
    remover: ArtifactRemover | BucketRemover
    age: Callable[[str], None]
    damage: Callable[[str, bytes | None], None]
    bucket: Any = None

    def publish(self, content: bytes = b"weights", *, aged: bool = False):
        with self.store.staging() as staged:
            (staged / CONFIG).write_text("{}")
            (staged / WEIGHTS).write_bytes(content)
            (staged / "tokenizer_config.json").write_text("{}")
            artifact = self.store.publish(staged)
        if aged:
            self.age(artifact.digest.removeprefix("sha256:"))
        return artifact

    def weights(self, digest: str) -> bytes | None:
        with self.store.files(digest) as files:
            return None if files is None else (files / WEIGHTS).read_bytes()


@pytest.fixture(scope="module")
def endpoint():
    with s3_server() as url:
        yield url


class AgedBucket(BucketArtifacts):
    """A bucket that remembers when it was written to, so that a test can change it."""

    written: dict[str, float]

    def _put(self, hexdigest: str, files: Path, name: str) -> None:
        super()._put(hexdigest, files, name)
        self.written[hexdigest] = time.time()

    def changed(self, hexdigest: str) -> float | None:
        return None if super().changed(hexdigest) is None else self.written[hexdigest]


@pytest.fixture(params=["directory", "bucket"])
def storage(request, tmp_path: Path, monkeypatch):
    root = tmp_path / "artifacts"
    if request.param == "directory":
        store = ArtifactStore(root)
        store.open("one")

        def damage(hexdigest: str, content: bytes | None) -> None:
            path = root / hexdigest / WEIGHTS
            path.chmod(0o644)
            path.unlink() if content is None else path.write_bytes(content)

        def age(hexdigest: str) -> None:
            os.utime(root / hexdigest, (time.time() - LATER,) * 2)

        yield Storage(store, lambda: ArtifactStore(root), ArtifactRemover(store), age, damage)
        return
    endpoint = request.getfixturevalue("endpoint")
    set_environment(monkeypatch, tmp_path, endpoint)
    with new_bucket(endpoint) as bucket:
        url = f"s3://{bucket.name}/fleet/a"
        store = AgedBucket(root, url, sleep=lambda _: time.sleep(0.005))
        store.written = {}
        store.open("one")

        def damage(hexdigest: str, content: bytes | None) -> None:
            place = {"Bucket": bucket.name, "Key": f"fleet/a/{hexdigest}/{WEIGHTS}"}
            bucket.delete_object(**place) if content is None else bucket.put_object(**place, Body=content)

        def age(hexdigest: str) -> None:
            store.written[hexdigest] -= LATER

        another = partial(BucketArtifacts, tmp_path / "other", url)
        yield Storage(store, another, BucketRemover(store), age, damage, bucket)


def no_one(_: str) -> bool:
    return False


def test_what_is_published_is_read_back_and_verified(storage):
    artifact = storage.publish()
    hexdigest = artifact.digest.removeprefix("sha256:")
    assert (
        artifact.location == f"{storage.store.where}/{hexdigest}" == storage.store.location(artifact.digest)
    )
    assert storage.publish() == artifact
    assert storage.weights(artifact.digest) == b"weights"
    assert storage.weights(f"sha256:{'0' * 64}") is None
    storage.damage(hexdigest, b"weighty")  # as long as before
    assert storage.weights(artifact.digest) is None
    storage.damage(hexdigest, None)
    assert storage.weights(artifact.digest) is None
    storage.publish()
    assert storage.weights(artifact.digest) == b"weights"


def test_missing_files_are_problems(storage):
    artifact = storage.publish()

    def version(number: int, digest: str) -> Version:
        location = storage.store.location(digest)
        return Version(
            "acme/a", number, digest, f"fl-{number}", location, "base", 8, artifact.size_bytes, "/s", 0
        )

    versions = [version(1, artifact.digest), version(2, f"sha256:{'0' * 64}")]
    assert storage.store.problems(versions).keys() == {"acme/a@v2"}
    storage.damage(artifact.digest.removeprefix("sha256:"), b"w")
    assert storage.store.problems(versions).keys() == {"acme/a@v1", "acme/a@v2"}


def test_taken_settled_and_gone(storage):
    artifact = storage.publish(aged=True)
    assert storage.remover.detach(artifact.digest) is True
    assert not storage.remover.is_empty()
    assert storage.remover.delete_or_restore(no_one) == {artifact.digest}
    assert storage.remover.is_empty()
    assert not storage.remover.exists(artifact.digest)
    assert storage.remover.detach(artifact.digest) is None
    assert storage.weights(artifact.digest) is None


def test_what_was_just_published_or_read_stays(storage):
    artifact = storage.publish(aged=True)
    for use in (storage.publish, lambda: storage.weights(artifact.digest)):
        storage.age(artifact.digest.removeprefix("sha256:"))
        use()
        assert storage.remover.detach(artifact.digest) is False
    assert storage.remover.is_empty()
    assert storage.weights(artifact.digest) == b"weights"


def test_what_a_version_turns_out_to_need_is_put_back(storage):
    artifact = storage.publish(aged=True)
    storage.remover.detach(artifact.digest)
    assert storage.remover.delete_or_restore(lambda digest: digest == artifact.digest) == set()
    assert storage.weights(artifact.digest) == b"weights"
    assert storage.remover.is_empty()


def test_what_another_installation_may_need_is_not_taken(storage):
    artifact = storage.publish(aged=True)
    assert list(storage.store.others()) == []
    assert storage.remover.detach(artifact.digest) is True
    storage.another().open("two")  # between the two looks
    assert storage.remover.delete_or_restore(no_one) == set()
    assert len(storage.store.others()) == 1
    assert storage.remover.detach(artifact.digest) is False
    assert storage.weights(artifact.digest) == b"weights"


def test_publishers_and_removers_at_once_never_lose_what_was_published(storage):
    """Each round, one publishes content that somebody else takes away at the same moment."""
    lost = []
    for round_ in range(4 if storage.bucket else 40):
        content = b"%d" % round_
        artifact = storage.publish(content, aged=True)
        start, done = threading.Barrier(2), threading.Event()

        def remove(digest=artifact.digest, start=start, done=done):
            start.wait()
            storage.remover.detach(digest)
            storage.remover.delete_or_restore(no_one)
            while not done.is_set():  # a publisher may wait for the next look
                storage.remover.delete_or_restore(no_one)

        removal = threading.Thread(target=remove)
        removal.start()
        start.wait()
        storage.publish(content)
        done.set()
        removal.join()
        storage.remover.delete_or_restore(no_one)
        if storage.weights(artifact.digest) != content:
            lost.append(round_)
    assert not lost


# -- a bucket alone


@pytest.mark.parametrize("storage", ["bucket"], indirect=True)
def test_a_publisher_waits_for_a_remover_that_has_looked_before(storage):
    hexdigest = storage.publish(aged=True).digest.removeprefix("sha256:")
    assert storage.remover.detach(f"sha256:{hexdigest}") is True
    deleted = []

    def go_on(_: float) -> None:
        storage.store.delete(hexdigest)
        deleted.append(hexdigest)

    storage.store._sleep = go_on
    storage.publish()
    if not deleted:
        go_on(0.0)
    assert storage.weights(f"sha256:{hexdigest}") == b"weights"


@pytest.mark.parametrize("storage", ["bucket"], indirect=True)
def test_a_long_upload_leaves_a_remover_its_time(storage, monkeypatch):
    """The clock of the wait starts when the files are there."""
    hexdigest = storage.publish(aged=True).digest.removeprefix("sha256:")
    clock, put = [0.0], storage.store._put

    def put_slowly(*file: Any) -> None:
        put(*file)
        clock[0] += 1000.0

    def look_again(_: float) -> None:
        storage.remover.delete_or_restore(no_one)

    slow = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("adapters.registry.bucket_artifacts.time", slow)
    storage.store._put, storage.store._sleep = put_slowly, look_again
    storage.store.mark(hexdigest)
    storage.publish()
    assert storage.weights(f"sha256:{hexdigest}") == b"weights"


@pytest.mark.parametrize("storage", ["bucket"], indirect=True)
def test_what_a_remover_takes_before_the_publisher_looks_is_written_anew(storage):
    hexdigest = storage.publish(aged=True).digest.removeprefix("sha256:")
    looks = []

    def look(hexdigest: str) -> bool:
        if not looks:
            storage.store.delete(hexdigest)
        looks.append(hexdigest)
        return False

    storage.store._being_removed = look
    storage.publish()
    assert storage.weights(f"sha256:{hexdigest}") == b"weights"
    assert len(looks) == 3  # two of the publisher, one of the reader


@pytest.mark.parametrize("storage", ["bucket"], indirect=True)
def test_what_lies_in_a_bucket_is_what_the_documentation_says(storage):
    artifact = storage.publish()
    hexdigest = artifact.digest.removeprefix("sha256:")
    at = f"fleet/a/{hexdigest}"
    objects = contents(storage.bucket)
    assert objects.keys() == {f"{at}/{CONFIG}", f"{at}/{WEIGHTS}", "fleet/a/.installations/one"}
    assert list((storage.store.root / ".staging").iterdir()) == []
    storage.store.check()


@pytest.mark.parametrize("storage", ["bucket"], indirect=True)
def test_a_bucket_that_is_away_costs_no_start(storage, monkeypatch, caplog):
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("adapters.registry.bucket_artifacts._RETRIES", 0)
    late = storage.another()
    late.open("two")
    place = storage.store.where
    assert f"FLORIN_ARTIFACT_BUCKET: {place}: connection refused" in caplog.messages
    store = storage.another()
    store.open("three")
    for call in (store.check, store.others, lambda: store.problems([]), BucketRemover(store).is_empty):
        with pytest.raises(OSError, match=place):
            call()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert storage.store.others() == []
    replace(storage, store=late).publish()
    assert storage.store.others() == [f"{place}/.installations/two"], "its files are safe from others now"
