"""Fields that chat and completions share: sampling, and metadata of the request."""

from __future__ import annotations

from adapters.model import MAX_STOP_STRINGS
from gateway.fields.checks import (
    an_object,
    at_most_n,
    integer,
    number,
    one_of,
    switch,
    text,
    texts,
    token_biases,
    token_ids,
)
from gateway.fields.grammars import response_format, structured_outputs
from gateway.fields.rule import Rule, Table, bounded, dropped, passed, refused, replaced

MAX_LOGPROBS = 20
"""vLLM's default; -1 would return the whole vocabulary for each token."""
MAX_BAD_WORDS = 64
"""Each becomes up to two token sequences, which the engine compares at each step; vLLM accepts 128 of
them."""
MAX_TOKEN_IDS = 128
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BIASES = 1024

_ENGINE = "it controls the engine, which is up to Florin"
SCORED = "scores the prompt; only for models with an engine that is known not to crash of it"
_ADAPTER = "it chooses an adapter on other engines than vLLM, which is up to `model`"
_GONE = "vLLM 0.32 and later ignore it, so the answer would not be constrained; use `structured_outputs`"
_STOPS = (
    "checked after each token; vLLM 0.32 takes 4 unless `VLLM_MAX_STOP_STRINGS` says more: `florin engine "
    "run` sets it to 16"
)
_RENDER = "it belongs to vLLM's render routes, which Florin does not serve"
_HINT = "a hint for OpenAI's service, without effect here"
_TRANSFER = "it moves caches between engines"

