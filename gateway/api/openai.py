"""The data plane: OpenAI's routes, and no other route of the engines. `gateway.lifecycle` does the work."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import orjson

from gateway.admission.overload import AdmissionTicket, Sender
from gateway.api.cors import Cors, preflight
from gateway.api.data_plane_objects import Objects
from gateway.api.model_cards import ModelCards, listing
from gateway.api.unknown_paths import nothing_at
from gateway.batches.routes import batches, files
from gateway.batches.routes.batches import BatchRoutes
from gateway.batches.routes.files import FileRoutes
from gateway.dataplane import access_log
from gateway.dataplane.dialect import OPENAI
from gateway.dataplane.exchange import (
    JSON,
    MAX_DRAIN_BYTES,
    ClientGoneError,
    Exchange,
    RequestTransport,
    declared_length,
    new_request_id,
)
from gateway.dataplane.request import Endpoint
from gateway.dialects.endpoints import ENDPOINTS, dialect_of
from gateway.dialects.messages import models
from gateway.dialects.messages.errors import DIALECT as ANTHROPIC
from gateway.errors import FlorinError, method_not_allowed
from gateway.lifecycle import Lifecycle
from gateway.observability.request_context import RequestContext
from gateway.tenants.authentication import authenticate_caller
from gateway.tenants.directory import Key
from gateway.transport.request_head import RequestHead

PREFIX = "/v1/"
_MODELS = "/v1/models"
_FILES_ARE_OPENAIS = (
    "Florin has files and batches as OpenAI's API has them, and none of Anthropic's: send texts and images "
    "in the message itself."
)


class DataPlane:
    """Serves everything under /v1/, and the other paths of ENDPOINTS."""

    def __init__(self, lifecycle: Lifecycle, objects: Objects | None = None) -> None:
        """`objects`: files and batches; None: there are none."""
        self._lifecycle = lifecycle
        self._objects: dict[str, FileRoutes | BatchRoutes] = {}
        if objects is not None:
            self._objects = {files.PATH: FileRoutes(objects), batches.PATH: BatchRoutes(objects)}
        self._cards = ModelCards(lifecycle.catalog)
        origins = lifecycle.settings.allowed_origins
        self._cors = Cors(origins) if origins else None

    async def serve(self, transport: RequestTransport, session_key: object = None) -> None:
        """`session_key`: see `Exchange`. A slash at the end of the path does not matter: vLLM redirects."""
        if transport.path != PREFIX:
            transport.path = transport.path.rstrip("/")
        exchange = Exchange(transport, session_key=session_key)
        exchange.introduce()
        if self._cors is not None:
            exchange.context.cors = self._cors.headers(transport.headers)
        endpoint = ENDPOINTS.get(transport.path)
        try:
            if endpoint is not None and transport.method == "POST":
                await self._lifecycle.run(exchange, endpoint)
            else:
                await self._answer(exchange, endpoint)
        finally:
            self._lifecycle.activity.note(exchange.context)
            if self._lifecycle.settings.access_log:
                access_log.log_exchange(exchange)

    def issue_ticket(
        self, head: RequestHead, sender: Callable[[], Sender]
    ) -> AdmissionTicket | FlorinError | None:
        """See `client_connection.Application`. Only requests to engines need a ticket."""
        if head.method == "POST" and head.path.rstrip("/") in ENDPOINTS:
            return self._lifecycle.issue_ticket(sender)
        return None

    def early_refusal(
        self, error: FlorinError, path: str, headers: list[tuple[bytes, bytes]]
    ) -> tuple[int, bytes] | None:
        """See `client_connection.Application`. Not with an access log, which needs each request."""
        if self._lifecycle.settings.access_log or not 0 <= declared_length(dict(headers)) <= MAX_DRAIN_BYTES:
            return None
        self._lifecycle.metrics.error(error.code)
        context = RequestContext(new_request_id())
        context.read(headers)
        if self._cors is not None:
            context.cors = self._cors.headers(headers)
        dialect, ids = dialect_of(path), context.ids()
        if dialect is OPENAI:
            return error.status, _lines(ids) + _refusal(error.code, error.message, error.retry_after)
        body = dialect.error_body(error, context.request_id)
        more = [] if dialect.headers is None else dialect.headers(ids)
        return dialect.status(error), _lines(ids + more) + _framed(error, body)

    async def _answer(self, exchange: Exchange, endpoint: Endpoint | None) -> None:
        """Answer what is no call of a model."""
        root, _, rest = exchange.transport.path[len(PREFIX) :].partition("/")
        routes = self._objects.get(PREFIX + root)
        asks = routes is None and endpoint is None and models.asks(exchange.headers)
        exchange.dialect = ANTHROPIC if asks else dialect_of(exchange.transport.path)
        try:
            if routes is not None and exchange.transport.method != "OPTIONS":
                if any(name == b"anthropic-version" for name, _ in exchange.headers):
                    exchange.dialect = ANTHROPIC
                    raise FlorinError("not_found", _FILES_ARE_OPENAIS)
                await routes.answer(exchange, rest.split("/") if rest else [])
            else:
                await exchange.respond(200, self._models(exchange))
        except ClientGoneError:
            exchange.finished = True
        except FlorinError as error:
            exchange.context.error = error.code
            self._lifecycle.metrics.error(error.code)
            await exchange.fail(error)
        finally:
            exchange.close()

    def _models(self, exchange: Exchange) -> bytes:
        """GET /v1/models and /v1/models/{id}, and preflights. Raises FlorinError for anything else."""
        path = exchange.transport.path
        known = path in ENDPOINTS or path == _MODELS or path.startswith(_MODELS + "/")
        known = known or any(path == root or path.startswith(root + "/") for root in self._objects)
        if not known:
            raise FlorinError("not_found", nothing_at(path))
        preflight_headers = (
            preflight(exchange.transport.method, exchange.transport.headers) if self._cors else None
        )
        if preflight_headers is not None:
            exchange.extra_headers = preflight_headers
            return b"{}"
        allowed = ("POST",) if path in ENDPOINTS else ("GET", "HEAD")
        if exchange.transport.method not in allowed:
            raise method_not_allowed(path, *allowed)
        key = authenticate_caller(exchange, self._lifecycle.directory, self._lifecycle.follower)
        model = path[len(_MODELS) + 1 :]
        if exchange.dialect is ANTHROPIC:
            if model:
                return orjson.dumps(models.card(self._one(key, model)))
            listed = orjson.loads(self._all(key))["data"]
            return orjson.dumps(models.page(listed, exchange.transport.query))
        return orjson.dumps(self._one(key, model)) if model else self._all(key)

    def _all(self, key: Key) -> bytes:
        """The models that this key may call."""
        tenant = self._lifecycle.directory.tenants.get(key.tenant)
        return listing([]) if tenant is None else self._cards.listing(tenant, key)

    def _one(self, key: Key, model: str) -> dict[str, object]:
        target = self._lifecycle.plans.resolve(key, model)
        return (
            self._cards.base(model) if target.version is None else self._cards.adapter(model, target.version)
        )


@lru_cache(maxsize=64)
def _refusal(code: str, message: str, retry_after: int | None) -> bytes:
    """The part of an early refusal that does not depend on the request."""
    error = FlorinError(code, message, retry_after=retry_after)
    return _framed(error, error.body())


def _framed(error: FlorinError, body: bytes) -> bytes:
    headers = {"content-type": JSON.decode(), "content-length": str(len(body)), **error.headers}
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n" + body


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
