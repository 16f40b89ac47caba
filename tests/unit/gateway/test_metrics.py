import subprocess
import sys
import textwrap

from prometheus_client import CollectorRegistry

from gateway.metrics import METRICS, OTHER, UNKNOWN, LabelCap, Metrics


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_the_table_names_what_there_is_and_no_more():
    metrics = Metrics()
    kinds = {"counter": "_total", "gauge": "", "histogram": ""}
    assert {m.name + kinds[m.type] for m in metrics.registry.collect()} == set(METRICS) - {
        "florin_adapter_info"  # told at the scrape, from the registry
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
    metrics.first_token(0.1)
    metrics.duration(0.1)
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
        "florin_time_to_first_token_seconds_count 1.0",
        "florin_request_duration_seconds_count 1.0",
    ):
        assert line in text.splitlines()
    assert "duplicate" not in text.replace(METRICS["florin_usage_records_total"], "")


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
    from gateway.metrics import Metrics
    metrics = Metrics()
    metrics.error("not_found")
    metrics.in_flight("e", 1)
    metrics.feed_connected(connected=True)
    if sys.argv[1] == "stay":
        print("ready", flush=True)
        sys.stdin.read()
    elif sys.argv[1] == "render":
        print(metrics.render().decode())
""")


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
