"""Serves the app in one process: uvicorn, configured for streams, with a graceful shutdown.

The shutdown after SIGTERM:

    lame duck     /readyz returns 503 while requests are served as usual, until load balancers have noticed;
                  responses ask clients to close their connections
    draining      the listener and idle connections close; running requests have the grace period
    closing       the app shuts down: it flushes metering and returns leases

SIGINT skips the first phase, and so does SIGTERM if /readyz was not queried lately. A further signal ends the
current phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, cast
from typing import Protocol as Interface

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from adapters.errors import AdaptersError
from gateway.config import SECRET, Settings, SettingsError
from gateway.observability.logs import log_to_stderr
from gateway.runtime.settings_reload import Reload, SecretWatch, reread
from gateway.serving.acceptor import Acceptor, Peers
from gateway.serving.terminal import has_terminal
from gateway.transport.client_connection import ClientConnection
from gateway.transport.connection_limits import Connections

log = logging.getLogger(__name__)

FAILED = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


_SETTLE_SECONDS = 0.05


class ServerStartError(Exception):
    """The gateway cannot start; the message says why and how to fix it."""


class StopRequested(BaseException):
    """SIGTERM or SIGINT before the server handles them. Like KeyboardInterrupt, do not catch it."""


class Stop:
    """Handles the signals of this process: SIGTERM and SIGINT stop it; SIGHUP reloads its settings, or stops
    it if it has a controlling terminal, which was then closed.

    A request to stop raises StopRequested until `hold` is called. After that, it is only counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        """The first signal that asked to stop."""
        self.reloads = 0
        """Number of requests to reload the settings."""
        self.on_signal: Callable[[], None] = lambda: None
        """Called after each signal, from the signal handler."""
        self._held = False
        self._terminal = has_terminal()
        for number in SIGNALS:
            if (
                number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup ignores it
                signal.signal(number, self._handle)

    def hold(self) -> None:
        self._held = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP and not self._terminal:
            self.reloads += 1
        else:
            self.count += 1
            self.first = self.first or number
            if not self._held:
                raise StopRequested
        self.on_signal()


HEADERS: Final = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")]
"""Headers of all responses. They are rendered once a second, with the date."""
TLS_HEADERS: Final = [*HEADERS, ("strict-transport-security", "max-age=31536000")]
"""Where Florin terminates TLS itself; behind a proxy, the proxy decides."""


class Side(Interface):
    """What a port serves: an ASGI application that is a `client_connection.Application`, too."""

    connections: Connections

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class App(Side, Interface):
    """The side of the main port, which reacts to shutdown and to new settings."""

    @property
    def admin(self) -> Side | None:
        """The side of the admin port, if there is one."""

    def stop(self) -> None:
        """Become unready, and ask clients to close their connections."""

    @property
    def balanced(self) -> bool:
        """Whether a load balancer checks its readiness."""

    @property
    def settings(self) -> Settings: ...

    def apply(self, reload: Reload) -> None:
        """Apply reloaded settings. Thread-safe."""


def run_app(
    app: App,
    listeners: Sequence[socket.socket],
    stop: Stop,
    ready: Callable[[], None],
    *,
    tls: ssl.SSLContext | None = None,
    peers: Peers | None = None,
) -> int:
    """Serve `app` until a signal. `listeners`: the main port's, and the admin port's if there is one. Calls
    `ready` once requests are accepted. `peers`: if other workers share the listeners. Returns the exit code;
    a failure to start is logged."""
    log_to_stderr(app.settings.log_format, app.settings.log_level)
    config = server_config(app, tls)
    config.lifespan_class = _Lifespan
    stop.hold()
    server = _Server(config, app, stop, ready, peers)
    try:
        server.run(sockets=list(listeners))
    except SystemExit as error:  # uvicorn exits like this if the app did not start, and has logged why
        if server.started:
            log.critical("The event loop was ended by SystemExit", exc_info=error)
        return FAILED
    log.info("Stopped")
    return 0


def server_config(side: Side, tls: ssl.SSLContext | None = None) -> uvicorn.Config:
    config = uvicorn.Config(
        side,
        http=ClientConnection,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=HEADERS if tls is None else TLS_HEADERS,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    config.load()
    return config


class _Server(uvicorn.Server):
    """Mutable: the phase of the shutdown. `Stop` handles signals instead of uvicorn."""

    def __init__(
        self, config: uvicorn.Config, app: App, stop: Stop, ready: Callable[[], None], peers: Peers | None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._peers = peers
        self._stop = stop
        self._ready = ready
        self._leaves_at: float | None = None
        """When the listener closes; None: no shutdown was requested."""
        self._heard = 0
        self._reloads = 0
        self._secrets = SecretWatch()
        self._closing = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop, self._wake = asyncio.get_running_loop(), asyncio.Event()

        def on_signal() -> None:
            if not loop.is_closed():  # as it is when the app did not start
                loop.call_soon_threadsafe(self._on_signal)

        self._stop.on_signal = on_signal
        await super().startup([])
        main: tuple[uvicorn.Config, Side, Peers | None] = (self.config, self._app, self._peers)
        admin = self._app.admin
        sides = [main] if admin is None else [main, (server_config(admin), admin, None)]
        for listener, (config, side, peers) in zip(sockets or [], sides, strict=True):
            connected = partial(ClientConnection, config, self.server_state, self.lifespan.state)
            acceptor = Acceptor(listener, connected, side.connections, tls=self.config.ssl, peers=peers)
            self.servers.append(cast("asyncio.Server", acceptor))  # uvicorn only calls close and wait_closed
        self.should_exit = self.should_exit or self._stop.count > 0
        if self.started and not self.should_exit:
            tune_garbage_collection()
            self._ready()

    async def main_loop(self) -> None:
        """Wake up on signals, where the original polls ten times a second."""
        self._on_signal()
        while not await self.on_tick(0) and not self._over():
            left = 1.0 if self._leaves_at is None else self._leaves_at - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(1.0, left))):
                    await self._wake.wait()
            self._wake.clear()
            if self._stop.reloads > self._reloads:
                self._reloads = self._stop.reloads
                self._app.apply(await asyncio.to_thread(reread, self._app.settings))
                self._secrets.follow()
            elif self._app.settings.workers == 1 and self._secrets.changed():  # else, the parent looks
                self._app.apply(await asyncio.to_thread(reread, self._app.settings, only=SECRET))

    def _over(self) -> bool:
        return self._leaves_at is not None and time.monotonic() >= self._leaves_at

    def _on_signal(self) -> None:
        """Handle the signals since the last call."""
        while self._heard < self._stop.count:
            self._heard += 1
            if self._leaves_at is None:
                log.info("Stopping on %s", signal.Signals(self._stop.first).name)
                self._app.stop()
                waits = self._stop.first == signal.SIGTERM and self._app.balanced
                self._leaves_at = time.monotonic() + (self._app.settings.lame_duck if waits else 0.0)
            elif not self._closing:
                self._leaves_at = time.monotonic()
            else:
                self._cancel_requests()
        self._wake.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing = True
        self.config.timeout_graceful_shutdown = math.ceil(self._app.settings.shutdown_grace)
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        # Read what clients have already sent before their connections count as idle.
        await asyncio.sleep(_SETTLE_SECONDS)
        await super().shutdown(sockets)

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel("a second signal asked to stop")


def tune_garbage_collection() -> None:
    """Exclude the objects that exist now from garbage collection: walking those of many adapters would pause
    all streams for 100 ms. Collection was off until now (see `gateway.cli`): imports create little garbage.

    Requests hardly create cyclic garbage. What there is, also of old objects, goes after at most two million
    allocations."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


class _Lifespan(LifespanOn):
    async def send(self, message: Any) -> None:
        """Starlette reports a failed start with a traceback. For expected errors (Redis is down, a file is
        not writable), report just their message."""
        if message["type"] == "lifespan.startup.failed":
            error = sys.exception()
            if isinstance(error, AdaptersError | SettingsError | ServerStartError | OSError):
                message = {**message, "message": str(error)}
        await super().send(message)
