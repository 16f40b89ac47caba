"""Engine-hours that cannot be rolled up stop no others: on both databases, with what only a bad engine, an older
Florin or a hand in the database can have left there."""

import pytest
from sqlalchemy import select

from gateway.costs.closing.closing import ClosingError, close
from gateway.costs.maintenance.maintenance_job import maintain, read_figures
from gateway.costs.periods import Period, month_of
from gateway.costs.reconciliation.reconcile import reconcile
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import Rolled, roll
from gateway.costs.rollups.set_aside import NotSetAsideError, exclude, list_set_aside
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.audit_log import Wanted
from gateway.metering.ledger.audit_log import read as read_audit
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.quarantine import quarantined
from gateway.metering.ledger.schema import (
    dirty_hours,
    engine_counters,
    engine_probes,
    set_aside_hours,
)
from gateway.units import HOUR
from tests.support.ledger_rows import put
from tests.unit.gateway.metering.make import change_record, record

OCTOBER, NOVEMBER = month_of("2026-10").start, month_of("2026-11").start
LATE = month_of("2027-06").start
HALF = HOUR // 2
ABSURD = 9 * 10**18
PLACE = (OCTOBER, "gpu-bad", "H100", 1)


def used(name, start=OCTOBER, **changes):
    return record(name, dispatched=start, ended=start + HALF, **changes)


def poison(ledger, name="bad", start=OCTOBER, engine="gpu-bad", **changes):
    """A sound record that somebody changes behind the ledger's back."""
    made = used(name, start, engine=engine, tenant="bolt", adapter="bolt/support")
    ledger.insert([made])
    change(ledger, made.id, **(changes or {"completion_tokens": ABSURD}))
    return made


def change(ledger, id_, **changes):
    with ledger.write() as connection:
        change_record(connection, id_, **changes)


def count(ledger, table):
    with ledger.read() as connection:
        return len(connection.execute(select(table)).all())


def excluded(ledger, engine="gpu-bad", hour=OCTOBER, everything=False):
    return exclude(ledger, engine=engine, hour=hour, everything=everything, actor="key:k", now=LATE)


def report(ledger, **changes):
    question = Question(Period(OCTOBER, NOVEMBER), **{"by": ("tenant", "engine"), **changes})
    return cost_report(ledger, question, now=LATE)


def tokens(found):
    return {(row["tenant"], row["engine"]): row["completion_tokens"] for row in found["rows"]}


@pytest.fixture
def poisoned(ledger):
    """Two tenants on two engines in two hours; one hour of one engine holds what cannot be."""
    with_it, later = used("with", engine="gpu-bad"), used("later", OCTOBER + HOUR, engine="gpu-bad")
    ledger.insert([used("good"), with_it, later])
    poison(ledger)
    return ledger


def test_one_absurd_count_stops_no_other_hour_engine_or_tenant(poisoned):
    assert roll(poisoned, LATE) == Rolled(3, 0)
    found = report(poisoned)
    assert found["complete"]
    assert tokens(found) == {("acme", "gpu-a"): 5, ("acme", "gpu-bad"): 5}  # of the hour after
    [aside] = found["set_aside"]
    assert (aside["engine"], aside["hour"]) == ("gpu-bad", "2026-10-01T00:00:00Z")
    assert str(ABSURD) in aside["reason"]
    assert "completion_tokens" in aside["reason"]
    assert count(poisoned, dirty_hours) == 0
    again = report(poisoned)
    assert again == found
    assert [one["since"] for one in list_set_aside(poisoned)] == [aside["since"]]


def test_whatever_it_is_that_cannot_be(ledger):
    wrongs = [
        {"prompt_tokens": ABSURD},
        {"prompt_tokens": ABSURD, "completion_tokens": ABSURD, "cached_tokens": ABSURD},
        {"prompt_tokens": -ABSURD},
        {"completion_tokens": -1},
        {"cached_tokens": ABSURD},
        {"reasoning_tokens": ABSURD},
        {"adapter_loads": ABSURD},
        {"dispatched": -ABSURD},
        {"prompt_tokens": 10_240_000_001},
    ]
    ledger.insert([used("good")])
    for number, wrong in enumerate(wrongs):
        poison(ledger, f"bad-{number}", engine=f"bad-{number}", **wrong)
    maintain(ledger, LATE, 0)
    found = report(ledger)
    assert tokens(found) == {("acme", "gpu-a"): 5}
    assert [one["engine"] for one in found["set_aside"]] == [f"bad-{n}" for n in range(len(wrongs))]
    assert reconcile(ledger, "2026-10", now=LATE)["ok"] is False


