"""Closing months: in order, once, for good, and the same whoever does it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, func, insert, select, update

from gateway.costs.closing import closing
from gateway.costs.closing.closing import GRACE, ClosingError, UnpricedError, close
from gateway.costs.closing.coverage import cover_of, record_page, records
from gateway.costs.cost_lines import read_lines
from gateway.costs.periods import iso, month_of
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.rollups.rollup import imbalance, roll
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import (
    calibrations,
    dirty_hours,
    engine_hours,
    period_tenants,
    periods,
    rollups,
)
from gateway.units import HOUR
from tests.support.ledger_rows import calibration, price, put
from tests.unit.gateway.costs.month import DECEMBER, JANUARY, NOVEMBER, OCTOBER, fill, span
from tests.unit.gateway.costs.month import records as some_records
from tests.unit.gateway.metering.make import record

NOW = DECEMBER + GRACE


def shut(ledger, of, **terms):
    return close(ledger, of, **({"now": NOW, "by": "key"} | terms))


def all_right(ledger):
    found = verify(ledger)
    failed = [(v.month, c) for v in found for c in v.checks if not c.ok]
    assert not failed
    return found


def rows_of(ledger, of):
    with ledger.read() as connection:
        query = select(rollups).where(rollups.c.posted == of).order_by(rollups.c.id)
        return [tuple(row) for row in connection.execute(query)]


def figures(ledger, of):
    """Requests, completion tokens, nano-GPU-hours and cost posted to a month."""
    with ledger.read() as connection:
        lines = list(read_lines(connection, PriceBook(read_prices(connection)), month_of(of)))
    return tuple(
        sum(getattr(line, name) for line in lines)
        for name in ("requests", "completion_tokens", "nano_gpu_hours", "cost")
    )


def test_two_months_close_and_everything_adds_up(ledger):
    fill(ledger)
    october = shut(ledger, "2026-10", policy="proportional")
    november = shut(ledger, "2026-11")
    assert (october["state"], october["records"], october["policy"]) == ("closed", 60, "proportional")
    assert (november["previous_root"], november["first_batch"]) == (october["root"], october["cutoff_batch"])
    assert not october["already"]
    assert len(all_right(ledger)) == 2
    with ledger.read() as connection:
        assert connection.execute(select(rollups.c.id).where(rollups.c.rate_micros.is_(None))).first() is None
        statements = list(connection.execute(select(period_tenants.c.month, period_tenants.c.records)))
    assert sorted({of for of, _ in statements}) == ["2026-10", "2026-11"]
    assert sum(count for of, count in statements if of == "2026-11") == 60


def test_closing_again_says_so_and_changes_nothing(ledger):
    fill(ledger)
    first = shut(ledger, "2026-10", policy="even")
    for policy in (None, "even"):
        again = shut(ledger, "2026-10", now=NOW + 5, by="other", policy=policy)
        assert again == {**first, "already": True}
    with pytest.raises(ClosingError, match="was closed with policy even"):
        shut(ledger, "2026-10", policy="none")
    fixed = shut(ledger, "2026-11", policy="fixed", shares={"acme": 3, "bolt": 1})
    assert shut(ledger, "2026-11", policy="fixed", shares={"bolt": 1, "acme": 3})["root"] == fixed["root"]
    with pytest.raises(ClosingError, match="was closed with"):
        shut(ledger, "2026-11", policy="fixed", shares={"acme": 1, "bolt": 3})


@pytest.mark.parametrize(
    ("of", "now", "says"),
    [
        ("2026-12", NOW, "not over yet; it ends 2027-01-01T00:00:00Z"),
        ("2026-11", DECEMBER + GRACE - 1, "less than an hour ago"),
        ("2026-11", NOW, "2026-10 has usage and is not closed"),
    ],
)
def test_a_month_that_cannot_be_closed_yet(ledger, of, now, says):
    fill(ledger)
    with pytest.raises(ClosingError, match=says):
        shut(ledger, of, now=now)
    with ledger.read() as connection:
        assert connection.execute(select(periods)).first() is None
        assert (
            connection.execute(select(rollups.c.id).where(rollups.c.rate_micros.is_not(None))).first() is None
        )


def test_months_in_which_there_was_nothing_are_passed_over(ledger):
    price(ledger, "H100", "1")
    price(ledger, "L40", "1")
    ledger.insert(some_records(1, OCTOBER))
    ledger.insert(some_records(2, DECEMBER))
    shut(ledger, "2026-10", now=JANUARY + GRACE)
    shut(ledger, "2026-12", now=JANUARY + GRACE)
    with pytest.raises(ClosingError, match="was skipped"):
        shut(ledger, "2026-11", now=JANUARY + GRACE)
    ledger.insert(some_records(3, NOVEMBER))  # late, for the month that was passed over
    roll(ledger, JANUARY + GRACE)
    shut(ledger, "2027-01", now=month_of("2027-01").end + GRACE)
    assert [v.checks[-2].name for v in all_right(ledger)] == ["counts"] * 3
    with ledger.read() as connection:
        counts = dict(connection.execute(select(periods.c.month, periods.c.records)).all())
    assert counts == {"2026-10": 60, "2026-12": 60, "2027-01": 60}


def test_without_a_price_it_is_refused_unless_allowed_and_a_later_price_corrects(ledger):
    fill(ledger, prices=False)
    price(ledger, "H100", "2.49")
    with pytest.raises(UnpricedError, match="No price for L40 on_demand"):
        shut(ledger, "2026-10")
    made = shut(ledger, "2026-10", allow_missing_prices=True)
    assert json.loads(made["document"])["terms"]["missing_prices"] == [["L40", "", "on_demand"]]
    before, october = rows_of(ledger, "2026-10"), figures(ledger, "2026-10")
    price(ledger, "L40", "0.7")
    shut(ledger, "2026-11")
    all_right(ledger)
    assert rows_of(ledger, "2026-10") == before
    with ledger.read() as connection:
        query = select(engine_hours.c.gpu_type, func.sum(engine_hours.c.nano_gpu_hours))
        spent = dict(connection.execute(query.group_by(engine_hours.c.gpu_type)).all())
    whole = int(spent["H100"]) * 2_490_000 + int(spent["L40"]) * 700_000
    assert october[3] + figures(ledger, "2026-11")[3] == whole


def test_what_comes_late_is_posted_to_the_next_month_and_nets_to_the_difference(ledger, ledger_with):
    fill(ledger)
    shut(ledger, "2026-10")
    before, october = rows_of(ledger, "2026-10"), figures(ledger, "2026-10")
    late = some_records(9, OCTOBER, count=12)
    ledger.insert(late)
    roll(ledger, NOW)
    shut(ledger, "2026-11")
    all_right(ledger)
    assert imbalance(ledger) == 0
    assert rows_of(ledger, "2026-10") == before
    with ledger.read() as connection:
        counts = dict(connection.execute(select(periods.c.month, periods.c.records)).all())
    assert counts == {"2026-10": 60, "2026-11": 72}

    together = ledger_with(fill, name="together")
    together.insert(late)
    shut(together, "2026-10")
    shut(together, "2026-11")
    expected = [
        sum(pair) for pair in zip(figures(together, "2026-10"), figures(together, "2026-11"), strict=True)
    ]
    assert [sum(pair) for pair in zip(october, figures(ledger, "2026-11"), strict=True)] == expected


def test_records_are_covered_once_and_in_order_and_paged(ledger):
    fill(ledger)
    shut(ledger, "2026-10")
    ledger.insert(some_records(9, OCTOBER + 3 * HOUR, count=12))
    shut(ledger, "2026-11")
    with ledger.read() as connection:
        covers = [cover_of(connection, of) for of in ("2026-10", "2026-11", "2026-12")]
    assert covers[2] is None
    seen = []
    for cover in covers[:2]:
        whole = list(records(ledger, cover))
        assert [(r["ended"], r["id"]) for r in whole] == sorted((r["ended"], r["id"]) for r in whole)
        paged, after = [], None
        while page := record_page(ledger, cover, tenant="bolt", after=after, limit=5):
            paged += page
            after = page[-1]["ended"], page[-1]["id"]
        assert paged == [r for r in whole if r["tenant"] == "bolt"]
        seen += [r["id"] for r in whole]
    assert len(seen) == len(set(seen)) == 132


def test_an_imbalance_blocks(ledger):
    fill(ledger)
    roll(ledger, NOW)
    with ledger.write() as connection:
        row = connection.execute(select(engine_hours).where(engine_hours.c.nano_gpu_hours > 0)).first()
        change = update(engine_hours).where(
            engine_hours.c.hour == row.hour, engine_hours.c.engine == row.engine
        )
        connection.execute(change.values(nano_gpu_hours=row.nano_gpu_hours + 1))
    with pytest.raises(ClosingError, match="do not add up") as error:
        shut(ledger, "2026-10")
    assert f"{row.engine} ({row.gpu_type}) at {iso(row.hour)}" in str(error.value)


def test_hours_that_cannot_be_rolled_up_block(ledger, monkeypatch):
    fill(ledger)
    monkeypatch.setattr(closing, "roll", lambda *_, **__: type("Rolled", (), {"rolled": 0, "pending": 1}))
    with pytest.raises(ClosingError, match="cannot be rolled up"):
        shut(ledger, "2026-10")


def test_a_mark_that_comes_between_blocks(ledger, monkeypatch):
    fill(ledger)
    monkeypatch.setattr(closing, "_flush", lambda *_: None)
    with pytest.raises(ClosingError, match="still arriving"):
        shut(ledger, "2026-10")


def test_an_interrupted_closing_is_finished_first(ledger, monkeypatch):
    fill(ledger)
    with monkeypatch.context() as broken:
        broken.setattr(closing, "_sum", _fail)
        with pytest.raises(ZeroDivisionError):
            shut(ledger, "2026-10")
    ledger.insert(some_records(9, OCTOBER, count=12))  # after the cutoff: not in it
    price(ledger, "H100", "99", OCTOBER)  # nor this
    with pytest.raises(ClosingError, match="Closing 2026-10 was interrupted"):
        shut(ledger, "2026-11")
    made = shut(ledger, "2026-10")
    assert (made["records"], made["already"]) == (60, False)
    shut(ledger, "2026-11")
    all_right(ledger)


def _fail(*_):
    raise ZeroDivisionError


def test_the_root_is_the_same_in_any_order_of_arrival_and_on_any_database(ledger, ledger_with):
    """The period holds the batch of its cutoff, so as many batches in each."""
    roots = []
    for at, order in ((ledger, 1), (ledger_with(name="other"), -1)):
        price(at, "H100", "2.49")
        price(at, "L40", "0.7")
        made = some_records(4, OCTOBER)[::order]
        for first in range(0, len(made), 6):
            at.insert(made[first : first + 6])
        span(at, OCTOBER)
        roots.append(shut(at, "2026-10")["root"])
    assert roots[0] == roots[1]


def test_who_closes_at_once_does_the_same(ledger_url):
    ledgers = [Ledger(ledger_url) for _ in range(3)]
    fill(ledgers[0])
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda at: shut(at, "2026-10"), ledgers))
    assert len({row["root"] for row in made}) == 1
    all_right(ledgers[0])
    for at in ledgers:
        at.close()


def test_a_month_whose_weights_were_measured_closes_and_says_which(ledger):
    fill(ledger)
    put(ledger, calibrations, calibration(id=5, prefill_ps=10**8))
    document = json.loads(shut(ledger, "2026-10", policy="proportional")["document"])
    assert [made["prefill_ps"] for made in document["terms"]["calibrations"]] == [10**8]
    assert "headroom" in document["summary"]["totals"]["buckets"]
    all_right(ledger)


def test_a_closed_month_s_rows_stay_while_a_price_or_nothing_at_all_changes(ledger):
    fill(ledger)
    shut(ledger, "2026-10")
    before = rows_of(ledger, "2026-10")
    price(ledger, "H100", "9.99", OCTOBER + HOUR)
    with ledger.write() as connection:  # every hour is marked, as after a new calibration
        connection.execute(delete(dirty_hours))
        places = select(*(engine_hours.c[n] for n in ("hour", "engine", "gpu_type", "gpu_count")))
        marks = [{**row, "version": 1} for row in connection.execute(places).mappings()]
        connection.execute(insert(dirty_hours), marks)
    roll(ledger, NOW)
    shut(ledger, "2026-11")
    assert rows_of(ledger, "2026-10") == before
    found = {check.name: check for v in verify(ledger, "2026-11") for check in v.checks}
    assert all(check.ok for check in found.values())
    assert imbalance(ledger) == 0


def test_a_correction_that_is_not_priced_for_good_yet_has_the_rate_of_what_it_corrects(ledger):
    """Idle time is corrected, start-up stands as it was: both cost the same."""
    fill(ledger)
    quiet = OCTOBER + 24 * HOUR
    span(ledger, quiet, hours=1)
    shut(ledger, "2026-10")
    start = quiet + HOUR // 2
    ledger.insert([record("late", engine="b", gpu_type="L40", dispatched=start, ended=start + HOUR // 4)])
    roll(ledger, NOW)
    with ledger.read() as connection:
        posted = select(rollups.c.rate_micros).where(rollups.c.correction, rollups.c.nano_gpu_hours != 0)
        assert None in set(connection.execute(posted).scalars())
    all_right(ledger)


def test_by_force_within_the_hour(ledger):
    fill(ledger)
    ledger.insert([record("future", dispatched=DECEMBER + HOUR, ended=DECEMBER + 2 * HOUR)])
    shut(ledger, "2026-10")
    november = shut(ledger, "2026-11", now=DECEMBER, force=True)
    assert (november["state"], november["records"]) == ("closed", 60)
    assert shut(ledger, "2026-12", now=JANUARY + GRACE)["records"] == 1


def test_an_empty_month_can_be_closed(ledger):
    made = shut(ledger, "2026-10")
    assert (made["records"], made["currency"]) == (0, None)
    all_right(ledger)
