"""The hourly figure, from a ledger."""

import pytest

from gateway.costs.periods import Period
from gateway.costs.reconciliation.drift import LONGEST, drift, token_checks, unsampled
from gateway.metering.ledger.schema import engine_counters, engine_hours, engine_probes
from gateway.units import HOUR
from tests.support.ledger_rows import engine_hour, put
from tests.unit.gateway.metering.make import record

NOW = 101 * HOUR + 5


def counters(ledger, *rows):
    """(hour number, microseconds into it, prompt, completion, …)"""
    for hour, into, prompt, completion, more in rows:
        row = {
            "engine": "gpu-a", "epoch": 90 * HOUR, "hour": hour * HOUR, "at": hour * HOUR + into,
            "prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": None, **more,
        }  # fmt: skip  # as they are declared
        put(ledger, engine_counters, row)


def figures(found):
    return {(one.engine, one.token_type): (one.unexplained, one.ratio) for one in found}


def test_tokens_that_no_record_knows_and_that_no_engine_counted(ledger):
    counters(ledger, (99, 7, 1000, 500, {}), (100, 50_000_000, 1040, 504, {}))
    ledger.insert([record("in")])
    assert figures(drift(ledger, NOW)) == {
        ("gpu-a", "input"): (30, 30 / 40),
        ("gpu-a", "output"): (-1, -1 / 4),
    }


def test_a_restart_within_the_hour_is_two_windows(ledger):
    counters(
        ledger,
        (99, 7, 1000, 500, {}),
        (100, 10_000_000, 1010, 505, {}),
        (100, 50_000_000, 20, 10, {"epoch": 100 * HOUR + 20_000_000}),
    )
    first = record("first")
    second = record("second", dispatched=100 * HOUR + 30_000_000, prompt_tokens=20, completion_tokens=10)
    ledger.insert([first, second])
    assert {rest for rest, _ in figures(drift(ledger, NOW)).values()} == {0}
    with ledger.read() as connection:
        checks = token_checks(connection, Period(100 * HOUR, 101 * HOUR))
    assert [(c.window.epoch, c.engine_tokens) for c in checks if c.token_type == "input"] == [
        (90 * HOUR, 10),
        (100 * HOUR + 20_000_000, 20),
    ]


def test_every_kind_of_record_finds_its_rule(ledger):
    """n = 3, an abort, an orphan, one without counts, one in flight at each sample, one rejected."""
    end = 50_000_000
    counters(
        ledger,
        (99, HOUR - 500_000, 1000, 500, {"cached_tokens": 100}),
        (100, end, 1000 + 30 + 10 + 10 + 4 + 5, 500 + 15 + 9 + 30 + 3, {"cached_tokens": 118}),
    )
    ledger.insert(
        [
            record("n", n=3, completion_tokens=15, cached_tokens=2),
            record("abort", usage_source="engine_partial", outcome="client_abort", completion_tokens=5),
            record("orphan", usage_source="engine_partial", outcome="orphaned", completion_tokens=5),
            record(
                "nothing", usage_source="none", outcome="client_abort", prompt_tokens=0, completion_tokens=0
            ),
            record("early", dispatched=100 * HOUR - 1_000_000, ended=100 * HOUR + 3, completion_tokens=4),
            record("late", dispatched=100 * HOUR + end - 3, ended=100 * HOUR + end + 1, completion_tokens=4),
            record("rejected", outcome="rejected", prompt_tokens=999),
        ]
    )
    with ledger.read() as connection:
        checks = token_checks(connection, Period(100 * HOUR, 101 * HOUR))
    by_type = {c.token_type: c for c in checks}
    assert {c.rest for c in checks} == {0}
    kinds = {line.kind: (line.tokens, line.records) for line in by_type["input"].lines}
    assert kinds["prompt_of_each_answer"] == (20, 1)
    assert set(kinds) == {
        "prompt_of_each_answer", "in_flight_at_start", "in_flight_at_end", "without_counts",
    }  # fmt: skip
    assert {line.kind for line in by_type["output"].lines} == {
        "in_flight_at_start", "in_flight_at_end", "broken_off", "orphaned", "without_counts",
    }  # fmt: skip
    assert by_type["cached"].engine_tokens == 18
    assert by_type["input"].record_tokens == 40


def test_records_that_have_no_counters_beside_them_are_told(ledger):
    counters(ledger, (99, 7, 1000, 500, {}), (100, 50, 1010, 505, {}))
    put(ledger, engine_hours, *(engine_hour(100, records=1, engine=name) for name in ("gpu-a", "gpu-b")))
    ledger.insert([record("after"), record("other", engine="gpu-b", prompt_tokens=7)])
    with ledger.read() as connection:
        found = unsampled(connection, Period(100 * HOUR, 101 * HOUR))
    assert [(one.engine, one.within.start, one.tally.records, one.tally.input) for one in found] == [
        ("gpu-a", 100 * HOUR + 51, 1, 10),
        ("gpu-b", 100 * HOUR, 1, 7),
    ]


def test_probes_of_the_window_and_the_engine_are_accounted_for(ledger):
    counters(ledger, (99, 7, 1000, 500, {}), (100, 50_000_000, 1070, 532, {}))

    def probe(id_, engine, at):
        return {
            "id": id_, "engine": engine, "at": at,
            "prompt_tokens": 70, "cached_tokens": 0, "completion_tokens": 32,
        }  # fmt: skip

    end = 100 * HOUR + 50_000_000
    rows = [probe("in", "gpu-a", end), probe("before", "gpu-a", 99 * HOUR + 7), probe("other", "b", end)]
    put(ledger, engine_probes, *rows, probe("later", "gpu-a", end + 1))
    assert {one.unexplained for one in drift(ledger, NOW)} == {0}


@pytest.mark.parametrize("late", [0, 1])
def test_what_is_in_flight_is_looked_for_as_long_as_attempts_take(ledger, late):
    counters(ledger, (99, 7, 0, 0, {}), (100, 1, 10, 5, {}))
    ledger.insert([record("long", dispatched=100 * HOUR, ended=100 * HOUR + 1 + LONGEST + late)])
    assert {one.unexplained for one in drift(ledger, NOW)} == ({0} if not late else {10, 5})
