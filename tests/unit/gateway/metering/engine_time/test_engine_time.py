import logging
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import select

from adapters.model import Engine
from gateway.metering.engine_metrics import EngineSample
from gateway.metering.engine_time import engine_time
from gateway.metering.engine_time.engine_life import Beginnings, beginnings
from gateway.metering.engine_time.engine_time import EngineTime
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import dirty_hours, engine_counters, engine_spans
from gateway.runtime.clock import system_time
from gateway.units import HOUR

S = 1_000_000
T = 500_000 * HOUR  # a whole hour
ENGINE = Engine("a1", "http://a1", "base", "h100", 2, 8, gpu_count=2, registered=T - 100 * HOUR)


class Away(Ledger):
    """A ledger that can be away."""

    away = False

    @contextmanager
    def write(self):
        if self.away:
            raise LedgerUnavailableError("away")
        with super().write() as connection:
            yield connection


@pytest.fixture
def ledger(ledger_url):
    made = Away(ledger_url)
    yield made
    made.close()


def sample(at, *, epoch=T, ready=None, prompt=10, cached=4, completion=5):
    return EngineSample(at, epoch, ready, prompt, cached, completion)


def rows(ledger, table):
    with ledger.read() as connection:
        keys = list(table.primary_key.columns)
        return [dict(row) for row in connection.execute(select(table).order_by(*keys)).mappings()]


def spans(ledger):
    """(phase, start, end) in seconds since T, by start."""
    found = [(r["phase"], (r["started"] - T) / S, (r["seen"] - T) / S) for r in rows(ledger, engine_spans)]
    return sorted(found, key=lambda span: span[1:])


def watch(time, start, end, *, engine=ENGINE, step=1, every=3, **says):
    """Probes at whole seconds since T from `start` to `end`, each third with a sample."""
    for count, second in enumerate(range(start, end + 1, step)):
        now = T + second * S
        time.alive(engine, now, sample(now, **says) if count % every == 0 else None)


# -- when it began


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # the process began at 100, was ready at 130, and was first seen at 131
        ({"first": 131, "failed": 129, "epoch": 100, "ready": 130}, (100, 130, 130)),
        # the same, seen long after: the gateway was away
        ({"first": 900, "epoch": 100, "ready": 130}, (100, 130, 130)),
        # registered while it started; after it was ready
        ({"first": 131, "failed": 129, "epoch": 100, "ready": 130, "registered": 120}, (120, 130, 130)),
        ({"first": 201, "epoch": 100, "ready": 130, "registered": 200}, (200, 200, 200)),
        # a worker that starts beside others, or after them: from where they left off
        ({"first": 900, "epoch": 100, "ready": 130, "known": 890}, (890, 890, 890)),
        ({"first": 900, "epoch": 100, "ready": 130, "known": 115}, (115, 130, 130)),
        # what others counted of the process before does not matter
        ({"first": 131, "epoch": 100, "ready": 130, "known": 90}, (100, 130, 130)),
        # it hung, and came back the same: it was away until the last look that failed
        ({"first": 900, "failed": 899, "epoch": 100, "ready": 130, "known": 500}, (500, 500, 899)),
        # it does not say when it was ready: when it was first seen so
        ({"first": 131, "failed": 129, "epoch": 100}, (100, 131, 131)),
        ({"first": 131, "epoch": 100}, (100, 131, 131)),
        ({"first": 900, "epoch": 100, "known": 890}, (890, 890, 890)),
        # … but one that was already running when it was registered has no start-up
        ({"first": 201, "epoch": 100, "registered": 200}, (200, 200, 200)),
        ({"first": 231, "failed": 229, "epoch": 100, "registered": 200}, (200, 231, 231)),
        # it says nothing, or nobody knows since when it is ours
        ({"first": 131, "epoch": None}, (131, 131, 131)),
        ({"first": 131, "epoch": 100, "ready": 130, "registered": 0}, (131, 131, 131)),
        # its host's clock is ahead
        ({"first": 131, "epoch": 140, "ready": 170}, (131, 131, 131)),
        ({"first": 131, "epoch": 100, "ready": 170}, (100, 131, 131)),
    ],
)
def test_since_when_it_counts_and_as_what(said, expected):
    asked = {"failed": 0, "ready": None, "registered": 1, "known": 0, **said}
    assert beginnings(**asked) == Beginnings(*expected)


