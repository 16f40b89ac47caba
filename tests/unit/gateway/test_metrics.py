import subprocess
import sys
import textwrap
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from gateway.metrics import (
    ALARMING,
    AT_SCRAPE,
    BOOKS,
    HISTOGRAM_CAP,
    LABEL_CAP,
    METRICS,
    OTHER,
    UNKNOWN,
    BookFigures,
    LabelCap,
    Metrics,
)


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_the_table_names_what_there_is_and_no_more():
    metrics = Metrics()
    kinds = {"counter": "_total", "gauge": "", "histogram": ""}
    assert {m.name + kinds[m.type] for m in metrics.registry.collect()} == METRICS.keys() - {
        *AT_SCRAPE,  # from the registry and the engines
        *BOOKS,  # from the ledger
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


def test_histograms_of_ten_thousand_names_are_those_of_a_few_hundred():
    metrics = Metrics()
    for number in range(10_000):
        metrics.first_token(f"e{number}", f"t/a{number}", 0.1)
        metrics.duration(f"e{number}", f"t/a{number}", 0.1)
    lines = metrics.render().decode().splitlines()
    series = [line for line in lines if line.startswith(("florin_adapter_time", "florin_adapter_req"))]
    assert len([s for s in series if "_created{" not in s]) == 2 * (HISTOGRAM_CAP + 1) * 9
    left = 10_000 - HISTOGRAM_CAP
    assert f'florin_adapter_request_duration_seconds_count{{adapter="{OTHER}"}} {left}.0' in lines


def test_what_is_known_at_the_scrape_is_shown_up_to_a_cap():
    known = {"florin_adapter_holders": [((f"t/a{n}",), n) for n in range(2000)]}
    lines = Metrics().render(known).decode().splitlines()
    assert 'florin_adapter_holders{adapter="t/a7"} 7.0' in lines
    assert sum(line.startswith("florin_adapter_holders{") for line in lines) == LABEL_CAP
    [build] = [line for line in lines if line.startswith("florin_build_info{")]
    assert f'version="{version("florin")}"' in build


def test_no_tokens_make_no_series():
    metrics = Metrics()
    metrics.tokens(tenant="t", adapter="", gpu_type="H100", prompt=3, cached=0, completion=0)
    text = metrics.render().decode()
    assert 'florin_tokens_total{adapter="__base__",gpu_type="H100",token_type="input"} 3.0' in text
    assert 'token_type="cached"' not in text


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
    metrics.requests_waiting(2)
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
        "florin_requests_waiting 2.0",
        'florin_client_aborts_total{stage="stream"} 1.0',
        'florin_redis_call_seconds_count{operation="touch"} 1.0',
        'florin_ledger_transaction_seconds_count{operation="write"} 1.0',
    ):
        assert line in text.splitlines()
    assert "duplicate" not in text.replace(METRICS["florin_usage_records_total"], "")


def test_what_should_never_happen_is_shown_as_not_having_happened():
    lines = Metrics().render().decode().splitlines()
    assert {f'florin_usage_records_total{{result="{result}"}} 0.0' for result in ALARMING} <= set(lines)


FIGURES = BookFigures(
    at=7,
    series={
        "florin_gpu_busy_seconds_total": [(["a1", "H100"], 36.5)],
        "florin_cost_total": [
            (["acme/support", "H100", "USD", "usage"], 1.25),
            (["", "H100", "USD", "idle"], 2.0),
        ],
        "florin_token_drift_ratio": [(["a1", "input"], -0.01)],
        "florin_ledger_imbalance_nano_gpu_hours": [([], 0.0)],
        "florin_bookkeeping_timestamp_seconds": [([], 1.8e9)],
    },
)
SHOWN = [
    'florin_gpu_busy_seconds_total{engine="a1",gpu_type="H100"} 36.5',
    'florin_cost_total{adapter="acme/support",bucket="usage",currency="USD",gpu_type="H100"} 1.25',
    'florin_cost_total{adapter="",bucket="idle",currency="USD",gpu_type="H100"} 2.0',
    'florin_token_drift_ratio{engine="a1",token_type="input"} -0.01',
    "florin_ledger_imbalance_nano_gpu_hours 0.0",
    "florin_bookkeeping_timestamp_seconds 1.8e+09",
]


