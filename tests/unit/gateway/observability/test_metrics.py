import subprocess
import sys
import textwrap
from importlib.metadata import version

import pytest

from gateway.observability.computed_metrics import LABEL_CAP, LedgerFigures
from gateway.observability.metric_names import AT_SCRAPE, LEDGER_METRICS, METRICS
from gateway.observability.metrics import ALARMING, OTHER, UNKNOWN, LabelCap, Metrics
from gateway.runtime.worker_watch import WorkerWatch
from tests.support.forking import FORKED


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_help_table_matches_the_metrics():
    metrics = Metrics()
    kinds = {"counter": "_total", "gauge": "", "histogram": ""}
    assert {m.name + kinds[m.type] for m in metrics.registry.collect()} == METRICS.keys() - {
        *AT_SCRAPE,  # from the registry and the engines
        *LEDGER_METRICS,  # from the ledger
    }
    assert all(help_text.endswith(".") for help_text in METRICS.values())


def test_names_past_the_cap_share_a_label():
    cap = LabelCap(2)
    assert [cap(n) for n in ("a", "b", "c", "a", "d", "")] == ["a", "b", OTHER, "a", OTHER, OTHER]


def test_a_flood_of_names_makes_no_flood_of_series():
    metrics = Metrics(label_cap=5)
    for number in range(1000):
        metrics.tokens(
            tenant=f"t{number}", adapter=f"t{number}/a", gpu_type="H100", prompt=2, cached=1, completion=1
        )
        metrics.request(None, "rejected")
    text = metrics.render().decode()
    assert len([line for line in text.splitlines() if line.startswith("florin_tokens_total{")]) == 6 * 3
    assert sample(metrics, "florin_tokens_total", adapter=OTHER, gpu_type="H100", token_type="output") == 995
    assert sample(metrics, "florin_requests_total", adapter=UNKNOWN, outcome="rejected") == 1000


def test_what_is_known_at_the_scrape_is_shown_up_to_a_cap():
    known = {"florin_adapter_holders": [((f"t/a{n}",), n) for n in range(2000)]}
    lines = Metrics().render(known).decode().splitlines()
    assert 'florin_adapter_holders{adapter="t/a7"} 7.0' in lines
    assert sum(line.startswith("florin_adapter_holders{") for line in lines) == LABEL_CAP
    [build] = [line for line in lines if line.startswith("florin_build_info{")]
    assert f'version="{version("florin-gateway")}"' in build


def test_every_method_shows_in_the_text():
    metrics = Metrics()
    metrics.adapter_load("e", "ok", 0.2)
    metrics.eviction("e")
    metrics.engine_up("e", "H100", up=True)
    metrics.in_flight("e", 2)
    metrics.usage_records("lost", 3)
    metrics.usage_records("duplicate", 0)
    metrics.wal_oldest(1.5)
    metrics.feed_connected(connected=True)
    metrics.failover("down")
    metrics.error("not_found")
    metrics.first_token("e", "acme/support", 0.1)
    metrics.duration("e", "", 0.1)
    metrics.requests_pending(2)
    metrics.client_abort("stream")
    metrics.redis_call("touch", 0.001)
    metrics.ledger_transaction("write", 0.01)
    text = metrics.render().decode()
    for line in (
        'florin_adapter_loads_total{engine="e",result="ok"} 1.0',
        "florin_adapter_load_seconds_count 1.0",
        'florin_evictions_total{engine="e"} 1.0',
        'florin_engine_up{engine="e",gpu_type="H100"} 1.0',
        'florin_in_flight{engine="e"} 2.0',
        'florin_usage_records_total{result="lost"} 3.0',
        "florin_wal_oldest_seconds 1.5",
        "florin_feed_connected 1.0",
        'florin_failovers_total{reason="down"} 1.0',
        'florin_errors_total{code="not_found"} 1.0',
        'florin_time_to_first_token_seconds_count{engine="e"} 1.0',
        'florin_adapter_time_to_first_token_seconds_count{adapter="acme/support"} 1.0',
        'florin_request_duration_seconds_count{engine="e"} 1.0',
        'florin_adapter_request_duration_seconds_count{adapter="__base__"} 1.0',
        "florin_requests_pending 2.0",
        'florin_client_aborts_total{stage="stream"} 1.0',
        'florin_redis_call_seconds_count{operation="touch"} 1.0',
        'florin_ledger_transaction_seconds_count{operation="write"} 1.0',
    ):
        assert line in text.splitlines()
    assert "duplicate" not in text.replace(METRICS["florin_usage_records_total"], "")


def test_alarming_counters_start_at_zero():
    lines = Metrics().render().decode().splitlines()
    assert {f'florin_usage_records_total{{result="{result}"}} 0.0' for result in ALARMING} <= set(lines)


FIGURES = LedgerFigures(
    at=7,
    series={
        "florin_gpu_busy_seconds_total": [(["a1", "H100"], 36.5)],
        "florin_cost_total": [
            (["acme/support", "H100", "USD", "usage"], 1.25),
            (["", "H100", "USD", "idle"], 2.0),
        ],
        "florin_token_drift_ratio": [(["a1", "input"], -0.01)],
        "florin_ledger_imbalance_nano_gpu_hours": [([], 0.0)],
        "florin_ledger_maintenance_timestamp_seconds": [([], 1.8e9)],
    },
)
SHOWN = [
    'florin_gpu_busy_seconds_total{engine="a1",gpu_type="H100"} 36.5',
    'florin_cost_total{adapter="acme/support",bucket="usage",currency="USD",gpu_type="H100"} 1.25',
    'florin_cost_total{adapter="",bucket="idle",currency="USD",gpu_type="H100"} 2.0',
    'florin_token_drift_ratio{engine="a1",token_type="input"} -0.01',
    "florin_ledger_imbalance_nano_gpu_hours 0.0",
    "florin_ledger_maintenance_timestamp_seconds 1.8e+09",
]


