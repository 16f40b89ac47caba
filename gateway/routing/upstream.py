"""One attempt's conversation with one engine: what it answered, and whether to go elsewhere."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from adapters.model import Engine
from adapters.registry.catalog import Target
from gateway.errors import FlorinError
from gateway.routing.engine_answers import message_of, read_error
from gateway.routing.engine_state import Lease

_CLIENT_ERRORS = range(400, 500)
_BUSY = frozenset({429, 503})
_DENIED = frozenset({401, 403})
"""Between Florin and its engine (FLORIN_ENGINE_TOKEN_FILE), never the client's doing."""
_AT_ONCE = 256 * 1024
"""Bytes of a body that are written in one piece; a longer one is a file to aiohttp, and goes in pieces."""
BROKEN = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class RetryElsewhere(Exception):  # noqa: N818  # an instruction, not an error
    """This attempt has come to nothing that the client saw."""

    def __init__(
        self,
        reason: str,
        words: str,
        *,
        suspect: bool = False,
        unknown_model: bool = False,
        counts: bool = True,
    ) -> None:
        super().__init__(words)
        self.reason = reason
        """A metric label: `unreachable`, `died`, `status_5xx`, `busy`, `denied`, `unknown_model`, `aborted`,
        `down`, `hung`, `first_byte`, `malformed`."""
        self.suspect = suspect
        """The engine itself is in doubt."""
        self.unknown_model = unknown_model
        """The engine does not hold what it is thought to hold."""
        self.counts = counts
        """The engine may have worked on it: only so many such attempts are made."""


class Upstream:
    """The connections to all engines, pooled."""

    def __init__(self, session: aiohttp.ClientSession, *, connect_timeout: float) -> None:
        self._session = session
        # No read timeout: it would arm a timer for every packet. The pool watches over silent streams, and
        # the probes tell an engine's long work from its death.
        self.reconfigure(connect_timeout=connect_timeout)
        self._urls: dict[tuple[str, str], URL] = {}

    def reconfigure(self, *, connect_timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)

    @asynccontextmanager
    async def post(
        self,
        engine: Engine,
        path: str,
        payload: bytes,
        request_id: str,
        target: Target,
        trace: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The engine's 200. `trace`: `traceparent` and `tracestate`, checked. Raises RetryElsewhere, or
        FlorinError when the engine refuses the request.

        Leaving the context before the body is read closes the connection, which aborts the engine's work.
        """
        url = self._urls.get((engine.url, path))
        if url is None:
            url = self._urls[engine.url, path] = URL(engine.url + path)
        # None of the client's headers go along but its trace: several steer the engine.
        headers = {"content-type": "application/json", "x-request-id": request_id, **(trace or {})}
        data = payload if len(payload) <= _AT_ONCE else io.BytesIO(payload)
        try:
            response = await self._session.post(
                url, data=data, headers=headers, timeout=self._timeout, allow_redirects=False
            )
        except aiohttp.ClientConnectorError as error:
            raise RetryElsewhere("unreachable", str(error), suspect=True, counts=False) from error
        except BROKEN as error:
            raise died(error) from error
        del payload, data  # it may be megabytes, and streams last minutes
        whole = False
        try:
            if response.status != 200:
                raise await _refusal(response, target)
            yield response
            whole = response.content.at_eof()
        finally:
            response.release() if whole else response.close()


def died(error: Exception) -> RetryElsewhere:
    """The connection broke off."""
    return RetryElsewhere("died", str(error) or type(error).__name__, suspect=True)


def gone(lease: Lease) -> RetryElsewhere:
    """Of an attempt that was abandoned. Only what an engine that works has left undone counts as a failed
    attempt."""
    name, why = lease.state.engine.name, lease.abandoned
    words = {
        "down": "was found dead",
        "hung": "hangs",
        "first_byte": "did not begin its answer in time",
        "idle": "stopped sending its answer",
    }
    return RetryElsewhere(why, f"{name} {words[why]}", counts=why in {"first_byte", "idle"})


async def read_whole(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except BROKEN as error:
        raise died(error) from error


async def _refusal(response: aiohttp.ClientResponse, target: Target) -> Exception:
    """What an answer other than 200 means for the request."""
    status, body = response.status, await read_whole(response)
    error = read_error(body)
    message = message_of(error, f"status {status}")
    if status == 404 and error.get("param") in ("model", None):
        return RetryElsewhere("unknown_model", message, unknown_model=True, counts=False)
    if status in _BUSY:
        return RetryElsewhere("busy", message, counts=False)
    if status in _DENIED:
        return RetryElsewhere("denied", f"{status}: {message}", suspect=True, counts=False)
    return refused(status, error, target) or RetryElsewhere("status_5xx", f"{status}: {message}")


def refused(status: int, error: dict[str, Any], target: Target) -> FlorinError | None:
    """A client's mistake in the engine's words, without what is not for the client's eyes; None if it is not
    the client's."""
    if status not in _CLIENT_ERRORS:
        return None
    message = message_of(error, "The engine refused the request.").replace(target.engine_name, target.label)
    param = error.get("param")
    return FlorinError(
        "request_refused",
        message,
        param=param[:200].removeprefix("body.") if type(param) is str else None,
        status=status if status in {400, 413, 422} else 400,
    )
