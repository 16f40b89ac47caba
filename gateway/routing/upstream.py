"""Sends requests to engines, and translates their failures into retries or errors."""

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
"""Concerns Florin's own token (FLORIN_ENGINE_TOKEN_FILE), never the client."""
_AT_ONCE = 256 * 1024
"""Bodies of up to this size are written at once; longer ones are passed as files, which aiohttp sends in
chunks."""
BROKEN = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class RetryElsewhere(Exception):  # noqa: N818  # an instruction, not an error
    """The attempt failed, and another engine can start over or resume: the client saw nothing wrong."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        suspect: bool = False,
        unknown_model: bool = False,
        engine_worked: bool = True,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        """A metric label: `unreachable`, `died`, `status_5xx`, `busy`, `denied`, `unknown_model`, `aborted`,
        `down`, `hung`, `first_byte`, `malformed`."""
        self.suspect = suspect
        """The engine may be dead: probe it before using it again."""
        self.unknown_model = unknown_model
        """The engine does not hold the version although the residency says so."""
        self.engine_worked = engine_worked
        """The engine may have worked on the request, so the attempt counts against MAX_ATTEMPTS."""


class Upstream:
    """HTTP access to the engines through one connection pool.

    Only `Lifecycle.attempt` calls `post`, once per attempt. It never retries: failures that another engine
    may not have are raised as RetryElsewhere, and refusals of the request as FlorinError. Nothing of the
    client's headers is passed on but its trace context.
    """

    def __init__(self, session: aiohttp.ClientSession, *, connect_timeout: float) -> None:
        self._session = session
        # No read timeout: it would set a timer for every packet. The hang detector ends silent streams, and
        # probes distinguish a busy engine from a dead one.
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
        """Post a request; the response has status 200. `trace`: validated `traceparent` and `tracestate`.
        Raises RetryElsewhere, or FlorinError if the engine refuses the request.

        Leaving the context before the body is read closes the connection, which makes the engine abort.
        """
        url = self._urls.get((engine.url, path))
        if url is None:
            url = self._urls[engine.url, path] = URL(engine.url + path)
        # No other headers of the client are forwarded: some of them control the engine.
        headers = {"content-type": "application/json", "x-request-id": request_id, **(trace or {})}
        data = payload if len(payload) <= _AT_ONCE else io.BytesIO(payload)
        try:
            response = await self._session.post(
                url, data=data, headers=headers, timeout=self._timeout, allow_redirects=False
            )
        except aiohttp.ClientConnectorError as error:
            raise RetryElsewhere("unreachable", str(error), suspect=True, engine_worked=False) from error
        except BROKEN as error:
            raise connection_lost(error) from error
        del payload, data  # may be megabytes, and streams last minutes
        whole = False
        try:
            if response.status != 200:
                raise await _refusal(response, target)
            yield response
            whole = response.content.at_eof()
        finally:
            response.release() if whole else response.close()


def connection_lost(error: Exception) -> RetryElsewhere:
    """The connection was lost."""
    return RetryElsewhere("died", str(error) or type(error).__name__, suspect=True)


def abandoned(lease: Lease) -> RetryElsewhere:
    """The retry of an abandoned attempt. It counts as a failed attempt only if the engine works."""
    name, why = lease.state.engine.name, lease.abandoned
    words = {
        "down": "is down",
        "hung": "hangs",
        "first_byte": "did not start to answer in time",
        "idle": "stopped sending",
    }
    return RetryElsewhere(why, f"{name} {words[why]}", engine_worked=why in {"first_byte", "idle"})


async def read_whole(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except BROKEN as error:
        raise connection_lost(error) from error


async def _refusal(response: aiohttp.ClientResponse, target: Target) -> Exception:
    """The exception for a status other than 200."""
    status, body = response.status, await read_whole(response)
    error = read_error(body)
    message = message_of(error, f"status {status}")
    if status == 404 and error.get("param") in ("model", None):
        return RetryElsewhere("unknown_model", message, unknown_model=True, engine_worked=False)
    if status in _BUSY:
        return RetryElsewhere("busy", message, engine_worked=False)
    if status in _DENIED:
        return RetryElsewhere("denied", f"{status}: {message}", suspect=True, engine_worked=False)
    return refused(status, error, target) or RetryElsewhere("status_5xx", f"{status}: {message}")


def refused(status: int, error: dict[str, Any], target: Target) -> FlorinError | None:
    """The engine's error message about a client's mistake, without internal names; None: not the client's
    mistake."""
    if status not in _CLIENT_ERRORS:
        return None
    message = message_of(error, "The engine rejected the request.").replace(target.engine_name, target.label)
    param = error.get("param")
    return FlorinError(
        "request_refused",
        message,
        param=param[:200].removeprefix("body.") if type(param) is str else None,
        status=status if status in {400, 413, 422} else 400,
    )
