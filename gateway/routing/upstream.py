"""Sends requests to engines, and translates their failures into retries or errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from adapters.drivers import driver_of
from adapters.drivers.driver import Lora, Trouble, UnsupportedFieldError
from adapters.model import Engine
from adapters.registry.catalog import Target
from gateway.errors import FlorinError, unsupported_endpoint
from gateway.routing.engine_answers import read_error
from gateway.routing.engine_messages import refusal
from gateway.routing.engine_refusals import EngineRefusals
from gateway.routing.engine_state import Lease
from gateway.runtime.cancel_scope import CancelScope
from gateway.transport.engine_connection import EngineConnection, ResponseTooLargeError
from gateway.transport.engine_pool import Address, EnginePool, address

_CLIENT_ERRORS = range(400, 500)
_BUSY = frozenset({429, 503})
_DENIED = frozenset({401, 403})
"""Concerns Florin's own token (FLORIN_ENGINE_TOKEN_FILE), never the client."""
_NO_ROUTE = {"detail": "Not Found"}
"""vLLM's answer on a path that it does not serve; what it does not hold has an error object."""
_MAX_ERROR_BYTES = 256 * 1024


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

    Only `Delivery.attempt` calls `post`, once per attempt. It never retries: failures that another engine
    may not have are raised as RetryElsewhere, and refusals of the request as FlorinError. Nothing of the
    client's headers is passed on but its trace context.
    """

    def __init__(
        self,
        pool: EnginePool,
        *,
        connect_timeout: float,
        authorization: Callable[[], str] = str,
    ) -> None:
        """`authorization` returns the header for engines; empty: none."""
        self.refusals = EngineRefusals()
        self._pool = pool
        self._authorization = authorization
        # No read timeout: it would set a timer for every packet. The hang detector ends silent streams, and
        # probes distinguish a busy engine from a dead one.
        self.reconfigure(connect_timeout=connect_timeout)

    def reconfigure(self, *, connect_timeout: float) -> None:
        self._connect_timeout = connect_timeout

    @property
    def connections_in_use(self) -> int:
        return self._pool.in_use

    def post(
        self,
        engine: Engine,
        path: str,
        payload: bytes,
        request_id: str,
        target: Target,
        *,
        scope: CancelScope,
        trace: Mapping[str, str] | None = None,
    ) -> _Post:
        """Post a request, in an `async with` block: its target is the response, whose status is 200.
        Entering, which happens in `scope`, raises RetryElsewhere, or FlorinError if the engine refuses the
        request. `trace`: validated `traceparent` and `tracestate`.

        Leaving the block before the body is read closes the connection, which makes the engine abort.
        """
        if engine.driver != "vllm":
            payload = engine_payload(engine, path, payload, target)
        where = address(engine.url)
        # No other headers of the client are forwarded: some of them control the engine.
        head = _opening(where, path, self._authorization())
        if trace:
            head += b"".join([f"{name}: {value}\r\n".encode() for name, value in trace.items()])
        head += b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request_id.encode(), len(payload))
        return _Post(
            self._pool,
            self._connect_timeout,
            where,
            head,
            payload,
            target,
            engine=engine,
            scope=scope,
            refusals=self.refusals,
        )


class _Post:
    """A context manager as a class: a generator would cost three times as much."""

    __slots__ = (
        "_connect_timeout",
        "_connection",
        "_engine",
        "_head",
        "_payload",
        "_pool",
        "_refusals",
        "_scope",
        "_target",
        "_where",
        "sent",
    )

    def __init__(
        self,
        pool: EnginePool,
        connect_timeout: float,
        where: Address,
        head: bytes,
        payload: bytes,
        target: Target,
        *,
        engine: Engine,
        scope: CancelScope,
        refusals: EngineRefusals,
    ) -> None:
        self._pool = pool
        self._refusals = refusals
        self._connect_timeout = connect_timeout
        self._where = where
        self._head = head
        self._payload = payload
        self._engine = engine
        self._target = target
        self._scope = scope
        self.sent = False
        """The engine may have received the request."""

    async def __aenter__(self) -> EngineConnection:
        pool, where = self._pool, self._where
        with self._scope:
            connection = pool.idle(where) or await self._connect()
            self._connection = connection
            self.sent = True
            payload, self._payload = self._payload, b""  # it may be megabytes, and streams last minutes
            try:
                status = await connection.send(self._head, payload)
                if status == 200:
                    return connection
                raise await _refusal(connection, self._engine, self._target, self._refusals)
            except OSError as error:
                pool.release(where, connection)
                raise connection_lost(error) from error
            except BaseException:
                pool.release(where, connection)
                raise

    async def _connect(self) -> EngineConnection:
        try:
            return await self._pool.connect(self._where, timeout=self._connect_timeout)
        except OSError as error:
            reason = str(error) or f"no connection within {self._connect_timeout:g} s"
            raise RetryElsewhere("unreachable", reason, suspect=True, engine_worked=False) from error

    async def __aexit__(self, *_: object) -> None:
        self._pool.release(self._where, self._connection)


@lru_cache(maxsize=4096)
def _opening(where: Address, path: str, authorization: str) -> bytes:
    """The part of a request's head that is the same for many requests."""
    lines = [
        b"POST %b%b HTTP/1.1" % (where.prefix, path.encode()),
        b"host: " + where.host_header,
        b"content-type: application/json",
        *([b"authorization: " + authorization.encode()] if authorization else []),
    ]
    return b"".join(line + b"\r\n" for line in lines)


