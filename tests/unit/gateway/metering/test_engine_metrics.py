import pytest

from adapters.drivers import DRIVERS
from gateway.metering.engine_metrics import (
    MOST_BYTES,
    MOST_COUNTED,
    MOST_LINES,
    MOST_LOAD,
    BadSampleError,
    EngineMetrics,
    EngineSample,
    kv_usage,
    mark,
    read_metrics,
    relevant_lines,
)

TEXT = b"""# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
process_start_time_seconds 1.79525678298e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 903.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7952568163275087e+09
vllm:prompt_tokens_cached_total{engine="0",model_name="tiny"} 256.0
vllm:prompt_tokens_cached_created{engine="0",model_name="tiny"} 1.795256816327576e+09
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="device"} 256.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 62.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 91.0
"""


def test_a_real_engines_words():
    assert read_metrics(TEXT, 7).sample == EngineSample(
        at=7,
        epoch=1_795_256_782_980_000,
        ready=1_795_256_816_327_509,
        prompt_tokens=903,
        cached_tokens=256,
        completion_tokens=91,
    )


def test_ranks_are_added_up_and_begin_with_the_first():
    second = (
        b'vllm:prompt_tokens_total{engine="1"} 1e+3\nvllm:generation_tokens_total{engine="1"} 9\n'
        b'vllm:prompt_tokens_created{engine="1"} 1.7952568e+09\n'
    )
    found = read_metrics(TEXT + second, 0).sample
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (1903, 100)
    assert found.ready == 1_795_256_800_000_000


def test_what_is_missing_is_unknown_and_without_tokens_there_is_no_sample():
    bare = b"vllm:prompt_tokens_total 5.0\nvllm:generation_tokens_total 6.0\n"
    assert read_metrics(bare, 1).sample == EngineSample(1, None, None, 5, None, 6)
    assert read_metrics(b"process_start_time_seconds 1.0\n", 1).sample is None
    assert read_metrics(b"vllm:prompt_tokens_total 5.0\n", 1).sample is None
    assert read_metrics(b"", 1).sample is None


def test_a_restart_shows_in_its_beginning_or_in_counters_that_go_back():
    def sample(epoch, prompt, completion, ready=None):
        return EngineSample(0, epoch, ready, prompt, None, completion)

    assert sample(2, 9, 9).is_of_another_process(sample(1, 9, 9))
    assert not sample(1, 0, 0).is_of_another_process(sample(1, 9, 9))
    assert sample(None, 9, 9, ready=4).is_of_another_process(sample(None, 9, 9, ready=3))
    assert sample(None, 8, 9).is_of_another_process(sample(None, 9, 9))
    assert sample(None, 9, 8).is_of_another_process(sample(None, 9, 9))
    assert not sample(None, 9, 9).is_of_another_process(sample(None, 9, 9))


COUNTERS = ("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total")
TIMES = ("process_start_time_seconds", "vllm:prompt_tokens_created")
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
IMPOSSIBLE = ["1e30", "1e400", "inf", "+Inf", "-inf", "nan", "NaN", "-1", "-0.5", "1.1.1", "0x10", "ten",
              "1_0", "9" * 41, "9" * 400, "\u0663"]  # fmt: skip


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize("name", [*COUNTERS, *TIMES, *GAUGES])
def test_what_cannot_be_makes_the_sample_worthless(name, value):
    with pytest.raises(BadSampleError, match=name):
        read_metrics(TEXT + f'{name}{{engine="9"}} {value}\n'.encode(), 1)


@pytest.mark.parametrize(("name", "most"), [
    *((name, MOST_COUNTED) for name in COUNTERS),
    *((name, MOST_LOAD) for name in GAUGES),
    *((name, 4_102_444_800) for name in TIMES),
])  # fmt: skip
def test_bounds(name, most):
    bare = b"vllm:prompt_tokens_total 0\nvllm:generation_tokens_total 0\n"
    assert read_metrics(bare + f"{name} {most}\n".encode(), 1).sample is not None
    with pytest.raises(BadSampleError):
        read_metrics(bare + f"{name} {most * 1.001}\n".encode(), 1)


def test_ranks_that_sum_to_what_cannot_be():
    line = f"vllm:prompt_tokens_total {MOST_COUNTED * 0.6}\n".encode()
    assert read_metrics(line + b"vllm:generation_tokens_total 1\n", 1).sample is not None
    with pytest.raises(BadSampleError):
        read_metrics(line * 2 + b"vllm:generation_tokens_total 1\n", 1)


def test_label_sets_without_end():
    line = b'vllm:prompt_tokens_total{engine="%d"} 1\n'
    assert read_metrics(b"".join(line % n for n in range(MOST_LINES)), 1) == EngineMetrics()
    with pytest.raises(BadSampleError, match="lines"):
        read_metrics(b"".join(line % n for n in range(MOST_LINES + 1)), 1)
    with pytest.raises(BadSampleError, match="bytes"):
        read_metrics(b"#" * (MOST_BYTES + 1), 1)


def test_the_relevant_lines_are_all_that_is_read():
    longer = b"vllm:num_requests_running_by_reason 9\nvllm:kv_cache_usage_perc_max 9\n"
    rank = b'vllm:num_requests_running{engine="1"} 4.0\n'
    text = longer + TEXT.replace(b"# TYPE", longer + b"# TYPE") + rank.replace(b"running", b"waiting")
    text += b"vllm:time_to_first_token_seconds_bucket 1\n" * 1000 + b"vllm:kv_cache_usage_perc 0.5"
    lines = relevant_lines(text)
    assert len(lines) < 1000
    assert (read_metrics(lines, 7), kv_usage(lines)) == (read_metrics(text, 7), 0.5)
    assert relevant_lines(b"") == b""
    with pytest.raises(BadSampleError, match="lines"):
        relevant_lines(b"vllm:prompt_tokens_total 1\n" * (MOST_LINES + 1))


def test_the_mark_moves_with_steps_and_with_nothing_else():
    text = TEXT + b'vllm:lora_requests_info{max_lora="2",running_lora_adapters=""} 1.7e+09\n'
    assert mark(text) == mark(text + b'http_requests_total{handler="/health"} 7.0\n')
    assert mark(text) == mark(text.replace(b"created{", b'created{x="1",'))
    assert mark(text) != mark(text.replace(b"1.7e+09", b"1.8e+09"))
    assert mark(text) != mark(text.replace(b'running{engine="0",model_name="tiny"} 3.0', b"running 4.0"))
    assert mark(b"up 1\n") is None


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_kind_of_engine_has_its_own_names(driver):
    names = DRIVERS[driver].metrics
    lines = {
        names.running: 3, names.waiting: 2, names.prompt_tokens: 903, names.generation_tokens: 91,
        names.cached_tokens: 256,
    }  # fmt: skip
    text = "".join(f'{name}{{model="m"}} {value}\n' for name, value in lines.items() if name).encode()
    found = read_metrics(text, 7, names=names)
    assert (found.running, found.waiting) == (3, 2)
    cached = 256 if names.cached_tokens else None
    assert found.sample == EngineSample(7, None, None, 903, cached, 91)
    others = [kind.metrics for kind in DRIVERS.values() if kind.name != driver]
    assert all(read_metrics(text, 7, names=other) == EngineMetrics() for other in others)
    moved = text.replace(b" 3\n", b" 4\n")
    assert (mark(text, names=names) != mark(moved, names=names)) == bool(names.moving)
    with pytest.raises(BadSampleError):
        read_metrics(text.replace(b" 3\n", b" -3\n"), 7, names=names)
