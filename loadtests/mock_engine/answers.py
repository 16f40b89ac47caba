"""The mock engine's answers, in exactly the format of vLLM 0.32. Pure functions.

The text names the model, so that a misrouted request shows: the first token is `I am <engine-side name>`, the
rest are filler words. A message to be continued, or a prompt that ends with the beginning of such a text, is
continued. An answer has `natural` tokens unless `max_tokens` truncates it (finish reason `length`) or
`ignore_eos` extends it. The last natural token is the silent end-of-sequence token.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson

from loadtests.mock_engine.request import GenerationRequest, said_by

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-mock"
PERMISSION = {
    "id": "modelperm-0",
    "object": "model_permission",
    "created": 0,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def pieces(speaker: str, tokens: int, finish: str, begun: int = 0) -> list[str]:
    """Texts of one choice's tokens, in order; together they are the answer after its first `begun` tokens."""
    count = tokens - 1 if finish == "stop" else tokens
    return list(islice(said_by(speaker), begun, begun + max(0, count)))


def text(speaker: str, tokens: int, finish: str, begun: int = 0) -> str:
    return "".join(pieces(speaker, tokens, finish, begun))


def whole(request: GenerationRequest, request_id: str, cached: int, *, details: bool) -> bytes:
    """The body of a non-streamed answer."""
    content = text(request.model, request.tokens, request.finish, request.begun)
    make = _chat_choice if request.chat else _text_choice
    completion = request.tokens * request.choices
    known: dict[str, Any] | None = None
    if details:
        created = 0 if request.chat else None
        known = {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": None}
    body = {
        "id": request_id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [make(i, content, request.finish) for i in range(request.choices)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {
            "prompt_tokens": sum(request.prompts),
            "total_tokens": sum(request.prompts) + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": known,
            "completion_tokens_details": None,
        },
    }
    if request.chat:
        body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return orjson.dumps(body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


def _chat_choice(index: int, content: str, finish: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def _text_choice(index: int, content: str, finish: str) -> dict[str, Any]:
    return {
        "index": index,
        "text": content,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def events(request: GenerationRequest, request_id: str, cached: int, *, details: bool) -> Iterator[bytes]:
    """The SSE events of a streamed answer, one token each, ending with `[DONE]`.

    Events are assembled from fixed text, because the mock must be cheaper than what it measures.
    """
    kind = "chat.completion.chunk" if request.chat else "text_completion"
    head = (
        f'data: {{"id":"{request_id}","object":"{kind}","created":{int(time.time())},'
        f'"model":{_quote(request.model)},"choices":['
    )
    if request.chat:
        for index in range(request.choices):
            delta = f'{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            running = _running(request, index, 0)
            rest = f'"logprobs":null,"finish_reason":null}}]{running},"prompt_token_ids":null,'
            yield f'{head}{delta}{rest}"prompt_text":null}}\n\n'.encode()
    yield from _tokens(request, head)
    if request.include_usage:
        created = ',"created_cache_tokens":0' if request.chat else ""
        known = f',"prompt_tokens_details":{{"cached_tokens":{cached}{created}}}' if details else ""
        counts = _counts(sum(request.prompts), request.tokens * request.choices)
        yield f'{head}],"usage":{{{counts}{known}}},"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()
    yield DONE


def _tokens(request: GenerationRequest, head: str) -> Iterator[bytes]:
    parts = pieces(request.model, request.tokens, request.finish, request.begun)
    if request.finish != "length":
        parts.append("")
    last = len(parts)
    choices = range(request.choices)
    for count, piece in enumerate(parts, 1):
        middle = (_chat_middle if request.chat else _text_middle)(
            piece, request.finish if count == last else ""
        )
        final = count == last and not request.include_usage
        end = f',"system_fingerprint":"{FINGERPRINT}"}}\n\n' if final else "}\n\n"
        counted = min(count, request.tokens)
        for index in choices:
            yield f'{head}{{"index":{index},{middle}}}]{_running(request, index, counted)}{end}'.encode()


def _chat_middle(piece: str, finish: str) -> str:
    reason = f'"{finish}","stop_reason":null' if finish else "null"
    return f'"delta":{{"content":{_quote(piece)}}},"logprobs":null,"finish_reason":{reason},"token_ids":null'


def _text_middle(piece: str, finish: str) -> str:
    reason = f'"{finish}"' if finish else "null"
    rest = '"stop_reason":null,"prompt_token_ids":null,"token_ids":null'
    return f'"text":{_quote(piece)},"logprobs":null,"finish_reason":{reason},{rest}'


def _running(request: GenerationRequest, index: int, count: int) -> str:
    """Continuous usage: the token counts of this choice and its prompt."""
    if not request.continuous_usage:
        return ""
    prompt = request.prompts[index // (request.choices // len(request.prompts))]
    extra = ',"completion_tokens_details":null' if request.chat else ""
    return f',"usage":{{{_counts(prompt, count)}{extra}}}'


def _counts(prompt: int, completion: int) -> str:
    return f'"prompt_tokens":{prompt},"total_tokens":{prompt + completion},"completion_tokens":{completion}'


def with_usage(answer: bytes, usage: str) -> bytes:
    """Replace the answer's `usage`, if it has one, with this JSON; empty changes nothing."""
    fields = orjson.loads(answer)
    if not usage or "usage" not in fields:
        return answer
    return orjson.dumps(fields | {"usage": orjson.Fragment(usage)})


def _quote(value: str) -> str:
    return orjson.dumps(value).decode()


def error(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def no_such_model(model: str, base: str) -> tuple[int, bytes]:
    message = f"The model `{model}` does not exist. Valid aliases: {base}."
    return 404, error(message, "NotFoundError", 404, "model")


def model_cards(base: str, root: str, adapters: dict[str, str], max_model_len: int) -> bytes:
    """`GET /v1/models`; `adapters` is name → path."""
    now = int(time.time())

    def card(name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len if parent is None else None,
            "permission": [PERMISSION | {"created": now}],
        }

    cards = [card(base, root, None), *(card(name, path, base) for name, path in adapters.items())]
    return orjson.dumps({"object": "list", "data": cards})