def connection_lost(error: Exception) -> RetryElsewhere:
    """The connection was lost."""
    return RetryElsewhere("died", str(error) or type(error).__name__, suspect=True)


def abandoned(lease: Lease) -> RetryElsewhere:
    """The retry of an abandoned attempt. It counts as a failed attempt only if the engine works."""
    name, reason = lease.state.engine.name, lease.abandoned
    words = {
        "down": "is down",
        "hung": "hangs",
        "first_byte": "did not start to answer in time",
        "idle": "stopped sending",
        "deadline": "did not start to answer by the request's deadline",
    }
    return RetryElsewhere(reason, f"{name} {words[reason]}", engine_worked=reason in {"first_byte", "idle"})


async def read_whole(response: EngineConnection, limit: int) -> bytes:
    """A response's whole body. Raises RetryElsewhere, and ResponseTooLargeError above `limit` bytes."""
    try:
        return await response.read(limit)
    except ResponseTooLargeError:
        raise
    except OSError as error:
        raise connection_lost(error) from error


async def _refusal(
    response: EngineConnection, engine: Engine, target: Target, refusals: EngineRefusals
) -> Exception:
    """The exception for a status other than 200."""
    status = response.status
    try:
        body = await read_whole(response, _MAX_ERROR_BYTES)
    except ResponseTooLargeError:
        body = b""
    error = read_error(body)
    message = refusal(error).message if error else f"status {status}"
    if status == 404 and error == _NO_ROUTE:
        return unsupported_endpoint()
    trouble = trouble_of(engine, status, error)
    if trouble is not None:
        return trouble
    if status == 404 and error.get("param") in ("model", None):
        return RetryElsewhere("unknown_model", message, unknown_model=True, engine_worked=False)
    if status in _BUSY:
        return RetryElsewhere("busy", message, engine_worked=False)
    if status in _DENIED:
        return RetryElsewhere("denied", f"{status}: {message}", suspect=True, engine_worked=False)
    if status in _CLIENT_ERRORS:
        refusals.note(engine.name, error, refusal(error))
    return refused(status, error, target) or RetryElsewhere("status_5xx", f"{status}: {message}")


def trouble_of(engine: Engine, status: int, error: dict[str, Any]) -> RetryElsewhere | None:
    """The retry of an error that this kind of engine reports with another status than vLLM would."""
    message = error.get("message")
    match driver_of(engine).trouble(status, message if type(message) is str else ""):
        case Trouble.UNKNOWN_MODEL:
            reason = "the engine does not hold the version"
            return RetryElsewhere("unknown_model", reason, unknown_model=True, engine_worked=False)
        case Trouble.ENGINE:
            return RetryElsewhere("status_5xx", f"{status}: {refusal(error).message}")
    return None


def resumes_on(engine: Engine) -> bool:
    """Whether the engine's streams can be resumed, there or elsewhere."""
    return engine.driver == "vllm" or driver_of(engine).capabilities.resumes


def engine_payload(engine: Engine, route: str, payload: bytes, target: Target) -> bytes:
    """A request, which is vLLM's, as another kind of engine takes it. Raises FlorinError if it cannot be."""
    driver = driver_of(engine)
    if route not in driver.capabilities.routes:
        message = f"{target.label} is served by {driver.title}, on which Florin does not offer {route}."
        raise FlorinError("request_refused", message, param="model")
    version = target.version
    lora = Lora(version.engine_name, version.path) if version else None
    try:
        return orjson.dumps(driver.request(route, orjson.loads(payload), engine.base_model, lora))
    except UnsupportedFieldError as error:
        raise FlorinError(
            "unsupported_parameter", f"`{error.field}` is not supported: {error.reason}.", param=error.field
        ) from None


def refused(status: int, error: dict[str, Any], target: Target) -> FlorinError | None:
    """The engine's error about a client's mistake, in words for clients; None: not the client's mistake."""
    if status not in _CLIENT_ERRORS:
        return None
    explanation = refusal(error)
    message = explanation.message.replace(target.engine_name, target.label)
    return FlorinError(
        explanation.code,
        message,
        param=explanation.param,
        status=status if status in {400, 413, 422} else 400,
    )