REPETITION_DETECTION: Table = {
    "max_pattern_size": bounded(integer(0, 64), "every size up to this one is compared after each token"),
    "min_pattern_size": bounded(integer(0, 64), "the smallest size"),
    "min_count": bounded(integer(0, 64), "number of repetitions"),
}
STREAM_OPTIONS: Table = {
    "include_usage": passed(switch, "token counts at the end; Florin always requests them from the engine"),
    "continuous_usage_stats": passed(
        switch, "token counts in each chunk; Florin always requests them from the engine"
    ),
}
SAMPLING: dict[str, Rule] = {
    "frequency_penalty": bounded(number(-2, 2), "OpenAI's range"),
    "presence_penalty": bounded(number(-2, 2), "OpenAI's range"),
    "repetition_penalty": bounded(number(0.01, 100), "beyond this range, probabilities overflow"),
    "temperature": bounded(number(0, 2), "OpenAI's range"),
    "top_p": bounded(number(0, 1), "a probability"),
    "top_k": bounded(integer(-1), "number of tokens; 0 and -1 turn it off"),
    "min_p": bounded(number(0, 1), "a probability"),
    "seed": bounded(integer(-(2**63), 2**63 - 1), "64 bits"),
    "n": bounded(at_most_n, "from 1 to `FLORIN_MAX_N`; all answers are generated at the same time"),
    "best_of": dropped("vLLM no longer generates more than `n` answers to choose from", at_most_n),
    "logit_bias": bounded(token_biases(MAX_BIASES), "applied at each step"),
    "stop": bounded(
        texts(MAX_STOP_STRINGS, 256, single=True),
        _STOPS,
    ),
    "stop_token_ids": bounded(token_ids(MAX_TOKEN_IDS), "checked after each token"),
    "bad_words": bounded(texts(MAX_BAD_WORDS, 256), "compared at each step"),
    "allowed_token_ids": bounded(token_ids(MAX_ALLOWED_TOKEN_IDS), "a mask over the vocabulary"),
    "ignore_eos": passed(switch, "the answer then has `max_tokens` tokens, all billed"),
    "min_tokens": bounded(integer(0), "at most `max_tokens`"),
    "include_stop_str_in_output": passed(switch, "format of the answer"),
    "skip_special_tokens": passed(switch, "format of the answer"),
    "spaces_between_special_tokens": passed(switch, "format of the answer"),
    "add_special_tokens": passed(switch, "format of the prompt"),
    "truncate_prompt_tokens": bounded(integer(-1), "number of tokens; -1: the model's limit"),
    "truncation_side": passed(one_of("left", "right"), "format of the prompt"),
    "thinking_token_budget": bounded(integer(-1), "number of tokens; -1: no limit"),
    "repetition_detection": bounded(
        an_object(REPETITION_DETECTION),
        "an answer that repeats itself ends early; checked after each token",
    ),
    "return_token_ids": passed(switch, "format of the answer"),
    "return_tokens_as_token_ids": passed(switch, "format of the answer"),
    "response_format": bounded(response_format, "compiled into a grammar: see below"),
    "structured_outputs": bounded(structured_outputs, "compiled into a grammar: see below"),
    # set or read by Florin
    "model": replaced("with the name of the version on the engine", text()),
    "stream": passed(switch, "format of the answer"),
    "stream_options": bounded(an_object(STREAM_OPTIONS), "without effect unless `stream` is true"),
    "user": dropped(
        "Florin uses it to keep an end user on the same canary, and in reports by end user; vLLM ignores it",
        text(),
    ),
    "safety_identifier": dropped(
        "used like `user` if that is absent; goes before it in reports by end user; vLLM ignores it", text()
    ),
    # obeyed by engines, but not for clients to set
    "request_id": dropped(_ENGINE),
    "session_id": dropped(_ENGINE),
    "priority": dropped(_ENGINE),
    "data_parallel_rank": dropped(_ENGINE),
    "vllm_xargs": dropped("arguments for extensions that run inside the engine"),
    "cache_salt": replaced("with a secret of the tenant, which keeps its cached prompts from other tenants"),
    "kv_transfer_params": dropped(_TRANSFER),
    "ec_transfer_params": dropped(_TRANSFER),
    "stream_interval": dropped("each chunk must carry token counts, by which an aborted stream is billed"),
    "watermarking": dropped("the operator decides about watermarks"),
    "length_penalty": dropped("it belongs to beam search"),
    "routed_experts_prompt_start": dropped("it is for model training"),
    "return_weight_versions": dropped("it is for model training (vLLM 0.33)"),
    "return_token_offsets": dropped(_RENDER),
    "mm_payload": dropped(_RENDER),
    "return_mm_kwargs": dropped(_RENDER),
    # obeyed by engines that are not vLLM; an operator cannot have them passed on
    "lora_path": dropped(_ADAPTER),
    "lora_request": dropped(_ADAPTER),
    "adapter_id": dropped(_ADAPTER),
    "adapter_source": dropped(_ADAPTER),
    "adapter_parameters": dropped(_ADAPTER),
    "api_token": dropped("it belongs to an engine's downloads of adapters"),
    "rid": dropped(_ENGINE),
    "extra_key": dropped(_ENGINE),
    "session_params": dropped(_ENGINE),
    "custom_logit_processor": dropped("a program that the engine would run"),
    # would harm other tenants, or be ignored
    "use_beam_search": refused(
        "the engine computes many times the tokens that it counts; request `n` answers instead", False
    ),
    "prompt_logprobs": bounded(integer(0, MAX_LOGPROBS), SCORED),
    "logprob_token_ids": refused(
        "in a shared batch, vLLM overwrites other requests' scores with these; use `top_logprobs`", []
    ),
    "guided_json": refused(_GONE),
    "guided_regex": refused(_GONE),
    "guided_choice": refused(_GONE),
    "guided_grammar": refused(_GONE),
    "guided_decoding_backend": dropped("the operator sets it"),
    "guided_whitespace_pattern": dropped("the operator sets it"),
    # fields of OpenAI only
    "metadata": dropped("its `tag` is used in reports by tag; vLLM does not get it"),
    "service_tier": dropped(_HINT),
    "store": dropped("Florin stores no answers"),
    "prompt_cache_key": dropped(_HINT),
    "prompt_cache_retention": dropped(_HINT),
    "prompt_cache_options": dropped(_HINT),
}
