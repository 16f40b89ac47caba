import errno

import orjson
import pytest

from gateway.metering import attempt as attempt_module
from gateway.metering.meter import Meter
from gateway.metering.records import Labels, Outcome, orphaned, parse_line
from gateway.metering.wal import log as wal_module
from gateway.observability.metrics import Metrics
from gateway.runtime import clock
from gateway.units import HOUR
from tests.support.waiting import PATIENCE_S, until

NAMES = {
    "tenant": "acme", "key_id": "k1", "adapter": "acme/support", "version": "v3", "base_model": "base",
    "engine": "gpu-a", "gpu_type": "H100", "gpu_count": 2, "n": 1,
}  # fmt: skip


@pytest.fixture
def ledger(ledger_with):
    return ledger_with()


@pytest.fixture
async def meter(tmp_path, ledger):
    made = Meter(tmp_path / "usage", ledger, Metrics())
    await made.start()
    yield made
    await made.close()


def records(ledger):
    return ledger.usage(start=0, end=2**62, limit=10_000)


def lines(tmp_path):
    """Everything that stands in the log at this moment."""
    files = sorted((tmp_path / "usage").glob("*/*.jsonl"))
    return [parse_line(line) for file in files for line in file.read_bytes().splitlines()]


class Clock:
    """The two clocks of an attempt, in step."""

    def __init__(self, monkeypatch, at):
        self.micros = at
        monkeypatch.setattr(clock.Clock, "now_ns", lambda _: self.micros * 1000)
        monkeypatch.setattr(attempt_module, "monotonic_ns", lambda: (self.micros - at + 1) * 1000)


def tick(meter):
    """As the log's thread does once a second."""
    meter._wal._ticked_at = 0
    meter._wal.flush()


def sample(meter, name, **labels):
    return meter._metrics.registry.get_sample_value(name, labels)


