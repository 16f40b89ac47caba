"""What is built once per machine: whole or not at all, and by one process at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deploy.demo import cache
from tests.support.waiting import until_now


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "florin"


def test_is_built_once(home: Path):
    calls = []

    def build(directory: Path) -> None:
        calls.append(directory)
        (directory / "file").write_text("content")

    first, second = cache.built("thing-1", build), cache.built("thing-1", build)
    assert first == second == home / "thing-1"
    assert calls == [first]
    assert (first / "file").read_text() == "content"


def test_an_interrupted_build_starts_over_from_nothing(home: Path):
    def interrupted(directory: Path) -> None:
        (directory / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.built("thing", interrupted)
    assert (home / "thing" / "half").exists()
    directory = cache.built("thing", lambda d: (d / "whole").touch())
    assert {p.name for p in directory.iterdir()} == {"whole", cache.COMPLETE}


def test_what_is_no_longer_usable_is_built_anew():
    cache.built("thing", lambda directory: (directory / "python3.11").touch())
    path = cache.built("thing", lambda directory: (directory / "python3.13").touch(), usable=lambda _: False)
    assert {p.name for p in path.iterdir()} == {"python3.13", cache.COMPLETE}


def test_parallel_callers_wait_for_the_one_that_builds():
    builds, waits = [], []

    def build(directory: Path) -> None:
        builds.append(directory)
        until_now(lambda: waits)  # the others start before the build ends

    def call() -> None:
        cache.built("thing", build, lambda: waits.append(1))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert waits


def test_digest_depends_on_every_part_and_its_bounds():
    assert cache.digest("a", b"b") == cache.digest(b"a", "b")
    assert len({cache.digest("ab"), cache.digest("a", "b"), cache.digest("b", "a"), cache.digest("")}) == 4


def test_falls_back_to_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_home() == tmp_path / ".cache" / "florin"
