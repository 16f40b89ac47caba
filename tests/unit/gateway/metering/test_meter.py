import pytest

from gateway.metering import attempt as attempt_module
from gateway.metering import meter as meter_module
from gateway.metering.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.metering.records import Outcome
from gateway.metrics import Metrics

NAMES = {
    "tenant": "acme", "key_id": "k1", "adapter": "acme/support", "version": "v3", "base_model": "base",
    "engine": "gpu-a", "gpu_type": "H100", "gpu_count": 2, "n": 1,
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield made
    made.close()


@pytest.fixture
async def meter(tmp_path, ledger):
    made = Meter(tmp_path / "usage", ledger, Metrics())
    await made.start()
    yield made
    await made.close()


def records(ledger):
    return ledger.usage(start=0, end=2**62, limit=10_000)


def sample(meter, name, **labels):
    return meter._metrics.registry.get_sample_value(name, labels)


async def test_an_attempt_becomes_one_record(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.first_token()
    made.observe(10, 3, 4, 1)
    made.observe(10, 7, 4, 2)
    made.end(Outcome.OK, billable=True, exact=True)
    await meter.flush()
    [row] = records(ledger)
    assert {n: getattr(row, n) for n in NAMES} == NAMES
    assert (row.request_id, row.attempt, row.outcome, row.billable) == ("r", 1, "ok", True)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens) == (
        10,
        7,
        4,
        2,
    )
    assert row.usage_source == "engine_final"
    assert row.dispatched <= row.first_token <= row.ended


async def test_the_first_end_wins(meter, ledger):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    made.end(Outcome.CLIENT_ABORT, billable=True, exact=False)
    made.end(Outcome.OK, billable=False, exact=True)
    await meter.flush()
    assert [(r.outcome, r.billable) for r in records(ledger)] == [("client_abort", True)]


@pytest.mark.parametrize(
    ("counts", "exact", "estimated", "source"),
    [
        ((10, 3, None, 0), True, False, "engine_final"),
        ((10, 3, None, 0), False, False, "engine_partial"),
        ((10, 3, None, 0), False, True, "estimated"),
        ((0, 0, None, 0), True, False, "none"),
        (None, True, False, "none"),
    ],
)
async def test_the_source_of_the_counts_is_honest(meter, ledger, counts, exact, estimated, source):
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    if counts:
        made.observe(*counts)
    made.end(Outcome.OK, billable=True, exact=exact, estimated=estimated)
    await meter.flush()
    assert records(ledger)[0].usage_source == source


async def test_a_clock_that_is_set_back_makes_no_negative_duration(meter, ledger, monkeypatch):
    monkeypatch.setattr(attempt_module, "time_ns", lambda: 5_000_000_000_000)
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    monkeypatch.setattr(attempt_module, "time_ns", lambda: 1)
    made.first_token()
    made.end(Outcome.OK, billable=True, exact=True)
    await meter.flush()
    [row] = records(ledger)
    assert row.dispatched == 5_000_000_000
    assert row.dispatched <= row.first_token <= row.ended


async def test_an_attempt_that_runs_on_is_in_the_log_with_its_checkpoints(
    meter, ledger, tmp_path, monkeypatch
):
    monkeypatch.setattr(meter_module, "CHECKPOINT", 0)
    made = meter.begin(request_id="r", attempt=1, **NAMES)
    await meter.flush()
    made.observe(10, 3, None, 0)
    meter._wal._ticked_at = 0
    await meter.flush()
    [log] = (tmp_path / "usage").glob("*/*.jsonl")
    assert [b'"seq":0,' in line for line in log.read_bytes().splitlines()] == [True, False]
    assert b'"completion_tokens":3' in log.read_bytes()
    assert records(ledger) == []
    assert sample(meter, "florin_in_flight", engine="gpu-a") == 1
    made.end(Outcome.OK, billable=True, exact=True)
    await meter.flush()
    assert [r.outcome for r in records(ledger)] == ["ok"]
    assert sample(meter, "florin_in_flight", engine="gpu-a") == 0


async def test_an_open_attempt_stays_in_the_log_when_its_segment_goes(tmp_path, ledger):
    meter = Meter(tmp_path / "usage", ledger, Metrics(), segment_bytes=2000)
    await meter.start()
    long = meter.begin(request_id="long", attempt=1, **NAMES)
    for number in range(30):
        meter.begin(request_id=f"r{number}", attempt=1, **NAMES).end(Outcome.OK, billable=True, exact=True)
        await meter.flush()
    log = {path.name: path.read_bytes() for path in (tmp_path / "usage").glob("*/*.jsonl")}
    assert "00000001.jsonl" not in log
    assert any(b'"request_id":"long"' in text for text in log.values())
    long.end(Outcome.OK, billable=True, exact=True)
    await meter.close()
    assert len(records(ledger)) == 31


async def test_close_ships_everything_and_leaves_no_file(tmp_path, ledger):
    meter = Meter(tmp_path / "usage", ledger, Metrics())
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
    await meter.flush()
    labels = {"adapter": "acme/support", "gpu_type": "H100"}
    assert sample(meter, "florin_requests_total", adapter="acme/support", outcome="ok") == 1
    assert sample(meter, "florin_requests_total", adapter="__unknown__", outcome="rejected") == 1
    assert sample(meter, "florin_tokens_total", **labels, token_type="input") == 6
    assert sample(meter, "florin_tokens_total", **labels, token_type="cached") == 4
    assert sample(meter, "florin_tokens_total", **labels, token_type="output") == 7
    assert sample(meter, "florin_tenant_tokens_total", tenant="acme", token_type="output") == 7
    assert sample(meter, "florin_time_to_first_token_seconds_count") == 1


async def test_a_flood_of_rejections_does_not_fill_the_ledger(meter, ledger):
    for number in range(3000):
        meter.reject(request_id=f"x{number}", tenant="acme", key_id="k")
    meter.reject(request_id="nobody", tenant="", key_id="")
    await meter.flush()
    kept = records(ledger)
    assert 0 < len(kept) < 1500
    assert {(r.outcome, r.engine, r.prompt_tokens, r.billable) for r in kept} == {("rejected", "", 0, False)}
    assert sample(meter, "florin_requests_total", adapter="__unknown__", outcome="rejected") == 3001


@pytest.mark.parametrize("serve", [False, True])
async def test_the_setting_decides_what_a_full_disk_means(tmp_path, ledger, serve):
    meter = Meter(tmp_path / "usage", ledger, Metrics(), serve_when_full=serve)
    await meter.start()
    assert meter.accepting
    meter._wal.healthy = False
    assert meter.accepting is serve
    await meter.close()


async def test_a_state_directory_that_cannot_be_written_stops_the_start(tmp_path, ledger):
    (tmp_path / "usage").write_text("a file")
    with pytest.raises(OSError):
        await Meter(tmp_path / "usage", ledger, Metrics()).start()
