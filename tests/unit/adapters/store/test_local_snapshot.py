"""The registry on disk: whole and ours, or not at all."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.security.state_directory import inspect
from adapters.store import local_snapshot
from adapters.store.continuity import Position
from adapters.store.local_snapshot import NAME, PREVIOUS, LocalSnapshot, LocalSnapshotError

KEPT = LocalSnapshot(Position("us", 1, 10, "aa", ("them",)), {"tenant": {"a": "{}"}}, {"agent": "s"}, at=5)


def at(seq: int, epoch: int = 1, installation: str = "us") -> LocalSnapshot:
    return replace(KEPT, position=Position(installation, epoch, seq, "aa"))


def test_what_is_written_is_read(tmp_path: Path):
    assert local_snapshot.read(tmp_path / NAME) is None
    assert local_snapshot.write(tmp_path, KEPT)
    assert local_snapshot.read(tmp_path / NAME) == KEPT
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert inspect(tmp_path).foreign == ()  # what Florin keeps for itself


def test_the_newest_stays(tmp_path: Path):
    local_snapshot.write(tmp_path, at(10))
    assert not local_snapshot.write(tmp_path, at(9))
    assert not local_snapshot.write(tmp_path, at(10))
    assert local_snapshot.write(tmp_path, at(11))
    assert local_snapshot.write(tmp_path, at(9), force=True)
    assert not (tmp_path / PREVIOUS).exists()


@pytest.mark.parametrize("after", [at(2, epoch=2), at(2, installation="another")])
def test_what_an_earlier_epoch_or_installation_left_stays_beside_it(tmp_path: Path, after: LocalSnapshot):
    local_snapshot.write(tmp_path, at(10))
    assert local_snapshot.write(tmp_path, after)
    assert local_snapshot.read(tmp_path / NAME) == after
    assert local_snapshot.read(tmp_path / PREVIOUS) == at(10)


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_torn_file_is_refused_and_written_over(tmp_path: Path, cut: int):
    local_snapshot.write(tmp_path, KEPT)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(LocalSnapshotError, match="damaged"):
        local_snapshot.read(path)
    assert local_snapshot.write(tmp_path, at(3)) or cut == -1


@pytest.mark.parametrize(("old", "new"), [(b'"a":"{}"', b'"b":"{}"'), (b'"seq":10', b'"seq":"x"')])
def test_a_changed_file_is_refused(tmp_path: Path, old: bytes, new: bytes):
    local_snapshot.write(tmp_path, KEPT)
    path = tmp_path / NAME
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(LocalSnapshotError):
        local_snapshot.read(path)


def test_what_others_could_have_written_is_refused(tmp_path: Path):
    local_snapshot.write(tmp_path, KEPT)
    path = tmp_path / NAME
    path.chmod(0o620)
    with pytest.raises(LocalSnapshotError, match="private"):
        local_snapshot.read(path)
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalSnapshotError):
        local_snapshot.read(path)
    path.unlink()
    os.mkfifo(path)  # and nobody waits for a writer
    with pytest.raises(LocalSnapshotError):
        local_snapshot.read(path)


def test_several_workers_write_whole_files(tmp_path: Path):
    def work(start: int) -> None:
        for seq in range(start, 60, 4):
            local_snapshot.write(tmp_path, at(seq))
            assert local_snapshot.read(tmp_path / NAME) is not None

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = local_snapshot.read(tmp_path / NAME)
    assert found is not None
    assert found.position.seq == 59
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "registry-kept.lock"}


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    local_snapshot.write(tmp_path, at(10))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        local_snapshot.write(tmp_path, at(11))
    assert local_snapshot.read(tmp_path / NAME) == at(10)
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "registry-kept.lock"}


@pytest.mark.parametrize("count", [0, 1, local_snapshot._PART, local_snapshot._PART + 1])
def test_documents_are_written_in_parts(tmp_path: Path, count: int):
    texts = {f"a{number}": f'{{"é": "{number}"}}' for number in range(count)}
    kept = replace(KEPT, documents={"tenant": texts, "engine": {}, "key": texts})
    local_snapshot.write(tmp_path, kept)
    assert local_snapshot.read(tmp_path / NAME) == kept