def test_sums_beyond_64_bits_are_set_aside_though_every_record_can_be(ledger, monkeypatch):
    monkeypatch.setattr("gateway.costs.rollups.plausibility.MOST_TOKENS", ABSURD)
    ledger.insert([used("good")])
    for number in range(3):
        poison(ledger, f"bad-{number}", prompt_tokens=ABSURD // 2)
    roll(ledger, LATE)
    found = report(ledger)
    assert tokens(found) == {("acme", "gpu-a"): 5}
    assert "prompt_tokens sum to" in found["set_aside"][0]["reason"]


def test_a_content_that_nobody_thought_of_is_set_aside(ledger, monkeypatch):
    from gateway.costs.rollups import engine_hour as module  # patched here alone

    honest = module.divide

    def divide(pool, attempts):
        if any(a[0] == bad.id for a in attempts):
            raise ZeroDivisionError("division by zero")
        return honest(pool, attempts)

    monkeypatch.setattr(module, "divide", divide)
    bad = used("bad", engine="gpu-bad")
    ledger.insert([used("good"), bad])
    assert roll(ledger, LATE) == Rolled(2, 0)
    assert "ZeroDivisionError" in list_set_aside(ledger)[0]["reason"]
    assert tokens(report(ledger)) == {("acme", "gpu-a"): 5}


def test_places_that_cannot_be_are_set_aside_until_they_are_excluded(ledger):
    with ledger.write() as connection:
        mark_dirty(connection, [(OCTOBER + 1, "gpu-bad", "H100", 1), (OCTOBER, "gpu-bad", "H100", 10**15)])
    assert roll(ledger, LATE) == Rolled(2, 0)
    assert [one["engine"] for one in report(ledger)["set_aside"]] == ["gpu-bad", "gpu-bad"]
    for hour in (OCTOBER, OCTOBER + 1):
        excluded(ledger, hour=hour)
    assert (roll(ledger, LATE).pending, list_set_aside(ledger)) == (0, [])


def test_maintenance_goes_on_and_says_how_many(poisoned):
    maintain(poisoned, LATE, 0)
    figures = read_figures(poisoned, after=-1)
    assert figures.series["florin_ledger_set_aside"] == [[[], 1.0]]
    assert figures.series["florin_ledger_imbalance_nano_gpu_hours"] == [[[], 0.0]]
    assert {tuple(k): v for k, v in figures.series["florin_gpu_busy_seconds_total"]} == {
        ("gpu-a", "H100"): 1800.0,
        ("gpu-bad", "H100"): 1800.0,
    }


def test_a_month_with_such_an_hour_is_not_closed_until_somebody_decides(poisoned):
    with pytest.raises(ClosingError, match="set aside"):
        close(poisoned, "2026-10", now=LATE, by="key", allow_missing_prices=True)
    done = excluded(poisoned)
    assert (done.quarantined, done.kept) == (1, 0)
    closed = close(poisoned, "2026-10", now=LATE, by="key", allow_missing_prices=True)
    assert (closed["state"], closed["records"]) == ("closed", 3)
    [verified] = verify(poisoned, "2026-10")
    assert verified.ok


def test_excluding_takes_what_cannot_be_and_leaves_the_rest(poisoned):
    roll(poisoned, LATE)
    excluded(poisoned)
    found = report(poisoned)
    assert found["set_aside"] == []
    assert tokens(found) == {("acme", "gpu-a"): 5, ("acme", "gpu-bad"): 10}
    [held] = quarantined(poisoned)
    assert (held.reason, held.record["completion_tokens"], held.record["tenant"]) == (
        "excluded",
        ABSURD,
        "bolt",
    )
    [entry] = read_audit(poisoned, Wanted(action="usage.exclude"), 10)
    assert (entry.actor, entry.subject, entry.details["quarantined"]) == (
        "key:k",
        "gpu-bad@2026-10-01T00:00:00Z",
        1,
    )


def test_excluding_what_is_not_set_aside(poisoned):
    roll(poisoned, LATE)
    with pytest.raises(NotSetAsideError):
        excluded(poisoned, "gpu-a", everything=True)
    assert tokens(report(poisoned))[("acme", "gpu-a")] == 5


def test_a_closed_month_keeps_what_it_says(ledger):
    """A record that was changed behind the ledger's back after its month was closed, and an hour marked."""
    ledger.insert([used("good"), used("with", engine="gpu-bad")])
    close(ledger, "2026-10", now=LATE, by="key", allow_missing_prices=True)
    before = tokens(report(ledger))
    poison(ledger, "late")
    roll(ledger, LATE)
    assert tokens(report(ledger)) == before
    assert len(list_set_aside(ledger)) == 1
    done = excluded(ledger)
    assert (done.quarantined, done.kept) == (1, 0)
    roll(ledger, LATE)
    assert (list_set_aside(ledger), tokens(report(ledger))) == ([], before)


def test_a_record_that_a_closed_month_covers_stays_for_its_proofs(ledger):
    covered = used("covered", engine="gpu-bad")
    ledger.insert([used("good"), covered])
    close(ledger, "2026-10", now=LATE, by="key", allow_missing_prices=True)
    before = tokens(report(ledger))
    change(ledger, covered.id, completion_tokens=ABSURD)
    with ledger.write() as connection:
        mark_dirty(connection, [PLACE])
    roll(ledger, LATE)
    assert len(list_set_aside(ledger)) == 1
    done = excluded(ledger)
    assert (done.quarantined, done.kept) == (0, 1)
    roll(ledger, LATE)
    assert (list_set_aside(ledger), tokens(report(ledger))) == ([], before)


def test_absurd_counters_and_probes_of_one_engine_leave_the_others_drift(ledger):
    ledger.insert([used("good")])
    hour = OCTOBER
    rows = [
        {"engine": engine, "epoch": epoch, "hour": hour, "at": hour + HALF + 1, "prompt_tokens": n,
         "cached_tokens": n, "completion_tokens": n}
        for engine, epoch, n in [
            ("gpu-a", hour, 10), ("gpu-bad", ABSURD, 5), ("gpu-bad", -ABSURD, 5), ("gpu-bad", hour, ABSURD),
            ("gpu-bad", hour + 1, -ABSURD), ("gpu-bad", hour + 2, ABSURD),
        ]
    ]  # fmt: skip
    put(ledger, engine_counters, *rows)
    counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), ABSURD)
    put(
        ledger,
        engine_probes,
        *({"engine": "gpu-bad", "at": hour + 9, "id": str(n), **counts} for n in range(4)),
    )
    maintain(ledger, OCTOBER + HOUR + 1, 0)
    figures = read_figures(ledger, after=-1)
    drifting = {tuple(labels): value for labels, value in figures.series["florin_token_drift_ratio"]}
    assert drifting["gpu-a", "input"] == 0.0
    assert reconcile(ledger, "2026-10", now=LATE)["ok"] is False


