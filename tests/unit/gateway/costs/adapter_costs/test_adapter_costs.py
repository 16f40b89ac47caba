"""Loads and slots of adapters in money, worked out by hand; and how residency is sampled."""

from fractions import Fraction

import pytest
from sqlalchemy import select

from adapters.model import Engine
from gateway.costs.adapter_costs.adapter_report import adapter_report
from gateway.costs.adapter_costs.residency_log import ResidencyLog, _row
from gateway.costs.periods import month_of
from gateway.costs.selling.residency import BRIDGE
from gateway.metering.ledger.schema import calibrations, engine_hours, residency_spans
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import calibration, engine_hour, price, put, residency_span
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record

OCTOBER = month_of("2026-10")
START = OCTOBER.start
FIRST = START // HOUR
NOW = START + 10 * DAY


def span(ledger, version, start, end, **changes):
    put(ledger, residency_spans, residency_span(version, start, end, **changes))


def rows(ledger, period=OCTOBER, now=NOW):
    return {one["adapter"]: one for one in adapter_report(ledger, period, now=now)["rows"]}


def test_a_slot_costs_an_equal_part_of_its_engine(ledger):
    price(ledger, rate="3.00")
    span(ledger, "acme/support@v1", START, START + 8 * HOUR)
    span(ledger, "acme/support@v2", START, START + HOUR, engine="gpu-b", slots=2, gpu_count=2)
    span(ledger, "bolt/x@v1", START - DAY, START + 2 * HOUR)  # begun in September
    found = rows(ledger)
    assert (found["acme/support"]["slot_hours"], found["acme/support"]["slot_cost"]) == ("9.00", "9.00")
    assert (found["bolt/x"]["slot_hours"], found["bolt/x"]["slot_cost"]) == ("2.00", "1.50")
    assert found["acme/support"]["engines"] == 2


def test_all_slots_of_a_full_engine_cost_what_the_engine_costs(ledger):
    price(ledger, rate="2.999999")
    price(ledger, "H100", "1.7", START + 3 * HOUR + 77_777)  # within an hour
    for number in range(3):
        span(ledger, f"acme/a{number}@v1", START, START + 7 * HOUR, slots=3)
    total = adapter_report(ledger, OCTOBER, now=NOW)["total"]
    before = Fraction(3 * HOUR + 77_777, HOUR)
    assert abs(
        Fraction(total["slot_cost"]) - (before * Fraction("2.999999") + (7 - before) * Fraction("1.7"))
    ) < (Fraction(1, 10**15))


def test_loads_cost_what_the_calibration_measured(ledger):
    price(ledger, rate="3.60")
    ledger.insert(
        [
            record("a", dispatched=START, ended=START + 9, adapter_loads=2),
            record("b", dispatched=START, ended=START + 9, adapter="acme/y", adapter_loads=1, engine="e2"),
            record("c", dispatched=START, ended=START + 9),
        ]
    )
    put(ledger, calibrations, calibration(id=7, load_ps=5 * 10**12))
    put(ledger, engine_hours, engine_hour(FIRST, calibration=7), engine_hour(FIRST, engine="e2"))
    found = rows(ledger)
    # two loads of 5 s, at 0.001 a second
    assert (found["acme/support"]["loads"], found["acme/support"]["load_cost"]) == (2, "0.01")
    assert (found["acme/y"]["loads"], found["acme/y"]["load_cost"]) == (1, None)


def test_rarely_used_adapters_are_summed(ledger):
    price(ledger, rate="1.00")
    write(
        ledger, row(FIRST, adapter="acme/often", requests=1000), row(FIRST, adapter="acme/rare", requests=99)
    )
    span(ledger, "acme/unused@v1", START, START + 4 * HOUR)
    found = adapter_report(ledger, OCTOBER, now=NOW)
    assert [one["adapter"] for one in found["rows"]] == ["acme/unused", "acme/often", "acme/rare"]
    assert (found["rare"]["adapters"], found["rare"]["requests"], found["rare"]["slot_cost"]) == (
        2,
        99,
        "1.00",
    )
    assert (found["total"]["adapters"], found["total"]["cost"]) == (3, "2.00")


# -- sampling


ENGINE = Engine(name="gpu-a", url="http://x", base_model="base", gpu_type="H100", slots=4, max_rank=8)
SECOND = 1_000_000


@pytest.fixture
def sampled(ledger):
    clock = [NOW]

    def sampler():
        return ResidencyLog(ledger, lambda: clock[0], list)

    def sample(log, at, *versions):
        clock[0] = NOW + at * SECOND
        log.sample([_row(ENGINE, version) for version in versions])

    def spans():
        t = residency_spans.c
        with ledger.read() as connection:
            found = connection.execute(select(t.version, t.started, t.seen).order_by(t.version, t.started))
            return [(v, (a - NOW) // SECOND, (b - NOW) // SECOND) for v, a, b in found]

    return sampler, sample, spans


def test_what_is_seen_again_extends_its_span(sampled):
    sampler, sample, spans = sampled
    log = sampler()
    sample(log, 0, "a@v1", "b@v1")
    sample(log, 60, "a@v1")
    sample(log, 120, "a@v1", "b@v1")
    assert spans() == [("a@v1", 0, 120), ("b@v1", 0, 0), ("b@v1", 120, 120)]


def test_another_worker_goes_on_unless_it_comes_too_late(sampled):
    sampler, sample, spans = sampled
    sample(sampler(), 0, "a@v1")
    sample(sampler(), 60, "a@v1")
    late = 61 + BRIDGE // SECOND
    sample(sampler(), late, "a@v1")
    assert spans() == [("a@v1", 0, 60), ("a@v1", late, late)]


async def test_a_pass_samples_what_is_resident(ledger):
    await ResidencyLog(ledger, lambda: NOW, lambda: [(ENGINE, ["a@v1"])]).work()
    with ledger.read() as connection:
        assert connection.execute(select(residency_spans.c.version)).scalars().all() == ["a@v1"]