def test_what_the_ledger_tells_is_shown_as_it_was_found():
    metrics = Metrics()
    assert "# TYPE florin_cost_total counter" in metrics.render().decode()
    assert not any(line in metrics.render().decode() for line in SHOWN)
    metrics.show_books(FIGURES)
    assert set(SHOWN) <= set(metrics.render().decode().splitlines())
    metrics.show_books(BookFigures.of(FIGURES.document() | {"at": 8, "series": {}}))
    assert not any(line in metrics.render().decode() for line in SHOWN)


def test_an_engine_that_left_leaves_no_gauge():
    metrics = Metrics()
    metrics.engine_up("e", "H100", up=True)
    metrics.in_flight("e", 1)
    metrics.forget_engine("e", "H100")
    metrics.forget_engine("never", "H100")
    assert b'engine="e"' not in metrics.render()
    metrics.in_flight("e", 1)
    assert sample(metrics, "florin_in_flight", engine="e") == 1


def test_two_in_one_process_do_not_meet():
    first, second = Metrics(), Metrics()
    first.error("not_found")
    assert b'code="not_found"' not in second.render()
    assert isinstance(first.registry, CollectorRegistry)


WORKER = textwrap.dedent("""
    import sys
    from gateway.metrics import BookFigures, Metrics
    metrics = Metrics()
    metrics.error("not_found")
    metrics.in_flight("e", 1)
    metrics.feed_connected(connected=True)
    metrics.engine_up("e", "H100", up=True)
    metrics.engine_up("gone", "H100", up=False)
    metrics.forget_engine("gone", "H100")
    metrics.show_books(BookFigures(1, {"florin_cost_total": [(["a", "H100", "USD", "usage"], 2.5)]}))
    if sys.argv[1] == "stay":
        print("ready", flush=True)
        sys.stdin.read()
    elif sys.argv[1] == "render":
        print(metrics.render().decode())
""")


MAKING = textwrap.dedent("""
    import os, pathlib, subprocess, sys, threading
    from gateway.metrics import Metrics
    metrics = Metrics()
    metrics.error("not_found")
    directory = pathlib.Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = directory / f"counter_{dead.pid}.db"
    left.touch()
    being_made = directory / f"counter_{os.getppid()}.db"
    being_made.touch()
    threading.Timer(0.05, being_made.write_bytes, [bytes([8, 0, 0, 0]) + bytes(100)]).start()
    print(metrics.render().decode(), left.exists(), being_made.exists())
""")


def test_a_worker_that_is_just_making_its_files_disturbs_no_scrape(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MAKING],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 'florin_errors_total{code="not_found"} 1.0' in done.stdout
    assert done.stdout.endswith("False True\n")


def test_workers_are_summed_and_the_gauges_of_dead_ones_dropped(tmp_path):
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def command(what):
        return [sys.executable, "-c", WORKER, what]

    subprocess.run(command("die"), env=env, check=True, timeout=60)
    with subprocess.Popen(command("stay"), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout.readline() == b"ready\n"
        text = subprocess.run(
            command("render"), env=env, check=True, capture_output=True, text=True, timeout=60
        ).stdout
        living.stdin.close()
    assert 'florin_errors_total{code="not_found"} 3.0' in text
    assert 'florin_in_flight{engine="e"} 2.0' in text
    assert "florin_feed_connected 1.0" in text
    assert 'florin_engine_up{engine="e",gpu_type="H100"} 1.0' in text
    assert 'engine="gone"' not in text
    # What the ledger tells is everybody's, and no sum over workers.
    assert 'florin_cost_total{adapter="a",bucket="usage",currency="USD",gpu_type="H100"} 2.5' in text
