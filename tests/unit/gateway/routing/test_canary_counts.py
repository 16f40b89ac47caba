"""What of a request counts for its canary's comparison, and that it is reported in batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from adapters.errors import StoreUnavailableError
from adapters.model import Adapter, Guard, Trial, Version
from adapters.registry.canary_figures import SLICES, ArmName, Comparison, bucket, field_of
from adapters.registry.catalog import Target
from gateway.routing.canary_counts import LOSS_SECONDS, CanaryCounts
from tests.doubles.memory_store import MemoryStore
from tests.support.harness import engine_document

MS = 1_000_000
SINCE = 1_795_000_000_000_000
GUARD = Guard("rollback", window_seconds=SLICES)  # a slice a second


def version(number: int) -> Version:
    return Version(
        adapter="acme/support", number=number, digest="", engine_name=f"fl-{number}", path="", base_model="base",
        rank=8, size_bytes=1, source="", created=0,
    )  # fmt: skip


COMPARISON = Comparison.of(
    Adapter("acme/support", 1, canary=2, weight=10, guard=GUARD, canary_since=SINCE), "fl-2"
)
CANARY = Target(version(2), "base", comparison=COMPARISON)
LIVE = Target(version(1), "base", canary=CANARY, weight=10, comparison=COMPARISON)


@dataclass
class Record:
    outcome: str | None = "ok"
    first: int = 0
    ended: int = 100 * MS
    start: int = 0
    tokens: tuple[int, int | None, int] = (5, None, 10)


@dataclass
class Lease:
    """What is looked at of one."""

    record: Record | None = field(default_factory=Record)
    trouble: str = ""
    abandoned: str = ""
    streams: bool = True
    version: str = "fl-2"
    state: Any = None

    def on(self, engine: str) -> Lease:
        self.state = type("State", (), {"engine": type("Engine", (), {"name": engine})})
        return self


class Counted:
    def __init__(self) -> None:
        self.now = SINCE
        self.store = MemoryStore()
        self.counts = CanaryCounts(self.store, lambda: self.now)

    def request(
        self, *leases: Lease, target: Target = CANARY, answers: int = 1, loads: int = 0, batch: bool = False
    ) -> None:
        request = self.counts.begin(target, batch=batch)
        assert request is not None
        for lease in leases:
            request.ended(lease, answers=answers, loads=loads)  # type: ignore[arg-type]

    async def found(self, arm: str = "canary") -> dict[str, int]:
        await self.counts.report()
        counts = await self.store.canary_counts(COMPARISON.key)
        return {
            name.removeprefix(f"0 {arm} "): n for name, n in counts.items() if name.startswith(f"0 {arm} ")
        }


@pytest.fixture
def counted() -> Counted:
    return Counted()


STREAM = Record(first=19 * MS)


@pytest.mark.parametrize(
    ("record", "how", "latencies"),
    [
        (STREAM, {}, {f"f{bucket(19 * MS)}", f"t{bucket(9 * MS)}"}),
        (Record(), {}, {f"t{bucket(10 * MS)}"}),  # not a stream: all of the time is for its tokens
        (Record(tokens=(5, None, 0)), {"answers": 0}, {f"f{bucket(100 * MS)}"}),  # vectors
        (STREAM, {"loads": 1}, set()),  # it has waited for a load
        (STREAM, {"batch": True}, set()),
        (STREAM, {"answers": 2}, {f"f{bucket(19 * MS)}"}),
        (Record(tokens=(5, None, 0)), {}, set()),
        (Record(first=19 * MS, tokens=(5, None, 1)), {}, {f"f{bucket(19 * MS)}"}),
    ],
)
async def test_latencies(counted: Counted, record: Record, how: dict[str, Any], latencies: set[str]):
    counted.request(Lease(record), **how)
    assert await counted.found() == {"n": 1} | dict.fromkeys(latencies, 1)


@pytest.mark.parametrize("why", ["status_5xx", "malformed", "died", "hung", "down", "idle", "first_byte"])
async def test_what_the_engine_failed_counts_once_though_another_engine_answers(counted: Counted, why: str):
    failed, answered = Lease(Record("failover"), trouble=why).on("a"), Lease(STREAM).on("b")
    counted.request(failed, answered)
    assert await counted.found() == {"n": 1, "k": 1}


@pytest.mark.parametrize("why", ["", "busy", "unreachable", "denied", "unknown_model", "aborted", "deadline"])
async def test_what_says_nothing_about_the_version_does_not_count(counted: Counted, why: str):
    counted.request(Lease(Record("failover"), trouble=why).on("a"), Lease(STREAM).on("b"))
    assert (await counted.found())["n"] == 1
    assert "k" not in await counted.found()


async def test_neither_clients_mistakes_nor_their_leaving_count(counted: Counted):
    for outcome in ("rejected", "orphaned"):
        counted.request(Lease(Record(outcome)).on("a"))
    counted.request(Lease(Record("client_abort", first=9 * MS)).on("a"))
    counted.request(Lease(Record("client_abort"), streams=False).on("a"))
    counted.request(Lease(None))
    assert await counted.found() == {}


async def test_who_waits_in_vain_for_a_first_token_has_waited(counted: Counted):
    counted.request(Lease(Record("client_abort", ended=30_000 * MS)).on("a"))
    assert await counted.found() == {f"f{bucket(30_000 * MS)}": 1}


async def test_an_engines_death_counts_once_for_each_version(counted: Counted):
    for _ in range(5):
        counted.request(Lease(Record("failover"), trouble="died").on("a"))
    counted.request(Lease(Record("failover"), trouble="died", version="fl-1").on("a"), target=LIVE)
    counted.request(Lease(Record("failover"), abandoned="down").on("b"))
    assert await counted.found() == {"n": 2, "k": 2}
    assert await counted.found("live") == {"n": 1, "k": 1}
    counted.now += LOSS_SECONDS * 1_000_000 + 1
    counted.request(Lease(Record("failover"), trouble="died").on("a"))
    await counted.counts.report()
    assert (await counted.store.canary_counts(COMPARISON.key))[field_of(10, "canary", "k")] == 1


@pytest.mark.parametrize("arm", ["canary", "live"])
async def test_in_a_trial_what_other_engines_answer_does_not_count(counted: Counted, arm: ArmName):
    """A death is one failure, and the requests that it cost are no successes."""
    tried = replace(engine_document("new"), trial=Trial(5, GUARD, SINCE))
    for _ in range(5):
        request = counted.counts.of_trial(tried, arm, "new", batch=False)
        for lease in (Lease(Record("failover"), trouble="died").on("new"), Lease(STREAM).on("b")):
            request.ended(lease, answers=1, loads=0)  # type: ignore[arg-type]  # what it reads of a lease
    await counted.counts.report()
    assert await counted.store.canary_counts(Comparison.of_trial(tried).key) == {
        field_of(0, arm, name): 1 for name in "nk"
    }


async def test_versions_that_nobody_drew_by_lot_do_not_count(counted: Counted):
    assert counted.counts.begin(Target(version(2), "base"), batch=False) is None
    assert counted.counts.begin(Target(None, "base"), batch=False) is None


async def test_counts_of_a_failed_report_are_forgotten_not_repeated(counted: Counted):
    counted.request(Lease(STREAM))
    counted.store.away = True
    with pytest.raises(StoreUnavailableError):
        await counted.counts.report()
    counted.store.away = False
    assert await counted.found() == {}
    counted.request(Lease(STREAM))
    assert (await counted.found())["n"] == 1
