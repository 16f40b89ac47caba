"""Answers that are stored with their usage records, and what is logged of them."""

from __future__ import annotations

from gateway.metering.held_finals import HeldFinals
from gateway.metering.records import Outcome, parse_line
from tests.unit.gateway.metering.test_meter import NAMES, meter  # noqa: F401  # a fixture


def logged(tmp_path):
    files = sorted((tmp_path / "usage").glob("*/*.jsonl"))
    return [parse_line(line) for file in files for line in file.read_bytes().splitlines(keepends=True)]


def attempt(meter, finals, number=1):  # noqa: F811  # the fixture's value
    made = meter.begin(request_id="r", attempt=number, **NAMES, service_tier="batch", held_finals=finals)
    made.observe(10, 7, 4, 2)
    return made


async def test_a_final_is_held_until_it_is_stored(meter, tmp_path):  # noqa: F811  # the fixture
    finals = HeldFinals()
    assert finals.record is None
    made = attempt(meter, finals)
    made.end(Outcome.OK, billable=True, exact=True)
    assert [line.kind for line in logged(tmp_path)] == ["intent"]
    assert made.billed == (10, 4, 7)
    record = finals.record
    assert (record.kind, record.billable, record.prompt_tokens, record.service_tier) == (
        "final",
        True,
        10,
        "batch",
    )
    # A new segment of the log begins with it, as with every attempt that is open.
    [carried] = [parse_line(line) for line in meter._carry()]
    assert (carried.kind, carried.id, carried.completion_tokens) == ("checkpoint", record.id, 7)
    finals.release(delivered=True)
    finals.release(delivered=False)
    assert logged(tmp_path)[-1] == record
    assert list(meter._carry()) == []


async def test_what_nobody_will_see_is_not_billed(meter, tmp_path):  # noqa: F811  # the fixture
    finals = HeldFinals()
    attempt(meter, finals).end(Outcome.OK, billable=True, exact=True)
    finals.release(delivered=False)
    last = logged(tmp_path)[-1]
    assert (last.kind, last.outcome, last.billable, last.completion_tokens) == ("final", "orphaned", False, 7)


async def test_attempts_that_failed_are_logged_at_once(meter, tmp_path):  # noqa: F811  # the fixture
    finals = HeldFinals()
    attempt(meter, finals).end(Outcome.FAILOVER, billable=False, exact=False)
    assert logged(tmp_path)[-1].outcome == "failover"
    assert finals.record is None
    finals.release(delivered=False)
    assert len(logged(tmp_path)) == 2
