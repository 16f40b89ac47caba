from dataclasses import replace
from uuid import uuid5

import orjson
import pytest

from gateway.metering.records import NAMESPACE, is_final, orphaned, parse_line, record_id
from tests.unit.gateway.metering.make import HOUR, intent, record


@pytest.mark.parametrize("name", ["req-1", "r", "ü" * 50, "a/b/1"])
@pytest.mark.parametrize("attempt", [0, 1, 17])
def test_id_is_the_uuid5_of_request_and_attempt(name, attempt):
    assert record_id(name, attempt) == str(uuid5(NAMESPACE, f"{name}/{attempt}"))


@pytest.mark.parametrize(
    "made",
    [
        record(),
        intent(),
        record(cached_tokens=3),
        record(first_token=None),
        record(adapter_loads=2, hour_marks="[[360000000000,1,null,2]]"),
    ],
)
def test_a_line_comes_back_as_the_record_that_it_was(made):
    assert made.line().endswith(b"\n")
    assert parse_line(made.line()) == made


def test_lines_of_the_version_before_are_still_read():
    made = record(adapter_loads=0, hour_marks=None)
    data = orjson.loads(made.line())
    del data["adapter_loads"], data["hour_marks"]
    assert parse_line(orjson.dumps(data)) == made


def test_only_finals_are_taken_for_finals():
    assert is_final(record().line())
    assert not is_final(intent().line())
    assert not is_final(intent(request_id='","seq":2147483647,"').line())


def test_kinds_follow_from_seq():
    assert [intent().kind, intent(seq=3).kind, record().kind] == ["intent", "checkpoint", "final"]


@pytest.mark.parametrize("cut", [1, 10, 200, -2])
def test_a_torn_line_is_refused(cut):
    with pytest.raises(ValueError):
        parse_line(record().line()[:cut])


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_tokens": "10"},
        {"prompt_tokens": None},
        {"prompt_tokens": 10.5},
        {"prompt_tokens": 2**63},
        {"billable": 1},
        {"tenant": None},
        {"tenant": "a\0b"},
        {"extra": 1},
        {"hour_marks": 5},
        {"adapter_loads": None},
        {"outcome": "unheard of"},
        {"usage_source": ""},
        {"ended": None},
        {"dispatched": -1},
        {"ended": 100 * HOUR - 1},
        {"dispatched": 0, "ended": 10_000 * HOUR},
    ],
)
def test_what_no_ledger_can_hold_is_refused(change):
    data = orjson.loads(record().line()) | change
    with pytest.raises(ValueError):
        parse_line(orjson.dumps(data))


def test_long_digits_in_a_name_are_no_number():
    made = record(request_id="x:1234567890123456789 u0000")
    assert parse_line(made.line()) == made


def test_an_orphan_is_closed_from_its_last_line_alone():
    last = intent(
        seq=4, prompt_tokens=7, completion_tokens=9, usage_source="engine_partial", seen=100 * HOUR + 5
    )
    made = orphaned(last)
    assert (made.outcome, made.billable, made.ended, made.kind) == (
        "orphaned",
        False,
        100 * HOUR + 5,
        "final",
    )
    assert (made.prompt_tokens, made.completion_tokens, made.usage_source) == (7, 9, "engine_partial")
    assert made == orphaned(last)


def test_an_orphan_never_ends_before_it_began():
    assert orphaned(replace(intent(), seen=0)).ended == 100 * HOUR
