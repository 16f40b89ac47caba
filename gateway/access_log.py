"""One line for each request, when FLORIN_ACCESS_LOG asks for it: who asked for what, who answered, how long
it took. Never a prompt, never a key.

Lines are put together and written in a thread of their own: whoever reads stderr slowly holds up no request.
Lines that nobody takes in time are counted instead.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from gateway.exchange import Exchange, Message, Receive, Scope, Send
from gateway.logs import one_line
from gateway.request_context import RequestContext

log = logging.getLogger("florin.access")

WAITING = 10_000
"""Lines that wait to be written."""
_CLOSING_SECONDS = 2.0
_PATH = 200
_UNSEEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines; what they find out is in the metrics."""


@dataclass(frozen=True, slots=True)
class _Visit:
    at: float
    seconds: float
    method: str
    path: str
    client: str
    status: int
    context: RequestContext | None


class AccessLog:
    """One per worker."""

    def __init__(self, waiting: int = WAITING) -> None:
        # Mutable: lines on their way to the thread; None ends it.
        self._queue: queue.Queue[_Visit | None] = queue.Queue(waiting)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="access-log", daemon=True)
        self._thread.start()

    def answered(self, exchange: Exchange) -> None:
        """A request on the data plane has ended, in whatever way."""
        context = exchange.context
        seconds = time.monotonic() - context.began
        self._put(
            _Visit(
                time.time(), seconds, exchange.method, exchange.path, exchange.client, context.status, context
            )
        )

    async def watch(self, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """A request to the other side: the operator's, or the analyst's."""
        if scope["type"] != "http" or scope["path"] in _UNSEEN:
            await app(scope, receive, send)
            return
        status, began = 0, time.monotonic()
        client = (scope.get("client") or ("",))[0]

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, noting)
        finally:
            seconds = time.monotonic() - began
            self._put(_Visit(time.time(), seconds, scope["method"], scope["path"], client, status, None))

    def close(self) -> None:
        """Write what is there, unless nobody reads."""
        try:
            self._queue.put(None, timeout=_CLOSING_SECONDS)
        except queue.Full:
            return
        self._thread.join(_CLOSING_SECONDS)

    def _put(self, visit: _Visit) -> None:
        try:
            self._queue.put_nowait(visit)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (visit := self._queue.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                log.warning("%d access lines were left out: stderr is read too slowly", dropped)
            try:
                log.handle(_record(visit))
            except Exception:
                log.exception("an access line could not be written")


def _record(visit: _Visit) -> logging.LogRecord:
    path = one_line(visit.path[:_PATH])
    status = visit.status or "-"
    record = log.makeRecord(
        log.name, logging.INFO, __file__, 0, "%s %s %s", (visit.method, path, status), None
    )
    record.created = visit.at
    record.__dict__["fields"] = {
        "method": visit.method,
        "path": path,
        "client": visit.client,
        "status": visit.status or None,
        **(_told(visit.context) if visit.context else {}),
        "seconds": round(visit.seconds, 6),
    }
    return record


def _told(context: RequestContext) -> dict[str, Any]:
    """Null where the request did not come so far."""
    attempt = context.attempt
    prompt, _, completion = attempt.tokens if attempt else (None, None, None)
    first = (attempt.first - attempt.start) / 1e9 if attempt and attempt.first else None
    return {
        "request_id": context.request_id,
        "client_request_id": context.client_request_id or None,
        "trace_id": context.trace_id or None,
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
    """As on the usage record of the last attempt; of a request that reached no engine, `rejected`, or
    `client_abort` where the client left before there was an answer."""
    last = context.attempt.outcome if context.attempt else None
    if last == "failover":
        return "engine_error" if context.error else "client_abort"
    if last:
        return str(last)
    return "rejected" if context.error else "ok" if context.status else "client_abort"
