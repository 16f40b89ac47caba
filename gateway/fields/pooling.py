"""The fields of /v1/embeddings, /v1/rerank and /v1/score."""

from __future__ import annotations

from typing import Any

from gateway.fields.checks import LARGEST_INT, That, integer, integrals, one_of, switch, text, that
from gateway.fields.messages import messages
from gateway.fields.rule import Check, Rule, WrongError, bounded, dropped, passed, refused
from gateway.fields.sampling import SAMPLING
from gateway.fields.tables import CHAT
from gateway.fields.template import template_kwargs

MAX_INPUTS = 2048
"""Texts of one request, as at OpenAI. Their answers are held in memory together."""
MAX_DIMENSIONS = 65_536

INPUT_MUST = (
    f"be a non-empty string, or a list of 1 to {MAX_INPUTS:,} of them; or a list (of lists) of token ids"
)
QUERY_MUST = "be a non-empty string"
TEXTS_MUST = f"be a non-empty string, or a list of 1 to {MAX_INPUTS:,} of them"


def _is_text(v: Any) -> bool:
    return type(v) is str and v != ""


def _are_texts(v: Any) -> bool:
    return _is_text(v) or (type(v) is list and 0 < len(v) <= MAX_INPUTS and all(map(_is_text, v)))


def _are_tokens(v: Any) -> bool:
    return type(v) is list and v != [] and all(type(i) is int and 0 <= i <= LARGEST_INT for i in v)


def _is_input(v: Any) -> bool:
    if _are_texts(v) or _are_tokens(v):
        return True
    return type(v) is list and 0 < len(v) <= MAX_INPUTS and all(map(_are_tokens, v))


_texts: Check = that(_are_texts, TEXTS_MUST)

_OURS = {
    name: SAMPLING[name]
    for name in (
        *("model", "user", "safety_identifier", "metadata"),
        *("request_id", "priority", "data_parallel_rank", "cache_salt"),
        *("truncate_prompt_tokens", "truncation_side"),
    )
}
_PADDING = (
    "for models of a fixed length; for others the engine would compute, and count, what nobody asked for"
)
_REMOVED = "vLLM 0.32 no longer knows it; use `use_activation`"
_SHARED: dict[str, Rule] = {
    **_OURS,
    "use_activation": passed(switch, "whether vectors are normalized, and scores between 0 and 1"),
    "padding": refused(_PADDING, "do_not_pad"),
    "mm_processor_kwargs": CHAT["mm_processor_kwargs"],
    "normalize": refused(_REMOVED),
    "task": dropped("the path says what is wanted"),
}

EMBEDDINGS: dict[str, Rule] = {
    **_SHARED,
    "input": bounded(That(_is_input, INPUT_MUST, integrals), "a vector for each text"),
    "encoding_format": bounded(
        one_of("float", "base64"), "format of the answer; clients of OpenAI ask for base64"
    ),
    "dimensions": bounded(integer(1, MAX_DIMENSIONS), "for models that were trained for it (Matryoshka)"),
    "add_special_tokens": SAMPLING["add_special_tokens"],
    "embed_dtype": refused("clients take base64 for 32-bit numbers", "float32"),
    "endianness": refused("clients take base64 for little-endian numbers", "little", "native"),
    "messages": bounded(messages, "a chat to be embedded as one text; instead of `input`"),
    **{
        name: CHAT[name]
        for name in (
            *("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"),
            "media_io_kwargs",
        )
    },
}
_SCORING: dict[str, Rule] = {
    **_SHARED,
    "max_tokens_per_query": bounded(integer(0), "number of tokens; 0: no limit"),
    "max_tokens_per_doc": bounded(integer(0), "number of tokens; 0: no limit"),
    "instruction": bounded(text(4096), "for models whose template has a place for it"),
    "chat_template_kwargs": bounded(template_kwargs, "names and small values for the model's template"),
}
RERANK: dict[str, Rule] = {
    **_SCORING,
    "query": bounded(that(_is_text, QUERY_MUST), "scored with each of the documents"),
    "documents": bounded(_texts, "texts; a result for each, the best first"),
    "top_n": bounded(integer(0), "number of results; 0: all"),
    "return_documents": dropped("vLLM always returns them"),
    "max_chunks_per_doc": dropped("vLLM scores a document as a whole"),
    "rank_fields": refused("documents are texts", []),
}
_ONE, _OTHER = ("queries", "data_1", "text_1"), ("documents", "data_2", "text_2", "items")
SCORE: dict[str, Rule] = {
    **_SCORING,
    **{
        name: bounded(_texts, "one text, or as many as there are on the other side")
        for name in (*_ONE, *_OTHER)
    },
}
PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def embedded(body: dict[str, Any]) -> int:
    """Counts the texts of a checked request. Raises WrongError."""
    if "messages" in body:
        if "input" in body:
            raise WrongError("be absent if there are `messages`", path="input")
        return 1
    if "input" not in body:
        raise WrongError(INPUT_MUST, path="input")
    given = body["input"]
    return len(given) if type(given) is list and type(given[0]) is not int else 1


def ranked(body: dict[str, Any]) -> int:
    """Counts the documents. Raises WrongError."""
    for name, must in (("query", QUERY_MUST), ("documents", TEXTS_MUST)):
        if name not in body:
            raise WrongError(must, path=name)
    return _count(body["documents"])


def scored(body: dict[str, Any]) -> int:
    """Counts the pairs. Raises WrongError."""
    given = [name for name in (*_ONE, *_OTHER) if name in body]
    if tuple(given) not in PAIRS:
        raise WrongError("be given with `documents`, and nothing else instead", path=(given or _ONE)[0])
    queries, documents = (body[name] for name in given)
    if type(queries) is list and len(queries) != 1 and len(queries) != _count(documents):
        raise WrongError(f"be one text, or as many as `{given[1]}`", path=given[0])
    return _count(documents)


def _count(texts: Any) -> int:
    return len(texts) if type(texts) is list else 1
