"""The cache of versions on a host's disk, with a source that breaks, lies and stalls."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.engine_agent import artifact_download, staging
from adapters.engine_agent.artifact_download import StageError, StagingInterruptedError
from adapters.engine_agent.staging import Cache
from adapters.registry.artifacts import digest_of
from tests.support.waiting import until


@dataclass
class MemorySource:
    """A source of versions in memory. `breaks`: after how many bytes, once each. `ranges`: whether it can
    begin in the middle."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    ranges: bool = True
    gate: asyncio.Event | None = None

    def add(self, tmp_path: Path, letter: str, size: int = 1000) -> tuple[str, int]:
        directory = tmp_path / f"made-{letter}"
        directory.mkdir()
        config, weights = b'{"r": 8}', letter.encode() * (size - 8)
        (directory / "adapter_config.json").write_bytes(config)
        (directory / "adapter_model.safetensors").write_bytes(weights)
        hexdigest = digest_of(directory)
        self.files[hexdigest] = {"adapter_config.json": config, "adapter_model.safetensors": weights}
        return f"sha256:{hexdigest}", size

    @asynccontextmanager
    async def artifact(
        self, hexdigest: str, name: str, start: int
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        self.asked.append((hexdigest, name, start))
        if self.gate:
            await self.gate.wait()
        if hexdigest not in self.files:
            raise StageError("the gateway returned HTTP 404: there is none")
        start = start if self.ranges else 0
        yield start, self._chunks(self.files[hexdigest][name][start:])

    async def _chunks(self, content: bytes) -> AsyncIterator[bytes]:
        end = self.breaks.pop(0) if len(content) > 8 and self.breaks else None
        for i in range(0, len(content[:end]), 100):
            yield content[i : min(i + 100, end or len(content))]
        if end is not None:
            raise StagingInterruptedError("reset")


@dataclass
class Engine:
    paths: set[Path] | None = field(default_factory=set)

    async def __call__(self) -> frozenset[str] | None:
        return None if self.paths is None else frozenset(map(str, self.paths))


@dataclass
class StagingHarness:
    cache: Cache
    shelf: MemorySource
    engine: Engine
    now: list[float]
    tmp: Path

    def reopened(self) -> Cache:
        self.cache.close()
        self.cache = Cache(self.cache.root, 2500, self.shelf, self.engine, clock=lambda: self.now[0])
        self.cache.open()
        return self.cache


@pytest.fixture
def harness(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_download, "PAUSE_SECONDS", 0.0)
    shelf, engine, now = MemorySource(), Engine(), [1000.0]
    cache = Cache(tmp_path / "cache", 2500, shelf, engine, clock=lambda: now[0])
    cache.open()
    made = StagingHarness(cache, shelf, engine, now, tmp_path)
    yield made
    made.cache.close()


def left_over(cache: Cache) -> list[Path]:
    return list((cache.root / ".staging").iterdir())


async def test_a_version_is_fetched_once(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    path = await harness.cache.stage(digest, size)
    assert digest_of(path) == digest.removeprefix("sha256:") == path.name
    assert [oct(f.stat().st_mode & 0o777) for f in sorted(path.iterdir())] == ["0o444", "0o444"]
    assert path.stat().st_mode & 0o777 == 0o755
    assert await harness.cache.stage(digest, size) == path
    assert len(harness.shelf.asked) == 2
    assert (harness.cache.bytes, harness.cache.versions, left_over(harness.cache)) == (1000, 1, [])


async def test_all_who_want_one_version_share_its_download_and_it_goes_on_without_them(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    harness.shelf.gate = asyncio.Event()
    waiting = [asyncio.create_task(harness.cache.stage(digest, size)) for _ in range(10)]
    await until(lambda: harness.shelf.asked)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    harness.shelf.gate.set()
    await harness.cache.stage(digest, size)
    assert len(harness.shelf.asked) == 2


async def test_a_broken_download_goes_on_where_it_broke(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    harness.shelf.breaks = [250, 33]
    await harness.cache.stage(digest, size)
    assert [start for _, name, start in harness.shelf.asked if "model" in name] == [0, 250, 283]


async def test_or_from_the_beginning_where_the_source_knows_no_ranges(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    harness.shelf.breaks, harness.shelf.ranges = [250], False
    path = await harness.cache.stage(digest, size)
    assert digest_of(path) == path.name


async def test_a_download_that_breaks_again_and_again_is_given_up(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    harness.shelf.breaks = [1] * 10
    with pytest.raises(StageError, match="could not be fetched from the gateway: reset"):
        await harness.cache.stage(digest, size)
    assert (left_over(harness.cache), harness.cache.bytes) == ([], 0)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b[:-1] + b"x", lambda b: b + b"x"])
async def test_what_is_not_the_version_is_refused(harness, change):
    digest, size = harness.shelf.add(harness.tmp, "a")
    files = harness.shelf.files[digest.removeprefix("sha256:")]
    files["adapter_model.safetensors"] = change(files["adapter_model.safetensors"])
    with pytest.raises(StageError, match=r"damaged|larger than announced"):
        await harness.cache.stage(digest, size)
    assert not (harness.cache.root / digest.removeprefix("sha256:")).exists()
    assert (left_over(harness.cache), harness.cache.bytes) == ([], 0)


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../etc/passwd", "sha256:" + "A" * 64, "a" * 63])
async def test_a_digest_that_is_none_is_refused(harness, digest):
    with pytest.raises(StageError, match="is not a digest"):
        await harness.cache.stage(digest, 1)
    assert harness.shelf.asked == []


async def test_a_full_disk_is_named(harness, monkeypatch):
    digest, size = harness.shelf.add(harness.tmp, "a")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(artifact_download, "_write", full)
    with pytest.raises(StageError, match=r"The disk of the adapter cache, .*, is full"):
        await harness.cache.stage(digest, size)
    assert (left_over(harness.cache), harness.cache.bytes) == ([], 0)


# -- what is removed, and what is not


async def test_the_least_recently_used_goes_first(harness):
    (a, size), (b, _), (c, _) = (harness.shelf.add(harness.tmp, letter) for letter in "abc")
    paths = {}
    for digest in (a, b, a):
        harness.now[0] += 1
        paths[digest] = await harness.cache.stage(digest, size)
    harness.now[0] += staging.KEEP_SECONDS + 1
    await harness.cache.stage(c, size)
    assert paths[a].exists()
    assert not paths[b].exists()
    assert (harness.cache.bytes, left_over(harness.cache)) == (2000, [])


async def test_what_the_engine_lists_or_was_just_given_or_listed_a_moment_ago_stays(harness):
    (a, size), (b, _), (c, _) = (harness.shelf.add(harness.tmp, letter) for letter in "abc")
    first = await harness.cache.stage(a, size)
    second = await harness.cache.stage(b, size)
    harness.engine.paths = {first}
    with pytest.raises(StageError, match="raise --cache-size"):
        await harness.cache.stage(c, size)  # b was given to it a moment ago
    harness.now[0] += staging.KEEP_SECONDS + 1
    harness.cache.observe({str(second)})
    harness.engine.paths = {first}
    with pytest.raises(StageError, match="raise --cache-size"):
        await harness.cache.stage(c, size)  # it listed b a moment ago
    harness.now[0] += staging.KEEP_SECONDS + 1
    await harness.cache.stage(c, size)
    assert first.exists()
    assert not second.exists()


async def test_an_engine_that_does_not_answer_may_hold_all_that_it_held(harness):
    (a, size), (b, _), (c, _) = (harness.shelf.add(harness.tmp, letter) for letter in "abc")
    held = {str(await harness.cache.stage(digest, size)) for digest in (a, b)}
    harness.cache.observe(held)
    harness.now[0] += 10 * staging.KEEP_SECONDS
    harness.engine.paths = None
    with pytest.raises(StageError, match="raise --cache-size"):
        await harness.cache.stage(c, size)
    harness.cache.forget()  # its process is gone
    await harness.cache.stage(c, size)


async def test_two_that_come_at_once_do_not_take_the_same_room(harness):
    versions = [harness.shelf.add(harness.tmp, letter) for letter in "abc"]
    harness.shelf.gate = asyncio.Event()
    staged = [asyncio.create_task(harness.cache.stage(*version)) for version in versions]
    await until(lambda: len(harness.shelf.asked) == 2)
    harness.shelf.gate.set()
    results = await asyncio.gather(*staged, return_exceptions=True)
    assert sum(isinstance(r, StageError) for r in results) == 1
    assert harness.cache.bytes == 2000


async def test_what_never_fits_says_so(harness):
    digest, _ = harness.shelf.add(harness.tmp, "a", size=3000)
    with pytest.raises(StageError, match="3,000 bytes, more than"):
        await harness.cache.stage(digest, 3000)
    assert harness.shelf.asked == []


# -- after a restart


async def test_what_an_earlier_agent_left_is_believed_once_it_is_hashed(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    path = await harness.cache.stage(digest, size)
    cache = harness.reopened()
    assert (cache.versions, cache.bytes) == (1, 1000)
    assert await cache.stage(digest, size) == path
    assert len(harness.shelf.asked) == 2


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("left", [b"?", None], ids=["damaged", "gone"])
async def test_what_was_damaged_or_lost_meanwhile_is_fetched_again(harness, name, left):
    digest, size = harness.shelf.add(harness.tmp, "a")
    path = await harness.cache.stage(digest, size)
    (path / name).unlink()
    if left:
        (path / name).write_bytes(left)
    cache = harness.reopened()
    assert digest_of(await cache.stage(digest, size)) == path.name
    assert cache.versions == 1


@pytest.mark.parametrize("name", ["", "adapter_config.json"])
async def test_what_somebody_clears_away_while_the_agent_runs_is_fetched_again(harness, name):
    digest, size = harness.shelf.add(harness.tmp, "a")
    path = await harness.cache.stage(digest, size)
    if name:
        (path / name).unlink()
    else:
        shutil.rmtree(path)
    assert await harness.cache.stage(digest, size) == path
    assert f"sha256:{digest_of(path)}" == digest
    assert (harness.cache.versions, harness.cache.bytes) == (1, size)


async def test_room_is_made_of_what_somebody_has_cleared_away(harness):
    first, second = (harness.shelf.add(harness.tmp, letter) for letter in "ab")
    shutil.rmtree(await harness.cache.stage(*first))
    await harness.cache.stage(*second)
    harness.now[0] += staging.KEEP_SECONDS + 1
    await harness.cache.stage(*harness.shelf.add(harness.tmp, "c"))
    assert harness.cache.versions == 2


async def test_what_a_killed_agent_was_fetching_is_swept_away(harness):
    digest, size = harness.shelf.add(harness.tmp, "a")
    harness.shelf.gate = asyncio.Event()
    asyncio.create_task(harness.cache.stage(digest, size))  # noqa: RUF006 - ended below
    await until(lambda: left_over(harness.cache))
    cache = harness.cache
    harness.reopened()
    assert left_over(harness.cache) == []
    await cache.cancel_downloads()


def test_a_cache_belongs_to_one_agent(harness):
    with pytest.raises(StageError, match="use a different --cache-dir"):
        Cache(harness.cache.root, 1, harness.shelf, harness.engine).open()


async def test_the_oldest_of_an_earlier_agents_goes_first(harness):
    (a, size), (b, _), (c, _) = (harness.shelf.add(harness.tmp, letter) for letter in "abc")
    first, second = await harness.cache.stage(a, size), await harness.cache.stage(b, size)
    os.utime(first, (1, 1))
    await harness.reopened().stage(c, size)
    assert not first.exists()
    assert second.exists()
