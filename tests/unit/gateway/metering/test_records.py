from uuid import uuid5

import orjson
import pytest
from pydantic import ValidationError

import gateway.dataplane.request
from gateway.fleet.engines.schemas.registration import NewEngine
from gateway.metering.records import NAMESPACE, is_final, orphaned, parse_line, record_id
from gateway.metering.token_counts import MAX_CHOICES, MAX_GPUS
from gateway.units import HOUR
from tests.unit.gateway.metering.make import intent, record


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
        record(dispatched=100 * HOUR - 50, adapter_loads=2, hour_marks="[[360000000000,1,null,2]]"),
        record(end_user="ann", tag="€ batch", cost_centre="R&D"),
        intent(tag="x" * 64),
        record(service_tier="batch"),
        record(task="embed"),
    ],
)
def test_a_line_comes_back_as_the_record_that_it_was(made):
    assert made.line().endswith(b"\n")
    assert parse_line(made.line()) == made


def test_a_line_that_lacks_a_field_is_refused():
    data = orjson.loads(record().line())
    del data["hour_marks"]
    with pytest.raises(ValueError, match="not a usage record"):
        parse_line(orjson.dumps(data))


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


FORGED = {
    "another attempt's id": {"attempt": 2},
    "no tenant": {"tenant": ""},
    "a tenant that no registry knows": {"tenant": "Acme Ltd."},
    "an adapter without a tenant": {"adapter": "support"},
    "an adapter with two": {"adapter": "acme/support/v1"},
    "a version that is none": {"version": "latest"},
    "version zero": {"version": "v0"},
    "an engine with a line's end": {"engine": "gpu-a\n"},
    "a GPU type without end": {"gpu_type": "H" * 2000},
    "a key id without end": {"key_id": "k" * 2000},
    "more prompt tokens than any context has": {"prompt_tokens": 10_000_000 * 1024 + 1},
    "more prompt tokens than n leaves prompts for": {"n": 1024, "prompt_tokens": 10_000_001},
    "more answer than any context has": {"completion_tokens": 10_000_000 * 1024 + 1},
    "negative": {"prompt_tokens": -1},
    "negative cached": {"cached_tokens": -1},
    "negative reasoning": {"reasoning_tokens": -1},
    "more cached than there was": {"cached_tokens": 11},
    "more reasoning than answer": {"reasoning_tokens": 6},
    "more choices than a request may have": {"n": 1025},
    "negative n": {"n": -1},
    "negative GPUs": {"gpu_count": -1},
    "more GPUs than there are": {"gpu_count": 2**40},
    "negative loads": {"adapter_loads": -1},
    "an end user without end": {"end_user": "u" * 65},
    "an empty tag": {"tag": ""},
    "a tag with a line's end": {"tag": "a\n"},
    "a tier that nobody sells": {"service_tier": "flex"},
    "a task that nobody has": {"task": "generate"},
    "a cost centre that stands for others": {"cost_centre": "__other__"},
    "a first token before the dispatch": {"first_token": 100 * HOUR - 1},
    "a first token after the end": {"first_token": 101 * HOUR},
    "the year 9999": {"dispatched": 2**58, "first_token": None, "ended": 2**58},
    "seen in the year 9999": {"seen": 2**58},
    "a final that says it is none": {"outcome": ""},
    "an intent that is billable": {"seq": 0, "ended": None, "outcome": "", "billable": True},
    "an intent with an outcome": {"seq": 0, "ended": None, "billable": False},
    "a checkpoint that has ended": {"seq": 3, "outcome": "", "billable": False},
    "a negative seq": {"seq": -1, "ended": None, "outcome": "", "billable": False},
    **{
        f"hour marks {marks}": {"ended": 103 * HOUR, "seen": 103 * HOUR, "hour_marks": marks}
        for marks in (
            "", "null", "{}", "7", "[]", "[7]", "[[]]", "[[1,2,3]]", f"[[{101 * HOUR},1,null]]",
            f"[[{101 * HOUR + 1},1,null,1]]", f"[[{100 * HOUR},1,null,1]]", f"[[{104 * HOUR},1,null,1]]",
            f"[[{101 * HOUR},11,null,1]]", f"[[{101 * HOUR},1,null,6]]", f"[[{101 * HOUR},1,2,1]]",
            f"[[{101 * HOUR},-1,null,1]]", f"[[{101 * HOUR},true,null,1]]", f"[[{101 * HOUR},1.0,null,1]]",
            f"[[{101 * HOUR},2,null,2],[{102 * HOUR},1,null,2]]",
            f"[[{101 * HOUR},2,null,2],[{102 * HOUR},2,null,1]]",
            f"[[{102 * HOUR},1,null,1],[{101 * HOUR},1,null,1]]",
            f"[[{101 * HOUR},1,null,1],[{101 * HOUR},1,null,1]]",
        )
    },
}  # fmt: skip  # a line each


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_what_the_writer_could_not_have_written_is_refused(change):
    data = orjson.loads(record().line()) | change
    with pytest.raises(ValueError, match="not a usage record"):
        parse_line(orjson.dumps(data))


@pytest.mark.parametrize(
    "respell",
    [
        lambda line: line.replace(b'"prompt_tokens":10', b'"prompt_tokens":7,"prompt_tokens":10'),
        lambda line: line.replace(b'"tenant":"acme"', b'"tenant":"acme","tenant":"acme"'),
        lambda line: line.replace(b'"acme"', b'"\\u0061cme"'),
        lambda line: line.replace(b'"n":1', b'"n":1e0'),
        lambda line: line.replace(b'"n":1', b'"n":-0'),
        lambda line: line.replace(b'":', b'": '),
        lambda line: b" " + line,
        lambda line: line.rstrip(b"\n") + b" \n",
        lambda line: b"[" + line.rstrip(b"\n") + b"]",
    ],
)
def test_there_is_one_spelling_of_a_record(respell):
    line = record().line()
    assert respell(line) != line
    with pytest.raises(ValueError):
        parse_line(respell(line))


def test_the_injection_that_made_a_record_of_another_tenant_is_refused():
    """`"prompt_tokens": "7,\\"tenant\\":\\"victim\\""` from an engine, put between the quotes of a line."""
    line = record().line().replace(b'"prompt_tokens":10', b'"prompt_tokens":7,"tenant":"victim"')
    assert orjson.loads(line)["tenant"] == "victim"  # what a careless reader would bill
    with pytest.raises(ValueError, match="canonical form"):
        parse_line(line)


def test_the_bounds_are_those_of_whoever_lets_requests_and_engines_in():
    assert MAX_CHOICES == gateway.dataplane.request.MAX_CHOICES
    with pytest.raises(ValidationError):
        NewEngine(
            name="a", url="http://a", base="b", gpu_type="g", slots=1, max_rank=8, gpu_count=MAX_GPUS + 1
        )
    NewEngine(name="a", url="http://a", base="b", gpu_type="g", slots=1, max_rank=8, gpu_count=MAX_GPUS)


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
    assert orphaned(intent()._replace(seen=0)).ended == 100 * HOUR
