"""The guard's worker: decides once, decides nothing while it is blind, and says what it did."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.errors import StoreUnavailableError
from adapters.model import Adapter, CanaryOutcome, Guard, Version
from adapters.registry.canary_figures import Comparison
from gateway.evaluations import operations as evaluations
from gateway.evaluations.schemas import LastEvaluation
from gateway.fleet.adapters.operations import canaries
from gateway.fleet.adapters.operations.canary_watch import SHOWN_SECONDS, CanaryWatch
from tests.support.samples import sample

NOW = 1_795_000_000_000_000
BAD = {"0 canary n": 100, "0 canary k": 50, "0 live n": 900}
VERSION = Version(
    adapter="acme/support", number=2, digest="", engine_name="fl-2", path="", base_model="base", rank=8,
    size_bytes=1, source="", created=0,
)  # fmt: skip
ADAPTER = Adapter(
    "acme/support", 1, canary=2, weight=10, latest=2, canary_since=NOW - 60_000_000, guard=Guard("rollback")
)


def judged(adapter: Adapter, counts: dict[str, int], now: int = NOW) -> str:
    found = canaries.judged(adapter, VERSION, counts, now).judgement
    return found.verdict if found else ""


def test_figures_older_than_the_window_decide_nothing():
    assert judged(ADAPTER, BAD) == "rollback"
    assert judged(ADAPTER, BAD, NOW + 1_900 * 1_000_000) == "waiting"


def test_a_held_canary_stays_held_whatever_its_figures():
    held = replace(ADAPTER, outcome=CanaryOutcome("hold", 2, "Slow.", NOW))
    for counts in ({}, BAD, {"0 canary n": 100, "0 live n": 900}):
        assert judged(held, counts) == "hold"


def test_without_a_guard_there_are_figures_and_no_verdict():
    figures = canaries.judged(replace(ADAPTER, guard=None), VERSION, BAD, NOW).answer()
    assert (figures.verdict, figures.reason) == (None, None)
    assert figures.canary.error_rate == 0.5
    assert figures.live.model_dump() == {
        "requests": 900, "failures": 0, "error_rate": 0.0,
        "first_token": {"p50": None, "p95": None}, "per_token": {"p50": None, "p95": None},
    }  # fmt: skip


@dataclass
class Store:
    counts: dict[str, int]
    away: bool = False

    async def canary_counts(self, comparison: str) -> dict[str, int]:
        assert comparison == Comparison.of(ADAPTER, VERSION.engine_name).key
        if self.away:
            raise StoreUnavailableError("away")
        return self.counts


def watch(store: Store, adapter: Adapter = ADAPTER) -> CanaryWatch:
    names = {adapter.name}
    catalog = SimpleNamespace(
        adapters={adapter.name: adapter},
        versions={VERSION.id: VERSION},
        with_canary=names if adapter.canary else set(),
        with_outcome=names if adapter.outcome else set(),
    )
    state: Any = SimpleNamespace(store=store, catalog=catalog, clock=SimpleNamespace(now=lambda: NOW))
    return CanaryWatch(state)


async def test_a_canary_that_turns_bad_while_it_is_given_more_is_stopped(monkeypatch: pytest.MonkeyPatch):
    begun: list[str] = []
    done: list[str] = []

    async def carry_out(_: Any, adapter: Adapter, judgement: Any) -> bool:
        begun.append(judgement.verdict)
        if judgement.verdict == "promote":
            await asyncio.Event().wait()  # it is being loaded
        done.append(f"{adapter.name} {judgement.verdict}")
        return True

    monkeypatch.setattr(canaries, "carry_out", carry_out)
    adapter = replace(ADAPTER, guard=Guard("rollback", window_seconds=60, then=(50,)))
    store = Store({"10 canary n": 100, "10 live n": 900})
    one = watch(store, adapter)
    for _ in range(3):
        await one.judge(adapter)
        await asyncio.sleep(0)
    assert (begun, done) == (["promote"], [])
    store.counts = {"10 canary n": 100, "10 canary k": 50, "10 live n": 900}
    await one.judge(adapter)
    await asyncio.wait([one._raising[adapter.name]])
    assert done == ["acme/support rollback"]


async def test_nothing_is_decided_while_redis_is_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(canaries, "carry_out", None)  # a call would fail
    one = watch(Store(BAD, away=True))
    with pytest.raises(StoreUnavailableError):
        await one.judge(ADAPTER)
    assert not one._raising


@pytest.mark.parametrize(
    ("verdict", "ago", "shown"),
    [
        ("hold", 2 * SHOWN_SECONDS, True),
        ("rollback", 60, True),
        ("rollback", SHOWN_SECONDS + 1, False),
        ("promote", 1, False),
    ],
)
def test_conditions(verdict: Any, ago: int, shown: bool):
    outcome = CanaryOutcome(verdict, 2, "Its evaluation failed.", NOW - ago * 1_000_000)
    found = list(watch(Store({}), replace(ADAPTER, outcome=outcome)).conditions())
    assert [c.subject for c in found] == (["acme/support@v2"] if shown else [])
    assert all(c.code == "canary_stopped" and c.message.endswith("Its evaluation failed.") for c in found)


@pytest.mark.parametrize(
    ("version", "passed", "expected"),
    [
        (None, None, "none"),
        (1, False, "none"),
        (2, None, "none"),
        (2, True, "waiting"),
        (2, False, "rollback"),
    ],
)
async def test_the_last_evaluation_of_the_canary_counts(
    monkeypatch: pytest.MonkeyPatch, version: int | None, passed: bool | None, expected: str
):
    async def latest(*_: Any) -> dict[int | None, LastEvaluation]:
        return {version: LastEvaluation.read(sample(LastEvaluation, passed=passed))}

    monkeypatch.setattr(evaluations, "latest", latest)
    evaluation = await canaries.evaluation_of(watch(Store({})).state, ADAPTER)
    judgement = canaries.judged(ADAPTER, VERSION, {}, NOW, evaluation).judgement
    assert judgement is not None
    assert judgement.verdict == ("waiting" if expected == "none" else expected)
    assert (judgement.reason == "Its evaluation failed.") is (expected == "rollback")
