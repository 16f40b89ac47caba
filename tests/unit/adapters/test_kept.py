"""The registry on disk: whole and ours, or not at all."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from adapters import kept
from adapters.continuity import Position
from adapters.kept import NAME, PREVIOUS, Kept, KeptError
from adapters.private_state import look

KEPT = Kept(Position("us", 1, 10, "aa", ("them",)), {"tenant": {"a": "{}"}}, {"agent": "s"}, at=5)


def at(seq: int, epoch: int = 1, installation: str = "us") -> Kept:
    return replace(KEPT, position=Position(installation, epoch, seq, "aa"))


def test_what_is_written_is_read(tmp_path: Path):
    assert kept.read(tmp_path / NAME) is None
    assert kept.write(tmp_path, KEPT)
    assert kept.read(tmp_path / NAME) == KEPT
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert look(tmp_path).foreign == ()  # what Florin keeps for itself


def test_the_newest_stays(tmp_path: Path):
    kept.write(tmp_path, at(10))
    assert not kept.write(tmp_path, at(9))
    assert not kept.write(tmp_path, at(10))
    assert kept.write(tmp_path, at(11))
    assert kept.write(tmp_path, at(9), anyway=True)
    assert not (tmp_path / PREVIOUS).exists()


@pytest.mark.parametrize("after", [at(2, epoch=2), at(2, installation="another")])
def test_what_an_earlier_epoch_or_installation_left_stays_beside_it(tmp_path: Path, after: Kept):
    kept.write(tmp_path, at(10))
    assert kept.write(tmp_path, after)
    assert kept.read(tmp_path / NAME) == after
    assert kept.read(tmp_path / PREVIOUS) == at(10)


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_torn_file_is_refused_and_written_over(tmp_path: Path, cut: int):
    kept.write(tmp_path, KEPT)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(KeptError, match="damaged"):
        kept.read(path)
    assert kept.write(tmp_path, at(3)) or cut == -1


@pytest.mark.parametrize(("old", "new"), [(b'"a":"{}"', b'"b":"{}"'), (b'"seq":10', b'"seq":"x"')])
def test_a_changed_file_is_refused(tmp_path: Path, old: bytes, new: bytes):
    kept.write(tmp_path, KEPT)
    path = tmp_path / NAME
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(KeptError):
        kept.read(path)


def test_what_others_could_have_written_is_refused(tmp_path: Path):
    kept.write(tmp_path, KEPT)
    path = tmp_path / NAME
    path.chmod(0o620)
    with pytest.raises(KeptError, match="private"):
        kept.read(path)
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeptError):
        kept.read(path)
    path.unlink()
    os.mkfifo(path)  # and nobody waits for a writer
    with pytest.raises(KeptError):
        kept.read(path)


def test_several_workers_write_whole_files(tmp_path: Path):
    def work(start: int) -> None:
        for seq in range(start, 60, 4):
            kept.write(tmp_path, at(seq))
            assert kept.read(tmp_path / NAME) is not None

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = kept.read(tmp_path / NAME)
    assert found is not None
    assert found.position.seq == 59
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "registry-kept.lock"}


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept.write(tmp_path, at(10))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        kept.write(tmp_path, at(11))
    assert kept.read(tmp_path / NAME) == at(10)
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "registry-kept.lock"}
