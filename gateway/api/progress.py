"""Runs long operations, streams their progress, and aborts them if the caller disconnects.

With `accept: application/x-ndjson`, the response is a line of JSON for each step, {"step", "done", "total"},
and a final line with {"result": …} or {"error": …}. Its status is 200, since it is sent before the outcome is
known. Otherwise the response is plain JSON with its own status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from adapters.errors import AdaptersError
from gateway.errors import FlorinError
from gateway.operations.authorization import Authority, worded
from gateway.operations.progress import AbandonedError, OperationProgress
from gateway.schemas.base import Answer, Json, json_of
from gateway.schemas.progress import ProgressLine

log = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"

_LOOK_SECONDS = 0.1
"""Seconds between two polls of the progress, and so between two lines."""
_ALIVE_SECONDS = 5.0
"""Seconds without progress after which the last line is repeated, so that no client or proxy times out."""
_WAITING = ProgressLine(step="wait", done=0, total=None)
"""Sent while the work is queued."""

Work = Callable[[OperationProgress], Awaitable[tuple[int, Answer]]]
"""Does the work; returns the status and body of the response."""

_running: set[asyncio.Task[Any]] = set()
"""Mutable. Keeps tasks alive after their callers have disconnected, since event loops hold them weakly."""


def in_openapi(result: type[Answer]) -> dict[int | str, Json]:
    """The `responses` of a route that answers so, with 200 or in lines."""
    return {200: {"model": result, "content": {NDJSON: {"schema": ProgressLine.model_json_schema()}}}}


async def answer(request: Request, work: Work, authority: Authority | None = None) -> Response:
    """Do the work and respond in the form that the request accepts. If the caller disconnects, the work is
    aborted and cleans up after itself. `authority`: the caller's, if errors are to be worded for it."""
    progress = OperationProgress()
    task = asyncio.ensure_future(_outcome(work, progress, authority))
    _running.add(task)
    task.add_done_callback(_running.discard)
    if NDJSON in request.headers.get("accept", ""):
        return StreamingResponse(_lines(task, progress), media_type=NDJSON)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
            if not task.done() and await request.is_disconnected():
                break
    finally:
        progress.abandon()
    if not task.done():
        return Response(status_code=499)  # the client has disconnected
    status, body, headers = task.result()
    return Response(body, status, headers, "application/json")


async def _outcome(
    work: Work, progress: OperationProgress, authority: Authority | None
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers. Never raises, since the caller may have disconnected."""
    try:
        status, body = await work(progress)
        return status, json_of(body), {}
    except AbandonedError:
        error = FlorinError("internal_error", "The caller disconnected.")
    except FlorinError as refusal:
        error = refusal
    except AdaptersError as refusal:
        error = worded(refusal, authority)
    except Exception:  # a defect: a progress stream still gets its final line
        log.exception("Operation failed")
        error = FlorinError("internal_error", "Internal error in Florin; see the gateway's log.")
    return error.status, error.body(), error.headers


async def _lines(
    task: asyncio.Future[tuple[int, bytes, dict[str, str]]], progress: OperationProgress
) -> AsyncGenerator[bytes, None]:
    last, sent_at = _as_line(_WAITING), time.monotonic()
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
            for line in progress.take():
                last, sent_at = _as_line(line), time.monotonic()
                yield last
            if time.monotonic() - sent_at >= _ALIVE_SECONDS:
                sent_at = time.monotonic()
                yield last
        status, body, _ = task.result()
        yield b'{"result":' + body + b"}\n" if status < 300 else body + b"\n"
    finally:
        progress.abandon()


def _as_line(progress: ProgressLine) -> bytes:
    return json_of(progress) + b"\n"