async def test_an_attempt_becomes_one_record(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.first_token()
    made.observe(10, 3, 4, 1)
    made.observe(10, 7, 4, 2)
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    [row] = records(ledger)
    assert {n: getattr(row, n) for n in NAMES} == NAMES
    assert (row.request_id, row.attempt, row.outcome, row.billable) == ("r", 1, "ok", True)
    counts = row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens
    assert counts == (10, 7, 4, 2)
    assert row.usage_source == "engine_final"
    assert row.dispatched <= row.first_token <= row.ended


TOP = 10_000_000
BAD = [
    ('7,"tenant":"victim"', 5, None, 0),
    (7.0, 5, None, 0),
    (7, TOP + 1, None, 0),
    (7, 5, 8, 0),
    (7, 5, None, 6),
]
"""test_token_counts.py has all the others."""


async def test_counts_that_cannot_be_reach_no_line(meter, ledger):
    for number, bad in enumerate(BAD):
        made = meter.begin(request_id=f"r{number}", attempt=1, **NAMES, estimate=12)
        made.observe(*bad)
        made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    assert len(records(ledger)) == len(BAD)
    for row in records(ledger):
        assert (row.tenant, row.prompt_tokens) == ("acme", 12)
        assert (row.completion_tokens, row.cached_tokens) == (0, None)
        assert (row.usage_source, row.reasoning_tokens, row.billable) == ("estimated", 0, True)


async def test_the_last_sound_counts_stand_where_later_ones_cannot_be(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES, estimate=12)
    made.observe(10, 3, 4, 1)
    made.observe(*BAD[0])
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    [row] = records(ledger)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (10, 3, 4)
    assert (row.usage_source, row.reasoning_tokens) == ("engine_partial", 1)


async def test_sound_counts_after_others_are_exact(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.observe("many", 3, None, 0)
    made.observe(10, 7, 4, 0)
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    [row] = records(ledger)
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (10, 7, "engine_final")


async def test_guesses_are_estimates_until_the_final_counts(meter, ledger):
    for request_id, exact in (("left", False), ("whole", True)):
        made = meter.begin(request_id=request_id, attempt=1, **NAMES, estimate=12)
        made.guess()
        made.observe(12, 3, None, 0)
        made.end(Outcome.OK, billable=True, exact=exact)
    await until(meter.flush)
    found = {r.request_id: (r.prompt_tokens, r.completion_tokens, r.usage_source) for r in records(ledger)}
    assert found == {"left": (12, 3, "estimated"), "whole": (12, 3, "engine_final")}


async def test_the_bound_is_of_what_was_asked_for(meter, ledger):
    names = {**NAMES, "n": 2}
    made = meter.begin(request_id="several", attempt=1, **names, prompts=3)
    made.observe(3 * TOP, 6 * TOP, None, 0)
    made.end(Outcome.OK, billable=True, exact=True)
    more = meter.begin(request_id="too many", attempt=1, **names, prompts=3, estimate=10**30)
    more.observe(3 * TOP + 1, 0, None, 0)
    more.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    found = {r.request_id: (r.prompt_tokens, r.completion_tokens, r.usage_source) for r in records(ledger)}
    assert found == {
        "several": (3 * TOP, 6 * TOP, "engine_final"),
        "too many": (3 * TOP, 0, "estimated"),
    }


async def test_an_engine_that_counts_backwards_leaves_marks_that_do_not(meter, ledger, monkeypatch):
    host = Clock(monkeypatch, 100 * HOUR + 5)
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.first_token()
    made.observe(100, 50, 90, 0)
    host.micros = 101 * HOUR + 1
    made.checkpoint()
    made.observe(60, 20, None, 0)
    host.micros = 102 * HOUR + 1
    made.checkpoint()
    made.observe(80, 30, None, 0)
    host.micros = 102 * HOUR + 2
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    [row] = records(ledger)
    assert orjson.loads(row.hour_marks) == [[101 * HOUR, 60, 60, 20], [102 * HOUR, 60, None, 20]]


async def test_the_first_end_wins(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.end(Outcome.CLIENT_ABORT, billable=True, exact=False)
    made.end(Outcome.OK, billable=False, exact=True)
    await until(meter.flush)
    assert [(r.outcome, r.billable) for r in records(ledger)] == [("client_abort", True)]


async def test_intent_and_final_are_written_when_the_call_returns(meter, tmp_path):
    made = meter.begin(request_id="r", attempt=2, **NAMES)
    await made.logged()
    [intent] = lines(tmp_path)
    assert (intent.kind, intent.request_id, intent.attempt) == ("intent", "r", 2)
    made.observe(10, 7, None, 0)
    made.end(Outcome.OK, billable=True, exact=True)
    assert [r.kind for r in lines(tmp_path)] == ["intent", "final"]
    assert lines(tmp_path)[1].completion_tokens == 7


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"adapter": "", "version": ""},
        {"key_id": 'a"b\\c', "base_model": "Ünï/\n", "gpu_type": '","seq":2147483647,"'},
    ],
)
async def test_lines_are_what_the_record_itself_would_write(meter, tmp_path, names):
    made = meter.begin(request_id='req-"1', attempt=1, **{**NAMES, **names}, adapter_loads=2, estimate=9)
    made.first_token()
    made.observe(10, 7, 4, 2)
    made.end(Outcome.CLIENT_ABORT, billable=True, exact=False)
    labels = Labels('ann "€"', None, "R&D")
    sold = {"service_tier": "batch", "task": "embed"}
    whole = meter.begin(request_id="whole", attempt=1, **NAMES, labels=labels, **sold)
    whole.end(Outcome.OK, billable=True, exact=True)
    files = sorted((tmp_path / "usage").glob("*/*.jsonl"))
    raw = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    assert len(raw) == 4
    for line in raw:
        assert parse_line(line).line() == line
    [last] = [r for r in map(parse_line, raw) if r.request_id == "whole" and r.kind == "final"]
    assert (last.end_user, last.tag, last.cost_centre) == labels
    assert (last.service_tier, last.task) == ("batch", "embed")


