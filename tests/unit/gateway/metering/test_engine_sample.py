from gateway.metering.engine_sample import Sample, read_sample

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
    assert read_sample(TEXT, 7) == Sample(
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
    found = read_sample(TEXT + second, 0)
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (1903, 100)
    assert found.ready == 1_795_256_800_000_000


def test_what_is_missing_is_unknown_and_without_tokens_there_is_no_sample():
    bare = b"vllm:prompt_tokens_total 5.0\nvllm:generation_tokens_total 6.0\n"
    assert read_sample(bare, 1) == Sample(1, None, None, 5, None, 6)
    assert read_sample(b"process_start_time_seconds 1.0\n", 1) is None
    assert read_sample(b"vllm:prompt_tokens_total 5.0\n", 1) is None
    assert read_sample(b"", 1) is None


def test_a_restart_shows_in_its_beginning_or_in_counters_that_go_back():
    def sample(epoch, prompt, completion, ready=None):
        return Sample(0, epoch, ready, prompt, None, completion)

    assert sample(2, 9, 9).is_of_another_process(sample(1, 9, 9))
    assert not sample(1, 0, 0).is_of_another_process(sample(1, 9, 9))
    assert sample(None, 9, 9, ready=4).is_of_another_process(sample(None, 9, 9, ready=3))
    assert sample(None, 8, 9).is_of_another_process(sample(None, 9, 9))
    assert sample(None, 9, 8).is_of_another_process(sample(None, 9, 9))
    assert not sample(None, 9, 9).is_of_another_process(sample(None, 9, 9))
