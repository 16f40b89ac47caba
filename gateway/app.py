"""The ASGI application of one worker. `gateway.composition` builds what it serves with."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from gateway.admission.complexity import warm
from gateway.admission.overload import AdmissionTicket, Sender
from gateway.api import admin, data_plane_openapi, docs_page, exception_handlers, finance, health
from gateway.api.data_plane_objects import Objects
from gateway.api.gate import Gate
from gateway.api.openai import PREFIX, DataPlane
from gateway.api.security_headers import security_headers
from gateway.api.unknown_paths import nothing_at
from gateway.composition.build import build
from gateway.composition.reconfigure import ReloadTargets
from gateway.config import Settings, load_settings
from gateway.costs.prices import routes as prices
from gateway.dataplane import access_log
from gateway.dataplane.asgi import SESSION_KEY, AsgiRequest, Message, Receive, Scope, Send
from gateway.dataplane.exchange import Exchange
from gateway.dialects.endpoints import ENDPOINTS, dialect_of
from gateway.errors import FlorinError
from gateway.observability.conditions import Condition
from gateway.observability.process_metrics import ProcessValues
from gateway.operations.state import State
from gateway.runtime.settings_reload import Reload
from gateway.runtime.transport_security import TransportSecurity
from gateway.transport.client_connection import ClientConnection
from gateway.transport.connection_limits import Connections, connection_limits, network_of
from gateway.transport.http_request import HttpRequest
from gateway.transport.request_head import Headers, RequestHead

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_ON_BOTH_PORTS = frozenset({"/healthz", "/readyz", *health.VLLMS_PATHS})
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
BALANCED_SECONDS = 60.0
"""Time since the last readiness check for which a worker assumes that it is behind a load balancer."""


def _sender(head: RequestHead, connection: ClientConnection) -> Sender:
    """The sender of a request to an overloaded worker."""
    credentials = tuple(value for name, value in head.headers if name in _CREDENTIALS)
    return Sender(network_of(connection.client(head.headers)), hash(credentials), connection.refused)


class Florin:
    """Sends the data plane straight to its handler, past the framework, and everything else to FastAPI.

    Its lifespan builds the worker. Importing this module opens nothing.
    """

    def __init__(
        self,
        settings: Settings,
        process_values: ProcessValues | None = None,
        entrance: socket.socket | None = None,
    ) -> None:
        self.settings = settings
        self._process_values = process_values
        self._entrance = entrance
        self.security = TransportSecurity(settings)
        self.data_plane: DataPlane | None = None
        self.connections = Connections(connection_limits(settings))
        self.admin = AdminPort(self) if settings.admin_port is not None else None
        # Mutable, set by the server.
        self._stopping = False
        self._refused = ""
        self._running: ReloadTargets | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.api = FastAPI(
            title="Florin",
            summary="A multi-LoRA serving gateway: models, the operator's and the analyst's side.",
            lifespan=self._lifespan,
            openapi_url="/openapi.json" if settings.api_docs else None,
            docs_url=None,  # FastAPI's pages load their scripts from elsewhere: see `docs_page`
            redoc_url=None,
            redirect_slashes=False,  # the gate takes them off
            separate_input_output_schemas=False,  # generated clients need one class for each name
        )
        exception_handlers.install(self.api)
        self.api.router.routes.extend(_routes(docs=settings.api_docs))
        data_plane_openapi.describe(self.api)
        self.gate = Gate(self.api, settings)
        self._framework: Asgi = self.gate
        self._console: Asgi | None = None
        if settings.cors_admin and settings.allowed_origins:
            self._framework = CORSMiddleware(
                self.gate,
                allow_origins=settings.allowed_origins,
                allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
                allow_headers=("*",),
                expose_headers=("*",),
            )

    def stop(self) -> None:
        """Report that the worker is not ready, and ask clients to close their connections."""
        self._stopping = True

    @property
    def balanced(self) -> bool:
        """Whether a load balancer checks its readiness."""
        queried_at = self._running.state.readiness_queried_at if self._running else None
        return queried_at is not None and time.monotonic() - queried_at < BALANCED_SECONDS

    def apply(self, reload: Reload) -> None:
        """Apply reloaded settings. Call it from any thread."""
        if self._loop is None:
            self._apply(reload)
        else:
            self._loop.call_soon_threadsafe(self._apply, reload)

    def _apply(self, reload: Reload) -> None:
        self.settings, self._refused = reload.settings, reload.refused
        self.connections.limits = connection_limits(reload.settings)
        if self.admin is not None:
            self.admin.connections.limits = self.connections.limits
        if self._running:
            self._running.reconfigure(reload.settings)

    def _conditions(self) -> Iterator[Condition]:
        if self._stopping:
            yield Condition("stopping")
        if self._refused:
            yield Condition("settings_refused", message=self._refused)

    # What `client_connection.Application` describes:

    def issue_ticket(self, head: RequestHead, connection: ClientConnection, *, waits: bool) -> object:
        sender = partial(_sender, head, connection)
        ticket = self.data_plane.issue_ticket(head, sender) if self.data_plane else None
        if waits and isinstance(ticket, AdmissionTicket):
            ticket.pause()
        return ticket

    def early_refusal(self, ticket: object, path: str, headers: Headers) -> tuple[int, bytes] | None:
        if self._stopping or self.data_plane is None or not isinstance(ticket, FlorinError):
            return None  # responses of a worker that stops close connections: see `serve`
        return self.data_plane.early_refusal(ticket, path, headers)

    def error_body(self, path: str, error: FlorinError) -> bytes:
        return dialect_of(path).error_body(error, "")

    def serves(self, path: str) -> bool:
        if self.data_plane is None or path in health.VLLMS_PATHS:
            return False
        return path.startswith(PREFIX) or path.rstrip("/") in ENDPOINTS

    def serve(self, request: HttpRequest) -> Coroutine[Any, Any, None]:
        assert self.data_plane is not None  # else `serves` is false
        if self._stopping:
            request.keep_alive = False
        return self.data_plane.serve(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        closed = self.admin is not None and scope["type"] == "http" and scope["path"] not in _ON_BOTH_PORTS
        await self._dispatch(_nothing_here if closed else self._framework, scope, receive, send)

    async def serve_admin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the admin port."""
        await self._dispatch(self._framework, scope, receive, send)

    async def _dispatch(self, app: Asgi, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stopping:
            send = _closing(send)
        if app is self._framework and self.settings.console and _of_console(scope):
            app = self._console = self._console or self._make_console()
        if self.settings.access_log:
            await access_log.logged(app, scope, receive, send)
        else:
            await app(scope, receive, send)

    def _make_console(self) -> Asgi:
        from gateway.console.console import Console  # noqa: PLC0415  # few workers ever need it

        state: State = self.api.state.florin
        return Console(
            self.settings,
            state,
            self.gate,
            self._models,
            lambda: self._stopping,
            lambda: _build_routes(self.api),
        )

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The data plane for the console, under the key of its session."""
        if self.data_plane is None:
            await _nothing_here(scope, receive, send)
        else:
            await self.data_plane.serve(AsgiRequest(scope, receive, send), scope[SESSION_KEY])

    @contextlib.asynccontextmanager
    async def _lifespan(self, api: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        async with build(self.settings, self.security, self._process_values, self._entrance) as running:
            api.state.florin = state = running.state
            state.conditions.add(self._conditions)
            self.connections.on_close = state.metrics.connection_closed
            self.connections.on_sweep = state.metrics.connections
            if self.admin is not None:
                self.admin.connections.on_close = state.metrics.connection_closed
            self._running = running
            running.reconfigure(self.settings)  # they may have been reloaded meanwhile
            self.data_plane = DataPlane(state.lifecycle, Objects(state.lifecycle, state.batches))
            self._loop.run_in_executor(None, warm)
            yield
            self.data_plane = None


class AdminPort:
    """The `client_connection.Application` of the admin port: what FastAPI serves, and no data plane. It has
    connections of its own, so that the data plane's clients cannot use up the operator's."""

    def __init__(self, florin: Florin) -> None:
        self._florin = florin
        self.connections = Connections(florin.connections.limits)

    def issue_ticket(self, method: str, path: str, *, waits: bool) -> object:
        del method, path, waits
        return None

    def early_refusal(self, ticket: object, path: str, headers: Headers) -> tuple[int, bytes] | None:
        del ticket, path, headers
        return None

    def error_body(self, path: str, error: FlorinError) -> bytes:
        del path
        return error.body()

    def serves(self, path: str) -> bool:
        del path
        return False

    async def serve(self, request: HttpRequest) -> None:
        raise NotImplementedError  # `serves` is false for all paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._florin.serve_admin(scope, receive, send)


@functools.cache
def _routes(*, docs: bool) -> list[BaseRoute]:
    """FastAPI builds each when a request is first compared with it, once for all gateways of a process."""
    router = APIRouter()
    for part in (health.router, admin.router, prices.router, finance.router):
        router.include_router(part)
    if docs:
        router.include_router(docs_page.router)
    return router.routes


def _build_routes(api: FastAPI) -> None:
    """FastAPI builds each route at the first request that is compared with it: a third of a second for all,
    in which the event loop would stand still. From any thread."""
    scope = {"type": "http", "method": "GET", "path": "/none", "root_path": "", "headers": [], "app": api}
    for route in api.router.routes:
        route.matches(scope)


def _of_console(scope: Scope) -> bool:
    """Whether the path is the console's. `/` is, for browsers, so that the gateway's address leads to the
    console."""
    path: str = scope.get("path", "")
    if scope["type"] != "http":
        return False
    if path == "/":
        return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    return path == "/console" or path.startswith("/console/")


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer of the public port to what the admin port serves: that of a path that does not exist."""
    exchange = Exchange(AsgiRequest(scope, receive, send))
    exchange.extra_headers = security_headers(scope["path"])
    await exchange.fail(FlorinError("not_found", nothing_at(scope["path"])))


def _closing(send: Send) -> Send:
    """Adds `connection: close` to responses: the client's next request would find the port closed."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return closing


def create_app(
    settings: Settings | None = None,
    process_values: ProcessValues | None = None,
    entrance: socket.socket | None = None,
) -> Florin:
    """`process_values`, and the `entrance` to the insertion process: if this is one of several workers.
    Raises SettingsError when a setting is wrong."""
    return Florin(settings or load_settings(), process_values, entrance)