@pytest.mark.parametrize(
    ("counts", "exact", "worked", "expected"),
    [
        ((10, 3, None, 0), True, True, ("engine_final", 10)),
        ((10, 3, None, 0), False, True, ("engine_partial", 10)),
        ((0, 0, None, 0), True, True, ("estimated", 6)),
        (None, False, True, ("estimated", 6)),
        (None, False, False, ("none", 0)),
        ((10, 3, None, 0), False, False, ("engine_partial", 10)),
    ],
)
async def test_the_source_of_the_counts_is_honest(meter, ledger, counts, exact, worked, expected):
    made = meter.begin(request_id="r", attempt=1, **NAMES, estimate=6)
    if counts:
        made.observe(*counts)
    made.end(Outcome.OK, billable=True, exact=exact, worked=worked)
    await until(meter.flush)
    [row] = records(ledger)
    assert (row.usage_source, row.prompt_tokens) == expected


async def test_an_orphan_of_which_nothing_was_heard_counts_by_the_estimate(meter, tmp_path):
    meter.begin(request_id="r", attempt=1, **NAMES, estimate=6)
    orphan = orphaned(lines(tmp_path)[0])
    assert (orphan.prompt_tokens, orphan.completion_tokens, orphan.usage_source) == (6, 0, "estimated")


async def test_the_hosts_clock_may_be_set_while_an_attempt_runs(meter, ledger, monkeypatch):
    begun = clock.system_time()
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    monkeypatch.setattr(clock.time, "time_ns", lambda: 1)
    made.first_token()
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    [row] = records(ledger)
    assert begun - SECOND < row.dispatched <= row.first_token <= row.ended < begun + 60 * SECOND


