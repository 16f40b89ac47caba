"""Work that takes a while, and a caller who may want to hear how far it is, or hang up.

With `accept: application/x-ndjson` the answer is a line of JSON for each step on the way, {"step", "done",
"total"}, and a last one with {"result": …} or {"error": …}. Its status is then 200 before the outcome is
known. Otherwise it is plain JSON with a status of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from adapters.errors import AdaptersError
from gateway.errors import FlorinError, translate
from gateway.operations.progress import AbandonedError, OperationProgress
from gateway.operations.transaction import Json

log = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"

_LOOK_SECONDS = 0.1
"""Between two looks at how far it is: at most so often a step is told of."""
_ALIVE_SECONDS = 5.0
"""Nothing new is said after so long, too, so that neither the client nor a proxy gives up."""
_WAITING = b'{"step":"wait","done":0,"total":null}\n'
"""Said of work whose turn has not come."""

Work = Callable[["OperationProgress"], Awaitable[tuple[int, Json]]]
"""Does it, and returns the status and the object of its answer."""

_running: set[asyncio.Task[Any]] = set()
"""Mutable: event loops hold tasks weakly, and work that was hung up on ends by itself."""


async def answer(request: Request, work: Work) -> Response:
    """Do the work and answer as the request likes it. If the caller hangs up, the work is told to end, and
    what it had prepared is gone when it does."""
    progress = OperationProgress()
    task = asyncio.ensure_future(_outcome(work, progress))
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
        return Response(status_code=499)  # nobody reads it
    status, body, headers = task.result()
    return Response(body, status, headers, "application/json")


async def _outcome(work: Work, progress: OperationProgress) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers. Never raises, for perhaps nobody is there to be told."""
    try:
        status, body = await work(progress)
        return status, orjson.dumps(body), {}
    except AbandonedError:
        error = FlorinError("internal_error", "The caller hung up.")
    except FlorinError as refusal:
        error = refusal
    except AdaptersError as refusal:
        error = translate(refusal)
    except Exception:  # a defect: who streams progress is still told how it ended
        log.exception("adding an adapter failed")
        error = FlorinError("internal_error", "Something broke inside Florin; its log says what.")
    return error.status, error.body(), error.headers


async def _lines(
    task: asyncio.Future[tuple[int, bytes, dict[str, str]]], progress: OperationProgress
) -> AsyncGenerator[bytes, None]:
    last, at = _WAITING, time.monotonic()
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
            for line in progress.take():
                last, at = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE), time.monotonic()
                yield last
            if time.monotonic() - at >= _ALIVE_SECONDS:
                at = time.monotonic()
                yield last
        status, body, _ = task.result()
        yield b'{"result":' + body + b"}\n" if status < 300 else body + b"\n"
    finally:
        progress.abandon()
