"""What is published is whole, in one place per content, and survives whoever crashes beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.registry.artifacts import ArtifactStore, digest_of
from tests.support.lora import write_adapter


@pytest.fixture
def store(tmp_path):
    store = ArtifactStore(tmp_path / "artifacts")
    store.open()
    return store


def publish(store: ArtifactStore, fill: int = 0):
    with store.staging() as staged:
        write_adapter(staged, fill=fill)
        return store.publish(staged)


def visible(store: ArtifactStore) -> set[str]:
    return {path.name for path in store.root.iterdir()} - {".staging"}


def staged_now(store: ArtifactStore) -> list[str]:
    return [path.name for path in (store.root / ".staging").iterdir()]


def test_a_published_artifact_is_named_by_its_content(store, tmp_path):
    artifact = publish(store)
    source = write_adapter(tmp_path / "source")
    lines = "".join(
        f"{name}\0{hashlib.sha256((source / name).read_bytes()).hexdigest()}\n"
        for name in ("adapter_config.json", "adapter_model.safetensors")
    )
    expected = hashlib.sha256(lines.encode()).hexdigest()
    assert artifact.digest == f"sha256:{expected}"
    assert artifact.path == store.root / expected
    assert artifact.size_bytes == sum(path.stat().st_size for path in artifact.path.iterdir())
    assert digest_of(artifact.path) == expected
    assert staged_now(store) == []


def test_only_the_two_files_are_published(store):
    with store.staging() as staged:
        write_adapter(staged)
        (staged / "tokenizer_config.json").write_text("{}")
        artifact = store.publish(staged)
    names = {path.name for path in artifact.path.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}


def test_files_are_world_readable_and_not_writable(store):
    artifact = publish(store)
    assert stat.S_IMODE(artifact.path.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in artifact.path.iterdir()} == {0o444}


def test_the_same_content_is_kept_once_and_other_content_apart(store):
    first = publish(store)
    inodes = {path.stat().st_ino for path in first.path.iterdir()}
    assert publish(store) == first
    assert {path.stat().st_ino for path in first.path.iterdir()} == inodes
    assert publish(store, fill=1).path != first.path
    assert len(visible(store)) == 2


def test_a_damaged_artifact_is_made_whole_by_the_next_of_its_content(store):
    artifact = publish(store)
    weights = artifact.path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    os.truncate(weights, 10)
    assert publish(store) == artifact
    assert weights.read_bytes() == whole
    shutil.rmtree(artifact.path)
    artifact.path.write_text("in the way")
    assert publish(store) == artifact
    assert weights.read_bytes() == whole
    assert staged_now(store) == []


def test_what_is_not_published_leaves_nothing(store):
    def fail():
        with store.staging() as staged:
            write_adapter(staged)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert visible(store) == set()
    assert staged_now(store) == []


def test_many_at_once_publish_the_same_content(store):
    with ThreadPoolExecutor(8) as pool:
        artifacts = set(pool.map(lambda _: publish(store), range(24)))
    assert len(artifacts) == 1
    assert len(visible(store)) == 1
    assert staged_now(store) == []


CRASH = """
import sys
from pathlib import Path
from adapters.registry.artifacts import ArtifactStore
store = ArtifactStore(Path(sys.argv[1]))
with store.staging() as staged:
    (staged / "adapter_model.safetensors").write_bytes(b"half")
    print("staged", flush=True)
    sys.stdin.read()
"""


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(store):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CRASH, store.root], **pipes) as child:
        assert child.stdout.readline() == "staged\n"
        with store.staging() as mine:
            ArtifactStore(store.root).open()
            assert len(staged_now(store)) == 2
            child.kill()
            child.wait()
            ArtifactStore(store.root).open()
            assert staged_now(store) == [mine.parent.name]