def test_ledger_figures_are_exported():
    metrics = Metrics()
    assert "# TYPE florin_cost_total counter" in metrics.render().decode()
    assert not any(line in metrics.render().decode() for line in SHOWN)
    metrics.show_ledger_figures(FIGURES)
    assert set(SHOWN) <= set(metrics.render().decode().splitlines())
    metrics.show_ledger_figures(LedgerFigures.of(FIGURES.document() | {"at": 8, "series": {}}))
    assert not any(line in metrics.render().decode() for line in SHOWN)


def test_removed_engine_leaves_no_gauge():
    metrics = Metrics()
    metrics.engine_up("e", "H100", up=True)
    metrics.in_flight("e", 1)
    metrics.forget_engine("e", "H100")
    metrics.forget_engine("never", "H100")
    assert b'engine="e"' not in metrics.render()
    metrics.in_flight("e", 1)
    metrics.in_flight("e", -1)
    assert b'engine="e"' not in metrics.render(), "its last requests do not bring it back"
    metrics.engine_up("e", "H100", up=True)
    assert sample(metrics, "florin_in_flight", engine="e") == 1


WORKER = FORKED + textwrap.dedent("""
    import sys
    from gateway.observability.computed_metrics import LedgerFigures
    from gateway.observability.metrics import Metrics
    from gateway.observability.process_metrics import ProcessValues
    from gateway.observability.shared_values import SharedValues
    metrics = Metrics(process_values=ProcessValues(SharedValues(int(sys.argv[1])), int(sys.argv[2])))
    metrics.error("not_found")
    metrics.duration("e", "acme/support", 0.02)
    metrics.duration("e", "acme/support", 1000.0)
    metrics.feed_connected(connected=True)
    metrics.engine_up("e", "H100", up=True)
    metrics.in_flight("e", 1)
    metrics.engine_up("gone", "H100", up=False)
    metrics.in_flight("gone", 1)
    metrics.forget_engine("gone", "H100")
    metrics.in_flight("gone", -1)
    metrics.show_ledger_figures(LedgerFigures(1, {"florin_cost_total": [(["a", "H100", "USD", "usage"], 2.5)]}))
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
""")


class Process:
    """A worker that does what it is told."""

    def __init__(self, values, slot):
        command = [sys.executable, "-c", WORKER, str(values.file), str(slot)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[values.file]
        )
        self.do("pass")

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said = []
        while (answer := self.process.stdout.readline()) != "done\n":
            assert answer, "it died"
            said.append(answer.rstrip("\n"))
        return said

    def render(self):
        return self.do("print(metrics.render().decode())")

    def kill(self):
        self.process.kill()
        with self.process:
            pass


@pytest.fixture
def crew():
    watch = WorkerWatch(2)
    started = []

    def start():
        started.append(Process(watch.values, watch.acquire()))
        return started[-1]

    yield watch, start
    for process in started:
        process.kill()
    watch.close()


def test_workers_are_summed_and_the_gauges_of_dead_ones_end(crew):
    watch, start = crew
    one, two = start(), start()
    for text in (one.render(), two.render()):
        assert 'florin_errors_total{code="not_found"} 2.0' in text
        assert 'florin_in_flight{engine="e"} 2.0' in text
        assert "florin_feed_connected 1.0" in text
        assert 'florin_engine_up{engine="e",gpu_type="H100"} 1.0' in text
        assert not [line for line in text if 'engine="gone"' in line]
        # What the ledger tells is everybody's, and no sum over workers.
        assert 'florin_cost_total{adapter="a",bucket="usage",currency="USD",gpu_type="H100"} 2.5' in text
    one.do("metrics.feed_connected(connected=False)")
    one.do("metrics.engine_up('e', 'H100', up=False)")
    assert {"florin_feed_connected 0.0", 'florin_engine_up{engine="e",gpu_type="H100"} 0.0'} <= {
        *two.render()
    }
    one.kill()
    watch.release(1)
    watch.crashed(-9)
    text = two.render()
    assert 'florin_errors_total{code="not_found"} 2.0' in text
    assert 'florin_in_flight{engine="e"} 1.0' in text
    assert "florin_feed_connected 1.0" in text
    assert "florin_worker_restarts_total 1.0" in text
    # The next one in that slot counts on, and begins without its predecessor's gauges.
    three = start()
    text = three.render()
    assert 'florin_errors_total{code="not_found"} 3.0' in text
    assert 'florin_in_flight{engine="e"} 2.0' in text
    assert text.count("florin_worker_restarts_total 1.0") == 1


def test_histograms_of_workers_are_summed_bucket_by_bucket(crew):
    _, start = crew
    alone = Metrics()
    for seconds in (0.02, 1000.0) * 2:
        alone.duration("e", "acme/support", seconds)
    one, two = start(), start()

    def histogram(lines):
        return sorted(line for line in lines if line.startswith("florin_request_duration_seconds"))

    want = [line for line in histogram(alone.render().decode().splitlines()) if "_created" not in line]
    assert len(want) > 10
    assert histogram(one.render()) == histogram(two.render()) == want