# -- spans


def down(time, start, end):
    for second in range(start, end):
        time.missed(ENGINE, T + second * S, down=True)


def missed(time, second):
    time.missed(ENGINE, T + second * S, down=False)


def gone(time):
    time.gone("a1")
    time.gone("never")


def lived(begun, ready):
    return {"epoch": T + begun * S, "ready": T + ready * S}


OLD = lived(-5, -2)
BACK = replace(ENGINE, registered=T + 100 * S)
LIVES = {
    "it starts, and dies, and comes back": (
        [
            (down, 10, 40), (watch, 41, 100, lived(12, 40)), (missed, 101), (down, 102, 103),
            (watch, 130, 140, lived(103, 129)),
        ],
        [("startup", 12, 40), ("up", 40, 100), ("startup", 103, 129), ("up", 129, 140)],
    ),
    "a missed probe or two end nothing": (
        [(watch, 0, 10, OLD), (missed, 12), (watch, 14, 20, OLD)],
        [("startup", -5, -2), ("up", -2, 20)],
    ),
    "a hang is a gap, though the process is the same": (
        [(watch, 0, 10, OLD), (down, 11, 200), (watch, 200, 210, OLD)],
        [("startup", -5, -2), ("up", -2, 10), ("up", 199, 210)],
    ),
    "a worker that was stopped takes the engine's word for the time between": (
        [(watch, 0, 10, OLD), (watch, 500, 510, OLD), (watch, 1000, 1010, lived(900, 950))],
        [("startup", -5, -2), ("up", -2, 10), ("up", 10, 510), ("startup", 900, 950), ("up", 950, 1010)],
    ),
    "it left the registry and came back": (
        [(watch, 0, 10, OLD), (gone,), (watch, 101, 110, {"engine": BACK, **OLD})],
        [("startup", -5, -2), ("up", -2, 10), ("up", 100, 110)],
    ),
    "it does not say when it began": (
        [(watch, 0, 20, {"every": 1000, "epoch": None})],
        [("up", 0, 20)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("life", "expected"), LIVES.values(), ids=LIVES)
def test_which_time_of_an_engine_is_counted(ledger, life, expected):
    time = EngineTime(ledger, "w1")
    for happens, *how in life:
        says = how.pop() if how and isinstance(how[-1], dict) else {}
        happens(time, *how, **says)
    assert time.write()
    assert spans(ledger) == expected


def test_a_gateway_that_was_away_while_an_engine_restarted(ledger):
    for worker, start, says in (("w1", 0, lived(-50, -20)), ("w2", 600, lived(300, 330))):
        time = EngineTime(ledger, worker)
        watch(time, start, start + 30, **says)
        time.write()
    assert spans(ledger)[2:] == [("startup", 300, 330), ("up", 330, 630)]


def test_a_span_says_of_which_engine_it_is_and_at_which_terms(ledger):
    time = EngineTime(ledger, "w1")
    watch(time, 0, 10)
    time.write()
    [row, *_] = rows(ledger, engine_spans)
    assert {k: row[k] for k in ("engine", "worker", "gpu_type", "gpu_count", "purchase", "base_model")} == {
        "engine": "a1", "worker": "w1", "gpu_type": "h100", "gpu_count": 2, "purchase": "on_demand",
        "base_model": "base",
    }  # fmt: skip


def test_writing_extends_and_changes_nothing_without_news(ledger):
    time = EngineTime(ledger, "w1")
    watch(time, 0, 10, epoch=T - HOUR)
    time.write()
    first = rows(ledger, engine_spans)
    time.write()
    assert rows(ledger, engine_spans) == first
    watch(time, 11, 20, epoch=T - HOUR)
    time.write()
    assert [(r["started"], r["seen"]) for r in rows(ledger, engine_spans) if r["phase"] == "up"] == [
        (first[-1]["started"], T + 20 * S)
    ]


def test_a_restart_that_no_probe_noticed(ledger):
    time = EngineTime(ledger, "w1")
    watch(time, 0, 10, epoch=T - 5 * S, ready=T - 2 * S)
    watch(time, 11, 20, epoch=T + 10 * S + S // 4, ready=T + 10 * S + S // 2)
    time.write()
    assert spans(ledger)[2:] == [("startup", 10.25, 10.5), ("up", 10.5, 20)]
    assert [(r["epoch"] - T) // S for r in rows(ledger, engine_counters)] == [-5, 10]


def test_other_terms_are_another_span_without_a_gap(ledger):
    time = EngineTime(ledger, "w1")
    watch(time, 0, 10, epoch=T - 5 * S, ready=T - 2 * S)
    spot = replace(ENGINE, purchase="spot", gpu_count=4)
    watch(time, 11, 20, engine=spot, every=100, epoch=T - 5 * S, ready=T - 2 * S)
    time.write()
    assert spans(ledger) == [("startup", -5, -2), ("up", -2, 10), ("up", 10, 20)]
    assert [r["purchase"] for r in rows(ledger, engine_spans) if r["phase"] == "up"] == ["on_demand", "spot"]
    moved = {(r["hour"] - T) // HOUR for r in rows(ledger, dirty_hours) if r["gpu_count"] == 4}
    assert moved == {-1, 0}  # the minute before, too: a gap there might have been bridged


def test_an_engine_without_metrics_counts_from_when_it_was_seen_once_it_had_time_to_tell(ledger):
    silent = EngineTime(ledger, "w2")
    for second in range(20):
        silent.alive(ENGINE, T + second * S)
    silent.write()
    assert spans(ledger) == []  # it may still tell
    for second in range(20, 40):
        silent.alive(ENGINE, T + second * S)
    silent.write()
    assert spans(ledger) == [("up", 0, 39)]


def test_engine_hours_that_grew_are_marked_to_be_rolled_up(ledger):
    time = EngineTime(ledger, "w1")
    watch(time, 90, 100, epoch=T - 2 * HOUR, ready=T - HOUR)
    time.write()
    marked = {(r["hour"] - T) // HOUR: r["version"] for r in rows(ledger, dirty_hours)}
    assert marked.keys() == {-3, -2, -1, 0}  # -3: bridging begins before the hour's turn
    watch(time, 101, 110, epoch=T - 2 * HOUR, ready=T - HOUR)
    time.write()
    again = {(r["hour"] - T) // HOUR: r["version"] for r in rows(ledger, dirty_hours)}
    assert {h for h in again if again[h] != marked[h]} == {0}
    assert {(r["engine"], r["gpu_type"], r["gpu_count"]) for r in rows(ledger, dirty_hours)} == {
        ("a1", "h100", 2)
    }


# -- counters


def test_of_each_hour_the_latest_counters_are_kept(ledger):
    w1, w2 = EngineTime(ledger, "w1"), EngineTime(ledger, "w2")
    w1.alive(ENGINE, T + S, sample(T + S, prompt=1, completion=2))
    w2.alive(ENGINE, T + 9 * S, sample(T + 9 * S, prompt=7, completion=8, cached=None))
    w2.write()
    w1.alive(ENGINE, T + 5 * S, sample(T + 5 * S, prompt=3, completion=4))
    w1.write()  # older than what is there
    w1.alive(ENGINE, T + HOUR, sample(T + HOUR, prompt=20, completion=30))
    w1.write()
    expected = [(T, T, T + 9 * S, 7, None, 8), (T, T + HOUR, T + HOUR, 20, 4, 30)]
    names = ("epoch", "hour", "at", "prompt_tokens", "cached_tokens", "completion_tokens")
    assert [tuple(r[n] for n in names) for r in rows(ledger, engine_counters)] == expected


def test_workers_agree_on_the_process_of_an_engine_that_does_not_say_when_it_began(ledger):
    w1, w2 = EngineTime(ledger, "w1"), EngineTime(ledger, "w2")
    w1.alive(ENGINE, T + S, sample(T + S, epoch=None, prompt=100))
    w1.write()
    w2.alive(ENGINE, T + 2 * S, sample(T + 2 * S, epoch=None, prompt=120))
    w2.write()
    assert [(r["epoch"], r["prompt_tokens"]) for r in rows(ledger, engine_counters)] == [(T + S, 120)]
    w1.alive(ENGINE, T + 30 * S, sample(T + 30 * S, epoch=None, prompt=7))  # restarted
    w1.write()
    w2.alive(ENGINE, T + 31 * S, sample(T + 31 * S, epoch=None, prompt=8))
    w2.write()
    assert [(r["epoch"], r["prompt_tokens"]) for r in rows(ledger, engine_counters)] == [
        (T + S, 120), (T + 30 * S, 8),
    ]  # fmt: skip


# -- the ledger away


def test_nothing_is_lost_while_the_ledger_is_away_and_it_is_said_once(ledger, caplog):
    time = EngineTime(ledger, "w1")
    ledger.away = True
    with caplog.at_level(logging.WARNING, "florin.metering"):
        for life in range(3):
            start = life * 1000
            watch(time, start + 30, start + 60, epoch=T + start * S, ready=T + (start + 20) * S)
            time.missed(ENGINE, T + (start + 61) * S, down=True)
            assert not time.write()
        ledger.away = False
        assert time.write()
        assert time.write()
    assert spans(ledger) == [
        (phase, life * 1000 + a, life * 1000 + b)
        for life in range(3)
        for phase, a, b in (("startup", 0, 20), ("up", 20, 60))
    ]
    assert len(rows(ledger, engine_counters)) == 3
    assert len(caplog.messages) == 2
    assert "in memory" in caplog.messages[0]


def test_what_is_seen_while_it_writes_is_written_next(ledger, monkeypatch):
    time = EngineTime(ledger, "w1")
    watch(time, 0, 10, epoch=T)
    write_each = engine_time.write_each

    def slow(*plan):
        watch(time, 11, 20, epoch=T)
        time.missed(ENGINE, T + 21 * S, down=True)
        return write_each(*plan)

    monkeypatch.setattr(engine_time, "write_each", slow)
    time.write()
    monkeypatch.setattr(engine_time, "write_each", write_each)
    assert [s[2] for s in spans(ledger) if s[0] == "up"] == [10]
    time.write()
    assert [s[2] for s in spans(ledger) if s[0] == "up"] == [20]
    assert [r["at"] for r in rows(ledger, engine_counters)] == [T + 20 * S]


def test_memory_is_bounded_however_long_the_ledger_is_away(ledger, monkeypatch, caplog):
    monkeypatch.setattr(engine_time, "_MOST", 100)
    time = EngineTime(ledger, "w1")
    ledger.away = True
    for life in range(500):
        watch(time, life * 100, life * 100 + 1, epoch=T + life * 100 * S)
        time.missed(ENGINE, T + (life * 100 + 2) * S, down=True)
    assert len(time._ended) <= 101
    assert len(time._samples) <= 101
    assert "Ledger unavailable for too long" in caplog.text
    ledger.away = False
    assert time.write()
    assert spans(ledger)[-1][2] == 499 * 100 + 1
    assert "0 to write" in repr(time)


# -- what no database can hold


def refused(caplog):
    return sum("Dropped" in message for message in caplog.messages)


def counted(ledger):
    return {(r["engine"], r["prompt_tokens"]) for r in rows(ledger, engine_counters)}


@pytest.mark.parametrize(
    ("lie", "left"),
    [({"prompt": 10**30}, False), ({"epoch": 10**30}, True), ({"cached": 2**63}, False), ({"completion": -(10**30)}, True)],
    ids=str,
)  # fmt: skip
def test_counters_that_cannot_be_hold_up_no_other_engines(ledger, caplog, lie, left):
    time, bad, other = EngineTime(ledger, "w"), replace(ENGINE, name="bad"), replace(ENGINE, name="b1")
    for engine in (ENGINE, bad, other):
        watch(time, 0, 12, engine=engine, **(lie if engine is bad else {}))
    if left:
        time.gone("bad")
    assert time.write()
    assert {name for name, _ in counted(ledger)} == {"a1", "b1"}
    assert {r["engine"] for r in rows(ledger, engine_spans)} == {"a1", "b1", "bad"}
    assert refused(caplog) == 1
    for engine in (ENGINE, other):
        watch(time, 13, 30, engine=engine, prompt=77)
    assert time.write()
    assert {("a1", 77), ("b1", 77)} <= counted(ledger)
    assert refused(caplog) == 1  # it does not come back


def test_a_life_that_cannot_be_holds_up_no_others(ledger, caplog):
    time, bad = EngineTime(ledger, "w"), replace(ENGINE, name="bad", gpu_count=10**30)
    for start in (0, 13):
        for engine in (ENGINE, bad):
            watch(time, start, start + 12, engine=engine)
        assert time.write()
        assert {r["engine"] for r in rows(ledger, engine_spans)} == {"a1"}
    assert spans(ledger)[-1][2] == 25
    assert refused(caplog) == 1


def test_while_the_ledger_is_away_nothing_is_given_up(ledger, caplog):
    time, bad = EngineTime(ledger, "w"), replace(ENGINE, name="bad")
    watch(time, 0, 12)
    watch(time, 0, 12, engine=bad, prompt=10**30)
    ledger.away = True
    assert not time.write()
    assert refused(caplog) == 0
    ledger.away = False
    assert time.write()
    assert {name for name, _ in counted(ledger)} == {"a1"}


def test_an_engine_that_begins_anew_all_the_time_makes_no_other_be_forgotten(ledger, monkeypatch):
    monkeypatch.setattr(engine_time, "_MOST", 50)
    time, wild = EngineTime(ledger, "w"), replace(ENGINE, name="wild")
    watch(time, 0, 12)
    time.gone("a1")
    for second in range(200):
        time.alive(wild, T + second * S, sample(T + second * S, epoch=T + second))
    assert len(time._ended) <= 51
    assert time.write()
    assert ("a1", 10) in counted(ledger)
    assert "a1" in {r["engine"] for r in rows(ledger, engine_spans)}


# -- clocks


def test_a_host_whose_clock_is_wrong_is_believed_about_how_long_it_runs(ledger):
    time, behind = EngineTime(ledger, "w"), -7200 * S
    watch(time, 0, 10)
    time.missed(ENGINE, T + 11 * S, down=True)
    for second in range(100, 110):
        now = T + second * S
        said = sample(now, epoch=T + 80 * S + behind, ready=T + 95 * S + behind)
        time.alive(ENGINE, now, replace(said, skew=behind))
    time.write()
    assert spans(ledger)[-2:] == [("startup", 80, 95), ("up", 95, 109)]


def test_the_databases_clock_is_its_own_or_none(ledger, ledger_url):
    said = ledger.time()
    assert (said is None) == ledger_url.startswith("sqlite")
    assert said is None or abs(said - system_time()) < 60 * S