def test_a_tenant_is_told_the_hour_and_not_the_reason(poisoned):
    own = report(poisoned, tenants=("acme",))
    assert [set(one) for one in own["set_aside"]] == [{"hour", "engine", "gpu_type"}]
    later = cost_report(poisoned, Question(Period(NOVEMBER, NOVEMBER + HOUR)), now=LATE)
    assert later["set_aside"] == []


def test_reconciling_says_so(poisoned):
    roll(poisoned, LATE)
    found = reconcile(poisoned, "2026-10", now=LATE)
    assert [one["engine"] for one in found["completeness"]["set_aside"]] == ["gpu-bad"]
    assert any("gpu-bad" in sentence and "set aside" in sentence for sentence in found["unexplained"])
    assert found["completeness"]["implausible"] == 1


def test_what_is_put_right_is_rolled_up_again(poisoned):
    roll(poisoned, LATE)
    bad = next(r for r in poisoned.usage(start=0, end=2**62) if r.request_id == "bad")
    change(poisoned, bad.id, completion_tokens=3)
    excluded(poisoned)  # tries again
    found = report(poisoned)
    assert (found["set_aside"], tokens(found)[("bolt", "gpu-bad")]) == ([], 3)
    assert count(poisoned, set_aside_hours) == 0


def test_a_record_that_comes_later_for_such_an_hour_changes_nothing(poisoned):
    roll(poisoned, LATE)
    poisoned.insert([used("late", engine="gpu-bad")])
    assert roll(poisoned, LATE) == Rolled(1, 0)
    assert len(list_set_aside(poisoned)) == 1
