"""The short form of `make bench`: what a request and an event cost in CPU time, as a ratio to the raw relay's in
the same run. Time on the clock would say more about what else the machine does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.overhead import contestants, cpu
from loadtests.overhead.__main__ import loaded_adapter, measure
from loadtests.overhead.contestants import Contestant, ThinMockProcess
from loadtests.overhead.loadgen import BENCH_CORE
from loadtests.overhead.loads import LOADS
from loadtests.overhead.report import ratios
from tests.support.forms import some_of

STATED = {"plain": 2.0, "streams": 1.4}
"""Florin's CPU time to the raw relay's; rounds of the bench gave 1.5 to 1.9 and 0.9 to 1.3. Lower these when Florin
gets cheaper."""
ALLOWED = 1.6
"""Factor to the stated ratio, for noise."""
ROUNDS, TRIES, SECONDS = 3, 3, 0.5

Field = tuple[ThinMockProcess, list[Contestant]]


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with ExitStack() as stack:
        directory: Path = tmp_path_factory.mktemp("overhead")
        with cpu.on_core(BENCH_CORE):
            engine = stack.enter_context(ThinMockProcess())
        florin = contestants.florin(engine.url, directory)
        stack.callback(florin.stop)
        florin.speaker = loaded_adapter(engine)
        raw = contestants.relay("raw", engine.url, florin.speaker, directory)
        stack.callback(raw.stop)
        yield engine, [florin, raw]


def _ratio(name: str, engine: ThinMockProcess, field: list[Contestant]) -> float:
    """The median over a few rounds."""
    load = replace(LOADS[name], stagger=0.3 if LOADS[name].stream else 0.0, warmup=0.3)
    rounds = [{c.name: measure(c, load, engine, SECONDS, field) for c in field} for _ in range(ROUNDS)]
    problems = [result.first_error for each in rounds for result in each.values() if result.errors]
    assert problems == []
    return statistics.median(
        ratios(name, {who: [r] for who, r in each.items()}, "raw").median for each in rounds
    )


@pytest.mark.parametrize("name", some_of(["plain", "streams"], "plain"))
def test_florin_costs_about_what_is_stated(field: Field, name: str):
    """Noise can raise a ratio, but not three times in a row."""
    engine, gateways = field
    limit = STATED[name] * ALLOWED
    tries: list[float] = []
    while len(tries) < TRIES and min(tries, default=limit + 1) > limit:
        tries.append(_ratio(name, engine, gateways))
    assert min(tries) <= limit, f"{tries} times the raw relay's CPU time; {STATED[name]} is stated"