async def test_when_the_clock_of_what_is_booked_is_set_an_attempt_is_booked_until_then(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.first_token()
    kept, up = meter.clock, clock.uptime()
    kept._eras = [*kept._eras, (up, kept._eras[0][1] - HOUR)]
    later = meter.begin(request_id="later", attempt=1, **NAMES)
    for attempt in (made, later):
        attempt.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    after, before = records(ledger)
    assert abs(before.ended - (up + kept._eras[0][1])) <= 1000
    assert before.dispatched <= before.first_token <= before.ended
    assert HOUR - 60 * SECOND < before.ended - after.ended < HOUR


async def test_an_attempt_that_runs_on_is_in_the_log_with_its_checkpoints(
    meter, ledger, tmp_path, monkeypatch
):
    host = Clock(monkeypatch, 100 * HOUR)
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    await until(meter.flush)
    made.first_token()
    for seconds in range(1, 16):
        host.micros = 100 * HOUR + seconds * 1_000_000
        made.observe(10, seconds, None, 0)
        tick(meter)
    found = [(r.seq, r.completion_tokens, (r.seen - r.dispatched) // 1_000_000) for r in lines(tmp_path)]
    assert found == [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 4, 4), (4, 8, 8), (5, 13, 13)]
    await until(meter.flush)
    assert records(ledger) == []
    meter._metrics.engine_up("gpu-a", "H100", up=True)  # it is shown while its engine is registered
    assert sample(meter, "florin_in_flight", engine="gpu-a") == 1
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    assert [r.outcome for r in records(ledger)] == ["ok"]
    assert sample(meter, "florin_in_flight", engine="gpu-a") == 0


SECOND = 1_000_000


def marks(record):
    return record.hour_marks and orjson.loads(record.hour_marks)


async def test_an_attempt_that_runs_across_hours_says_how_far_it_was_at_each_turn(
    meter, ledger, tmp_path, monkeypatch
):
    host = Clock(monkeypatch, 100 * HOUR - 10 * SECOND)
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.first_token()
    made.observe(10, 3, None, 0)
    tick(meter)
    host.micros = 100 * HOUR + SECOND // 2
    made.observe(10, 50, None, 0)
    tick(meter)
    assert marks(lines(tmp_path)[-1]) == [[100 * HOUR, 10, None, 50]]  # an orphan would keep it
    host.micros = 101 * HOUR + SECOND // 2
    made.observe(10, 700, None, 0)
    tick(meter)
    host.micros = 102 * HOUR + SECOND // 2  # it ends before the tick has seen the hour turn
    made.observe(10, 900, 4, 0)
    made.end(Outcome.OK, billable=True, exact=True)
    await until(meter.flush)
    [row] = records(ledger)
    assert marks(row) == [[100 * HOUR, 10, None, 50], [101 * HOUR, 10, None, 700], [102 * HOUR, 10, 4, 900]]
    assert row.dispatched < 100 * HOUR
    assert row.ended > 102 * HOUR


async def test_an_open_attempt_stays_in_the_log_when_its_segment_goes(tmp_path, ledger):
    meter = Meter(tmp_path / "usage", ledger, Metrics(), segment_bytes=2000)
    await meter.start()
    long = meter.begin(request_id="long", attempt=1, **NAMES)
    for number in range(30):
        meter.begin(request_id=f"r{number}", attempt=1, **NAMES).end(Outcome.OK, billable=True, exact=True)
        await until(meter.flush)
    log = {path.name: path.read_bytes() for path in (tmp_path / "usage").glob("*/*.jsonl")}
    assert "00000001.jsonl" not in log
    assert any(b'"request_id":"long"' in text for text in log.values())
    long.end(Outcome.OK, billable=True, exact=True)
    await meter.close()
    assert len(records(ledger)) == 31


async def test_close_ships_everything_and_leaves_no_file(tmp_path, ledger):
    meter = Meter(tmp_path / "usage", ledger, Metrics(), last_seconds=PATIENCE_S)
    await meter.start()
    for number in range(50):
        meter.begin(request_id=f"r{number}", attempt=1, **NAMES).end(Outcome.OK, billable=True, exact=True)
    left_open = meter.begin(request_id="open", attempt=1, **NAMES)
    await meter.close()
    left_open.end(Outcome.CLIENT_ABORT, billable=True, exact=False)  # too late, and harmless
    assert sorted({r.outcome for r in records(ledger)}) == ["ok", "orphaned"]
    assert len(records(ledger)) == 51
    assert list((tmp_path / "usage").iterdir()) == []


async def test_metrics_follow_the_records(meter):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.first_token()
    made.observe(10, 7, 4, 0)
    made.end(Outcome.OK, billable=True, exact=True)
    meter.reject(request_id="x", tenant="acme", key_id="k", adapter=None)
    await until(meter.flush)
    labels = {"adapter": "acme/support", "gpu_type": "H100"}
    assert sample(meter, "florin_requests_total", adapter="acme/support", outcome="ok") == 1
    assert sample(meter, "florin_requests_total", adapter="__unknown__", outcome="rejected") == 1
    assert sample(meter, "florin_tokens_total", **labels, token_type="input") == 6
    assert sample(meter, "florin_tokens_total", **labels, token_type="cached") == 4
    assert sample(meter, "florin_tokens_total", **labels, token_type="output") == 7
    assert sample(meter, "florin_tenant_tokens_total", tenant="acme", token_type="output") == 7
    for name in ("time_to_first_token", "request_duration"):
        assert sample(meter, f"florin_{name}_seconds_count", engine="gpu-a") == 1
        assert sample(meter, f"florin_adapter_{name}_seconds_count", adapter="acme/support") == 1


async def test_a_flood_of_rejections_does_not_fill_the_ledger(meter, ledger):
    for number in range(3000):
        meter.reject(request_id=f"x{number}", tenant="acme", key_id="k")
    meter.reject(request_id="nobody", tenant="", key_id="")
    await until(meter.flush)
    kept = records(ledger)
    assert 0 < len(kept) < 1500
    assert {(r.outcome, r.engine, r.prompt_tokens, r.billable) for r in kept} == {("rejected", "", 0, False)}
    assert sample(meter, "florin_requests_total", adapter="__unknown__", outcome="rejected") == 3001


@pytest.mark.parametrize("serve", [False, True])
async def test_the_setting_decides_what_a_full_disk_means(tmp_path, ledger, monkeypatch, serve):
    meter = Meter(tmp_path / "usage", ledger, Metrics(), serve_when_full=serve)
    await meter.start()
    assert meter.accepting

    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(wal_module.os, "write", full)
        made = meter.begin(request_id="meanwhile", attempt=1, **NAMES)
        assert meter.accepting is serve
        made.end(Outcome.OK, billable=True, exact=True)
    meter._wal._retry_at = 0
    await until(meter.flush)
    assert meter.accepting
    assert [r.request_id for r in records(ledger)] == ["meanwhile"]
    await meter.close()
