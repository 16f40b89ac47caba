"""The judges of the chaos run: each would see what it looks for. And the schedule, which a seed decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests.chaos import checks
from loadtests.chaos.checks import Limits, Record, State, Window
from loadtests.chaos.faults import FAULTS
from loadtests.chaos.schedule import KINDS, Event, conflict, plan
from loadtests.chaos.voices import Heard

COUNTS = {"engine": 3, "gateway": 2, "worker": 4, "redis": 1, "postgres": 1}
VOICES = {"acme": "I am fl-a\nCards", "bolt": "I am fl-b\nCards"}
HEARD = Heard(
    "acme", 0, stream=True, hot=True, began=10.0, ended=11.0, request_id="req-1", engine="e0", finished=True,
    text="I am fl-a\n", usage=(5, 2),
)  # fmt: skip
RECORD = Record("id-1", "req-1", 1, "acme", "e0", "ok", True, True, 5, 2)
BEGUN = replace(RECORD, outcome="engine_error", exact=False, completion_tokens=1)
RESUMED = replace(RECORD, id="id-2", attempt=2, outcome="resumed", prompt_tokens=6, completion_tokens=1)
STATE = State(
    placements={"gateway 0": {"e0": frozenset({"fl-a"})}}, loaded={"e0": frozenset({"fl-a"})},
    leases={"e0": 0}, conditions={"gateway 0": frozenset()}, descriptors={"w": 40}, memory={"w": 100},
)  # fmt: skip
LIMITS = Limits(descriptors=50, memory=200)


def replace_heard(**fields) -> Heard:
    return replace(HEARD, **fields)


def window(kind: str, victim: int = 0, began: float = 10.0, ended: float = 12.0) -> Window:
    return Window(Event(1, kind, victim, 0.0, 1.0, 0.5), began, ended)


# -- the schedule


def test_a_seed_decides_the_schedule():
    one = plan(7, COUNTS, kinds=KINDS, kills=50)
    assert one == plan(7, COUNTS, kinds=KINDS, kills=50)
    assert one != plan(8, COUNTS, kinds=KINDS, kills=50)
    assert sum(KINDS[event.kind].kill for event in one) == 50
    assert {event.kind for event in one} == set(KINDS)
    assert all(event.victim < COUNTS[event.role] for event in one)
    assert [event.start for event in one] == sorted(event.start for event in one)


@pytest.mark.parametrize("seed", range(5))
def test_faults_that_conflict_never_meet(seed):
    events = plan(seed, COUNTS, kinds=KINDS, kills=50)
    for one in events:
        for other in events[one.number :]:
            if conflict(one.kind, other.kind):
                assert other.start >= one.end


def test_each_fault_can_be_done():
    assert FAULTS.keys() == KINDS.keys()


# -- what clients saw


def test_voices():
    assert checks.wrong_voices([HEARD, replace_heard(text="")], VOICES) == []
    (said,) = checks.wrong_voices([replace_heard(text="I am fl-b")], VOICES)
    assert said == "acme was answered with words of bolt (req-1, e0)"
    (said,) = checks.wrong_voices([replace_heard(text="I am fl-a\nCards Cards")], VOICES)
    assert "I am fl-a" in said


@pytest.mark.parametrize(
    ("kind", "victim", "fields", "excused"),
    [
        ("engine-kill", 0, {"error": "stream_interrupted"}, True),
        ("engine-kill", 0, {"error": "connection"}, False),
        ("engine-slow", 0, {"error": "stream_interrupted"}, False),
        ("worker-kill", 1, {"error": "connection"}, True),
        ("worker-kill", 2, {"error": "connection"}, False),  # a worker of the other gateway
        ("gateway-kill", 0, {"error": "connection"}, True),
        ("gateway-kill", 1, {"error": "connection"}, False),
        ("gateway-kill", 0, {"error": "shutting_down"}, True),
        ("worker-kill", 0, {"error": "shutting_down"}, False),
        ("redis-cut", 0, {"error": "store_unavailable"}, False),  # resident
        ("redis-cut", 0, {"error": "store_unavailable", "hot": False}, True),
        ("redis-cut", 0, {"error": "store_unavailable", "hot": False, "began": 16.0, "ended": 17.0}, False),
        ("redis-flushed", 0, {"error": "invalid_api_key"}, False),
        ("disk-full", 0, {"error": "metering_unavailable"}, True),
        ("disk-full", 1, {"error": "metering_unavailable"}, False),
        ("postgres-kill", 0, {"error": "ledger_unavailable"}, False),
        ("engine-hang", 0, {"error": "timeout"}, False),
    ],
)
def test_errors_need_a_cause(kind, victim, fields, excused):
    heard = replace_heard(finished=False, **fields)
    found = checks.unexcused([HEARD, heard], [window(kind, victim)], workers=2, zero=0.0)
    assert (found == []) == excused
    if not excused:
        assert found[0].startswith(f"1 times {fields['error']} during ")


def test_a_tenant_is_suspended_after_three_deaths_and_not_before():
    heard = replace_heard(finished=False, error="adapter_suspended", began=30.0, ended=31.0)
    deaths = [window("engine-kill", began=at, ended=at + 1) for at in (1.0, 10.0, 20.0)]
    assert checks.unexcused([heard], deaths, workers=2, zero=0.0) == []
    assert checks.unexcused([heard], deaths[1:], workers=2, zero=0.0) != []
    assert checks.unexcused([heard], [*deaths[1:], window("engine-slow")], workers=2, zero=0.0) != []


# -- the ledger


@pytest.mark.parametrize(
    ("heard", "records", "found"),
    [
        (HEARD, [RECORD], ""),
        (HEARD, [RECORD, replace(RECORD, id="id-0", attempt=2, billable=False, outcome="failover")], ""),
        (HEARD, [], "billed 0 times"),
        (HEARD, [RECORD, replace(RECORD, id="id-2", attempt=2)], "billed 2 times"),
        (HEARD, [replace(RECORD, completion_tokens=3)], r"the client saw \(5, 2\), billed \(5, 3\)"),
        (HEARD, [BEGUN, RESUMED], ""),
        (HEARD, [BEGUN, replace(RESUMED, completion_tokens=2)], r"the client saw \(5, 2\), billed \(5, 3\)"),
        (HEARD, [BEGUN, replace(RESUMED, outcome="ok")], "billed 2 times"),
        (HEARD, [RESUMED], r"billed \(6, 1\)"),
        (replace_heard(stream=False), [BEGUN, RESUMED], "billed 2 times"),
        (HEARD, [replace(RECORD, tenant="bolt")], "was answered completely, but its record is"),
        (HEARD, [replace(RECORD, outcome="orphaned")], "was answered completely, but its record is"),
        (HEARD, [replace(RECORD, exact=False)], "was answered completely, but its record is"),
        (replace_heard(finished=False, error="connection"), [], "is not in the ledger"),
        (replace_heard(finished=False, engine="", error="no_engine"), [], ""),
    ],
)
def test_each_answer_is_billed_once(heard, records, found):
    said = checks.misbooked([heard], records)
    assert bool(said) == bool(found)
    if found:
        with pytest.raises(AssertionError, match=found):
            raise AssertionError(said[0])


def test_records_that_come_twice():
    assert checks.repeated([RECORD, replace(RECORD, id="id-2", attempt=2)]) == []
    assert len(checks.repeated([RECORD, RECORD])) == 2
    assert len(checks.repeated([RECORD, replace(RECORD, id="id-2")])) == 1


def test_attempts_without_a_record():
    assert checks.unrecorded(["req-1-1"], [RECORD]) == []
    assert checks.unrecorded(["req-1-2"], [RECORD]) == ["req-1-2 reached an engine but is not in the ledger"]


def test_an_impossible_ledger():
    assert checks.unbalanced([], {"e0": 100.0}, elapsed=100.0) == []
    assert checks.unbalanced(["e0: parts 1, whole 2"], {}, 1.0) == ["e0: parts 1, whole 2"]
    assert checks.unbalanced([], {"e0": 7300.0}, elapsed=100.0) == [
        "e0 existed for at most 100 s, but 7300 s are recorded"
    ]


# -- what is left


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loaded": {"e0": frozenset()}}, "gateway 0 believes e0 holds ['fl-a'] versions too many, [] too few"),
        ({"loaded": {"e0": frozenset({"fl-a", "fl-b"})}}, "gateway 0 believes e0 holds [] versions too many, ['fl-b'] too few"),
        ({"leases": {"e0": 1}}, "1 leases left on e0"),
        ({"in_flight": ["gateway 0: florin_in_flight{} 1"]}, "still in flight: gateway 0: florin_in_flight{} 1"),
        ({"conditions": {"gateway 0": frozenset({"feed_lost"})}}, "gateway 0 reports feed_lost"),
        ({"problems": [("engine", "e0: it is down")]}, "doctor: engine e0: it is down"),
        ({"processes": ["process 1 was left behind"]}, "process 1 was left behind"),
        ({"files": ["gateway 0 keeps the usage log 1"]}, "gateway 0 keeps the usage log 1"),
        ({"descriptors": {"w": 51}}, "w has 51 descriptors (limit: 50)"),
        ({"memory": {"w": 2**30}}, "w uses 1024 MiB (limit: 0 MiB)"),
    ],
)  # fmt: skip
def test_what_is_left_behind(fields, said):
    assert checks.unsettled(STATE, LIMITS, {}) == []
    assert checks.unsettled(replace(STATE, **fields), LIMITS, {}) == [said]


def test_a_gateway_whose_workers_were_killed_may_say_so():
    kills = [
        window("worker-kill", victim, began=at) for victim, at in ((0, 1.0), (1, 2.0), (0, 3.0), (3, 4.0))
    ]
    due = checks.conditions_due(kills, workers=2, now=100.0)
    assert due == {"gateway 0": frozenset({"workers_crash"})}
    assert checks.conditions_due(kills, workers=2, now=1000.0) == {}
    deaths = [window("engine-kill", began=at, ended=at + 1) for at in (1.0, 10.0, 20.0)]
    assert checks.conditions_due(deaths, workers=2, now=100.0) == {"": frozenset({"engine_deaths"})}
    assert checks.conditions_due(deaths[1:], workers=2, now=100.0) == {}
    assert checks.conditions_due(deaths, workers=2, now=10_000.0) == {}
    said = {"gateway 0": frozenset({"workers_crash"}), "gateway 1": frozenset({"workers_crash"})}
    state = replace(STATE, conditions=said, problems=[("workers_crash", ": again and again")])
    assert checks.unsettled(state, LIMITS, due) == ["gateway 1 reports workers_crash"]


def test_keys_that_were_acknowledged_stay():
    lost = {"fl_1": 11.0}
    assert checks.lost_keys({}, []) == []
    assert checks.lost_keys(lost, [window("redis-failover")]) == []  # it lost writes
    assert checks.lost_keys(lost, [window("redis-kill")]) == ["key fl_1 was acknowledged but is refused"]
