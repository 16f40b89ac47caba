"""Rows that chat and plain completions share: how tokens are chosen, and what surrounds a request."""

from __future__ import annotations

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
from gateway.fields.grammars import STRUCTURED_OUTPUTS, response_format
from gateway.fields.rule import Rule, Table, bounded, dropped, passed, refused, replaced

MAX_LOGPROBS = 20
"""vLLM's own default; -1 would be the whole vocabulary for each token."""
MAX_STOPS = 16
"""vLLM takes 4 unless told otherwise. Each is looked for in each new piece of text."""
MAX_BAD_WORDS = 64
"""Each becomes up to two token sequences that the engine compares in each step; vLLM takes 128 of those."""
MAX_TOKEN_IDS = 128
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BIASES = 1024

_ENGINE = "it steers the engine, for which Florin decides"
SCORED = (
    "the prompt's own tokens are not scored: an engine with adapters can die of it, with all that runs on it"
)
_GONE = "vLLM 0.32 and later ignore it, and the answer would not be constrained: use `structured_outputs`"
_RENDER = "it belongs to vLLM's render routes, which Florin does not serve"
_HINT = "a hint for OpenAI's own service, which changes nothing here"
_TRANSFER = "it moves caches between engines"

REPETITION_DETECTION: Table = {
    "max_pattern_size": bounded(integer(0, 64), "all sizes are compared after each token"),
    "min_pattern_size": bounded(integer(0, 64), "the smallest of them"),
    "min_count": bounded(integer(0, 64), "how often each is compared"),
}
STREAM_OPTIONS: Table = {
    "include_usage": passed(switch, "counts at the end; Florin always asks the engine for them"),
    "continuous_usage_stats": passed(switch, "counts on each chunk; likewise"),
}
SAMPLING: dict[str, Rule] = {
    "frequency_penalty": bounded(number(-2, 2), "OpenAI's range"),
    "presence_penalty": bounded(number(-2, 2), "OpenAI's range"),
    "repetition_penalty": bounded(number(0.01, 100), "beyond these, probabilities are no numbers any more"),
    "temperature": bounded(number(0, 2), "OpenAI's range"),
    "top_p": bounded(number(0, 1), "a probability"),
    "top_k": bounded(integer(-1), "a count; 0 and -1 turn it off"),
    "min_p": bounded(number(0, 1), "a probability"),
    "seed": bounded(integer(-(2**63), 2**63 - 1), "64 bits"),
    "n": bounded(at_most_n, "from 1 to `FLORIN_MAX_N`: all answers run at once"),
    "best_of": dropped("vLLM no longer makes more answers than `n` to choose from", at_most_n),
    "logit_bias": bounded(token_biases(MAX_BIASES), "applied at each step"),
    "stop": bounded(texts(MAX_STOPS, 256, single=True), "looked for after each token"),
    "stop_token_ids": bounded(token_ids(MAX_TOKEN_IDS), "looked for after each token"),
    "bad_words": bounded(texts(MAX_BAD_WORDS, 256), "compared at each step"),
    "allowed_token_ids": bounded(token_ids(MAX_ALLOWED_TOKEN_IDS), "a mask over the vocabulary"),
    "ignore_eos": passed(switch, "the answer then has `max_tokens`, and is billed"),
    "min_tokens": bounded(integer(0), "at most `max_tokens`"),
    "include_stop_str_in_output": passed(switch, "form of the answer"),
    "skip_special_tokens": passed(switch, "form of the answer"),
    "spaces_between_special_tokens": passed(switch, "form of the answer"),
    "add_special_tokens": passed(switch, "form of the prompt"),
    "truncate_prompt_tokens": bounded(integer(-1), "a count of tokens; -1: what the model takes"),
    "truncation_side": passed(one_of("left", "right"), "form of the prompt"),
    "thinking_token_budget": bounded(integer(-1), "a count of tokens; -1: no limit"),
    "repetition_detection": bounded(
        an_object(REPETITION_DETECTION),
        "an answer that repeats itself ends early; looked for after each token",
    ),
    "return_token_ids": passed(switch, "form of the answer"),
    "return_tokens_as_token_ids": passed(switch, "form of the answer"),
    "response_format": bounded(response_format, "compiled into a grammar: see below"),
    "structured_outputs": bounded(an_object(STRUCTURED_OUTPUTS), "compiled into a grammar: see below"),
    # what Florin sets or reads
    "model": replaced("by the engine's own name of the version", text()),
    "stream": passed(switch, "how the answer comes"),
    "stream_options": bounded(
        an_object(STREAM_OPTIONS),
        "only with `stream`",
    ),
    "user": dropped("Florin reads it, to give the same end user the same canary; vLLM ignores it", text()),
    "safety_identifier": dropped("Florin reads it where there is no `user`; vLLM ignores it", text()),
    # what an engine obeys and a client must not say
    "request_id": dropped(_ENGINE),
    "session_id": dropped(_ENGINE),
    "priority": dropped(_ENGINE),
    "data_parallel_rank": dropped(_ENGINE),
    "vllm_xargs": dropped("arguments of extensions that run inside the engine"),
    "cache_salt": replaced(
        "by a secret of the tenant's, so that none can read another's prompts from the cache"
    ),
    "kv_transfer_params": dropped(_TRANSFER),
    "ec_transfer_params": dropped(_TRANSFER),
    "stream_interval": dropped("counts must come as fast as tokens: a stream that is cut is billed by them"),
    "watermarking": dropped("the operator decides whether answers carry a watermark"),
    "length_penalty": dropped("it belongs to beam search"),
    "routed_experts_prompt_start": dropped("it belongs to the training of models"),
    "return_weight_versions": dropped("it belongs to the training of models (vLLM 0.33)"),
    "return_token_offsets": dropped(_RENDER),
    "mm_payload": dropped(_RENDER),
    "return_mm_kwargs": dropped(_RENDER),
    # what would cost others, or not be what was asked for
    "use_beam_search": refused(
        "an engine works on many times the tokens that it counts: ask for `n` answers instead", False
    ),
    "prompt_logprobs": refused(SCORED),
    "logprob_token_ids": refused(
        "in a shared batch, vLLM writes these scores over those of other requests: use `top_logprobs`", []
    ),
    "guided_json": refused(_GONE),
    "guided_regex": refused(_GONE),
    "guided_choice": refused(_GONE),
    "guided_grammar": refused(_GONE),
    "guided_decoding_backend": dropped("the operator chooses it"),
    "guided_whitespace_pattern": dropped("the operator chooses it"),
    # OpenAI's own
    "metadata": dropped(_HINT),
    "service_tier": dropped(_HINT),
    "store": dropped("nothing is stored"),
    "prompt_cache_key": dropped(_HINT),
    "prompt_cache_retention": dropped(_HINT),
    "prompt_cache_options": dropped(_HINT),
}
