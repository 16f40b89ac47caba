"""Try an adapter: one prompt to two versions, their answers side by side as they come."""

from __future__ import annotations

import shlex
from typing import Any, Final

import orjson
from starlette.responses import Response

from gateway.console.api_client import ApiError
from gateway.console.pages.adapters.common import (
    VISITORS,
    adapter,
    api_of,
    full_name,
    tabs,
    wrong,
)
from gateway.console.visit import Forwarded, Route, Visit
from gateway.fleet.adapters.schemas.adapters import AdapterDetails
from gateway.fleet.engines.schemas.engines import ServedBase
from gateway.schemas.base import Listed
from gateway.tenants.directory import Role

_MOST_BYTES: Final = 512 * 1024
_JSON: Final = [(b"content-type", b"application/json")]
_TAKEN: Final = ("messages", "prompt", "max_tokens", "temperature", "seed")
"""Fields of a request that the browser may set."""


async def try_page(visit: Visit) -> Response:
    name = full_name(visit)
    shown: AdapterDetails | None = None
    chat = True
    if visit.role is Role.TENANT:
        await visit.models(visit.key).call(
            "GET", f"/v1/models/{name}"
        )  # whether there is one that it may call
    else:
        shown = await adapter(visit)
        chat = await _chats(visit, shown.base_model)
    live = (shown and shown.live) or ""
    canary = shown and shown.canary
    return visit.page(
        "adapter_try.html.j2",
        name=name,
        versions=_versions(shown) if shown else [],
        left=visit.query.get("left") or live,
        right=visit.query.get("right") or (canary.version if canary else ""),
        chat=chat,
        paid_by=name.partition("/")[0],
        tabs=tabs(visit, name),
        cli=_curl(visit, name, live, chat=chat),
    )


def _curl(visit: Visit, name: str, version: str, *, chat: bool) -> str:
    """The command that asks the same."""
    body: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "Hello"}]} if chat else {"prompt": "Hello"}
    )
    path = "/v1/chat/completions" if chat else "/v1/completions"
    if visit.role is Role.OPERATOR:
        path = api_of(name, "versions", version or "v1", "try")
    else:
        body = {"model": name + (f"@{version}" if version else ""), "stream": True} | body
    proof = '-H "Authorization: Bearer $FLORIN_KEY" -H "content-type: application/json"'
    return f'curl -N "$FLORIN_URL"{path} {proof} -d {shlex.quote(orjson.dumps(body).decode())}'


def _versions(adapter: AdapterDetails) -> list[tuple[str, str]]:
    """Those that can be called, with what they are."""
    words = {adapter.live: " (live)"}
    if adapter.canary:
        words[adapter.canary.version] = f" (canary, {adapter.canary.weight} %)"
    return [(v, v + words.get(v, "")) for v in reversed(adapter.versions)]


async def _chats(visit: Visit, base: str | None) -> bool:
    """Whether its base model has a chat template, as far as known."""
    served = await visit.api.get("/admin/v1/bases", Listed[ServedBase])
    return all(b.chat_template != "" for b in served.data if b.base_model == base)


async def chat(visit: Visit) -> Response:
    """Stream a version's answer. A tenant's session calls it under its own key; an operator has none that
    calls models, so the API calls it for him, as the tenant, and audits that."""
    question = await _asked(visit)
    version = str(question.get("version") or "")
    body = {name: question[name] for name in _TAKEN if question.get(name) is not None} | {"stream": True}
    if visit.role is Role.OPERATOR:
        if not version:
            raise wrong("version", "Choose a version.")
        path = api_of(full_name(visit), "versions", version, "try")
        return Forwarded(visit.api, "POST", path, headers=_JSON, body=orjson.dumps(body))
    body |= {
        "model": full_name(visit) + (f"@{version}" if version else ""),
        "stream_options": {"include_usage": True},
    }
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    return Forwarded(visit.models(visit.key), "POST", path, headers=_JSON, body=orjson.dumps(body))


async def _asked(visit: Visit) -> dict[str, Any]:
    """Raises ApiError."""
    length = visit.request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or int(length) > _MOST_BYTES:
        raise ApiError(413, "body_too_large", f"A prompt may have up to {_MOST_BYTES:,} bytes.")
    try:
        question = orjson.loads(await visit.request.body())
    except orjson.JSONDecodeError:
        raise ApiError(400, "invalid_value", "The request is not JSON.") from None
    if not isinstance(question, dict):
        raise ApiError(400, "invalid_value", "The request is not an object.")
    return question


_ONE = "/adapters/{tenant}/{name}"
ROUTES = (
    Route(f"{_ONE}/try", try_page, VISITORS),
    Route(f"{_ONE}/chat", chat, VISITORS, "POST", reads_body=True),
)
