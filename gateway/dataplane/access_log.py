"""The access log: one line per request if FLORIN_ACCESS_LOG is set. It never contains prompts or keys."""

from __future__ import annotations

import logging
import time
from typing import Any

from gateway.dataplane.asgi import Message, Receive, Scope, Send
from gateway.dataplane.exchange import Exchange
from gateway.observability.logs import one_line
from gateway.observability.request_context import RequestContext

log = logging.getLogger("florin.access")

_PATH = 200
_UNSEEN = frozenset({"/healthz", "/readyz", "/health", "/v1/health", "/ping", "/metrics"})
"""Not logged: monitoring requests them every few seconds."""


def log_exchange(exchange: Exchange) -> None:
    """Log a data-plane request that has ended."""
    context = exchange.context
    seconds = time.monotonic() - context.began
    transport = exchange.transport
    _log(transport.method, transport.path, transport.client, context.status, seconds, _details(context))


async def logged(app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Call `app`, and log the request to the admin or finance API."""
    if scope["type"] != "http" or scope["path"] in _UNSEEN:
        await app(scope, receive, send)
        return
    status, began = 0, time.monotonic()

    async def noting(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, noting)
    finally:
        client = (scope.get("client") or ("",))[0]
        _log(scope["method"], scope["path"], client, status, time.monotonic() - began, {})


def _log(method: str, path: str, client: str, status: int, seconds: float, details: dict[str, Any]) -> None:
    path = one_line(path[:_PATH])
    message = (method, path, status or "-")
    record = log.makeRecord(log.name, logging.INFO, __file__, 0, "%s %s %s", message, None)
    record.__dict__["fields"] = {
        "method": method,
        "path": path,
        "client": client,
        "status": status or None,
        **details,
        "seconds": round(seconds, 6),
    }
    log.handle(record)  # regardless of the log level


def _details(context: RequestContext) -> dict[str, Any]:
    """Values that were not known yet when the request ended are null."""
    attempt = context.attempt
    prompt, _, completion = attempt.tokens if attempt else (None, None, None)
    first = (attempt.first - attempt.start) / 1e9 if attempt and attempt.first else None
    return {
        "request_id": context.request_id,
        "client_request_id": context.client_request_id or None,
        "trace_id": context.trace_id or None,
        "span_id": context.span_id or None,
        "tenant": context.tenant or None,
        "key": context.key_id or None,
        "adapter": context.adapter or None,
        "engine": context.engine or None,
        "attempts": context.attempts,
        "stream": context.stream,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "first_token_seconds": None if first is None else round(first, 6),
        "outcome": _outcome(context),
        "error": context.error or None,
    }


def _outcome(context: RequestContext) -> str:
    """The outcome of the last attempt's usage record. Without an attempt: `rejected`, or `client_abort` if
    the client disconnected before the response."""
    last = context.attempt.outcome if context.attempt else None
    if last == "failover":
        return "engine_error" if context.error else "client_abort"
    if last:
        return str(last)
    return "rejected" if context.error else "ok" if context.status else "client_abort"
