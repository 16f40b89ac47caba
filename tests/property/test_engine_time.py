"""What workers write of engines' lives, whatever dies when, against what was so: never too much, and never
too little while somebody was there to look."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from adapters.model import Engine
from gateway.metering.engine_sample import Sample
from gateway.metering.engine_time import EngineTime
from gateway.metering.ledger import HOUR, Ledger, LedgerUnavailableError
from gateway.metering.schema import engine_spans
from tests.search import examples

S = 1_000_000
T = 500_000 * HOUR - 300 * S
END = 600
WRITE_EVERY = 10

Range = tuple[int, int]


@dataclass(frozen=True)
class Story:
    """Seconds since T."""

    processes: list[tuple[int, int, int]]
    """(began, ready, died) of the engine's processes."""
    workers: list[list[Range]]
    """When each worker lives."""
    outages: list[Range]
    says_ready: bool


def ranges(least: int) -> st.SearchStrategy[list[Range]]:
    """Ranges apart from each other, at least so long."""

    def cut(points: list[int]) -> list[Range]:
        pairs = zip(points[::2], points[1::2], strict=False)
        return [(a, b) for a, b in pairs if b - a >= least]

    return st.lists(st.integers(0, END), max_size=6, unique=True).map(sorted).map(cut)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    lives = draw(ranges(10))
    processes = [(a, a + draw(st.integers(3, b - a - 3)), b) for a, b in lives]
    workers = draw(st.lists(ranges(1), min_size=1, max_size=3))
    return Story(processes, workers, draw(ranges(1)), draw(st.booleans()))


class Flaky(Ledger):
    away = False

    def write(self):
        if self.away:
            raise LedgerUnavailableError("away")
        return super().write()


def play(story: Story, ledger: Flaky) -> None:
    engine = Engine("e", "http://e", "base", "h100", 1, 1, registered=T)
    living: dict[int, tuple[Range, EngineTime]] = {}
    for second in range(END + 1):
        ledger.away = any(a <= second < b for a, b in story.outages)
        now = T + second * S
        process = next((p for p in story.processes if p[1] <= second < p[2]), None)
        for number, lives in enumerate(story.workers):
            life = next((r for r in lives if r[0] <= second and (second < r[1] or r[1] == END)), None)
            had = living.get(number)
            if had is not None and had[0] != life:
                del living[number]  # kill -9
                had = None
            if life is None:
                continue
            if had is None:
                had = living[number] = (life, EngineTime(ledger, f"w{number}-{second}"))
            _, time = had
            if process is None:
                time.missed(engine, now, down=True)
            else:
                began, ready, _ = process
                at = T + ready * S if story.says_ready else None
                sample = Sample(now, T + began * S, at, second, None, second)
                time.alive(engine, now, sample if (second + number) % 3 == 0 else None)
            if (second + number) % WRITE_EVERY == 0:
                time.write()
    ledger.away = False
    for _, time in living.values():
        time.write()


def written(ledger: Ledger, phase: str | None = None) -> set[int]:
    """The seconds since T that are counted; a span's first and last second may be cut."""
    table = engine_spans.c
    query = select(table.started, table.seen, table.phase)
    with ledger.read() as connection:
        rows = [r for r in connection.execute(query) if phase in {None, r.phase}]
    return {s for r in rows for s in range((r.started - T) // S, -((T - r.seen) // S))}


@examples(25)
@given(story=stories())
def test_what_is_counted_is_what_was(story: Story, tmp_path_factory):
    ledger = Flaky(f"sqlite:///{tmp_path_factory.mktemp('time') / 'ledger.db'}")
    try:
        play(story, ledger)
        counted = written(ledger)
        alive = {s for began, _, died in story.processes for s in range(began, died)}
        assert counted <= alive
        for began, ready, died in story.processes:
            looks = [
                s
                for lives in story.workers
                for a, b in lives
                for s in range(max(a, ready), min(b, died))
                if b > END - 1 or not any(o[0] - WRITE_EVERY <= s < o[1] for o in story.outages)
                if b > END - 1 or s < b - WRITE_EVERY - 3
            ]
            if looks:  # somebody looked, and lived to write it: then all before is known too
                assert set(range(began, max(looks))) <= counted
                if story.says_ready:
                    assert not written(ledger, "startup") & set(range(ready, died))
    finally:
        ledger.close()
