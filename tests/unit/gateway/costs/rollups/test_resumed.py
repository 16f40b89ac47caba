"""A stream that one engine began and another ended: one answer on the bill, and the second reading is waste."""

import orjson
import pytest

from gateway.costs.closing.closing import GRACE, close
from gateway.costs.periods import month_of
from gateway.costs.reconciliation.completeness import completeness
from gateway.costs.rollups.rollup import imbalance, roll
from gateway.costs.verification.verify import verify
from gateway.units import HOUR
from tests.unit.gateway.costs.month import NOVEMBER, OCTOBER, fill
from tests.unit.gateway.costs.rolled import lines
from tests.unit.gateway.metering.make import record


@pytest.fixture
def ledger(ledger_with):
    """Nothing here depends on the kind of database."""
    return ledger_with()


ENGINES = {"a": ("H100", 2), "b": ("L40", 1)}
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def attempt(number, engine, start, seconds, **changes):
    gpu_type, count = ENGINES[engine]
    return record(
        "resumed", number, tenant="dora", adapter="dora/x", engine=engine, gpu_type=gpu_type, gpu_count=count,
        dispatched=start, ended=start + seconds * 1_000_000, **changes,
    )  # fmt: skip  # as a table


def resumed(ledger, **changes):
    """300 tokens of prompt and 40 of 100; then these 340 read once more, and the other 60, over an hour's
    turn."""
    turn = OCTOBER + 2 * HOUR
    begun = attempt(
        1, "a", turn - 90_000_000, 30, prompt_tokens=300, completion_tokens=40,
        usage_source="engine_partial", outcome="engine_error",
    )  # fmt: skip  # as a table
    marks = orjson.dumps([[turn, 340, 32, 20]]).decode()
    rest = {"outcome": "resumed", "completion_tokens": 60, "hour_marks": marks} | changes
    ledger.insert(
        [begun, attempt(2, "b", turn - 50_000_000, 90, prompt_tokens=340, cached_tokens=32, **rest)]
    )


def sums(ledger):
    roll(ledger, NOVEMBER)
    found = list(lines(ledger, month_of("2026-10"), ("tenant",), tenants=["dora"]))
    return {
        bucket: tuple(sum(getattr(line, name) for line in found if line.bucket == bucket) for name in SUMS)
        for bucket in {line.bucket for line in found}
    }


@pytest.mark.parametrize("outcome", ["resumed", "resumed_cut"])
def test_the_customer_pays_for_one_answer(ledger, outcome):
    resumed(ledger, outcome=outcome)
    assert sums(ledger) == {"usage": (1, 300, 0, 100), "retry_waste": (1, 340, 32, 0)}
    assert imbalance(ledger) == 0


def test_a_continuation_that_delivered_nothing_is_waste(ledger):
    resumed(ledger, outcome="failover", completion_tokens=0, hour_marks=None, billable=False)
    assert sums(ledger) == {"usage": (1, 300, 0, 40), "retry_waste": (1, 340, 32, 0)}


def test_the_month_closes_and_verifies_and_nothing_was_delivered_twice(ledger):
    fill(ledger)
    resumed(ledger)
    close(ledger, "2026-10", now=NOVEMBER + GRACE, by="key", policy="even")
    (verified,) = verify(ledger)
    assert all(check.ok for check in verified.checks), verified
    with ledger.read() as connection:
        assert completeness(connection, "2026-10", month_of("2026-10"))["delivered_twice"] == 0
