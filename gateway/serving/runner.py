"""One process that serves the app: uvicorn, set for streams, with an end that keeps its promises.

How it ends, after SIGTERM:

    not ready     /readyz answers 503 while requests are served as ever, until balancers have noticed (the
                  lame duck); each answer asks its client to leave the connection
    closed        the listener closes, idle connections close, running requests have the grace period
    down          the app's own shutdown: metering flushed, leases given back

SIGINT, and SIGTERM where nobody has asked for readiness lately, skip the first step. A further signal ends
the step that lasts: the lame duck, then the requests.
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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast
from typing import Protocol as Interface

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from adapters.errors import AdaptersError
from gateway.config import Settings, SettingsError
from gateway.observability.logs import log_to_stderr
from gateway.runtime.settings_reload import Reload, reread
from gateway.serving.acceptor import Acceptor
from gateway.serving.http_protocol import HttpProtocol
from gateway.serving.terminal import has_terminal

log = logging.getLogger(__name__)

FAILED = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_KEEP_ALIVE_SECONDS = 75
"""Longer than a load balancer's usual minute, so that it never writes to a socket that is being closed."""

_SETTLE_SECONDS = 0.05


class ServerStartError(Exception):
    """The gateway cannot start; the message says why and what to do."""


class StopRequested(BaseException):
    """SIGTERM or SIGINT, heard while nothing yet listens for it; like KeyboardInterrupt, not to be caught."""


class Stop:
    """What signals ask of this process, from its first line to its last: SIGTERM and SIGINT to stop, SIGHUP
    to read its settings again; with a controlling terminal, SIGHUP says that it was closed, and to stop.

    To be asked to stop raises StopRequested until `hold`; from then on it is only counted, for whoever looks.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        """The signal that asked first."""
        self.reloads = 0
        """How often it was asked to read its settings."""
        self.told: Callable[[], None] = lambda: None
        """Called after each signal, from its handler."""
        self._held = False
        self._terminal = has_terminal()
        for number in SIGNALS:
            if (
                number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            ):  # nohup ignores it
                signal.signal(number, self._heard)

    def hold(self) -> None:
        self._held = True

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP and not self._terminal:
            self.reloads += 1
        else:
            self.count += 1
            self.first = self.first or number
            if not self._held:
                raise StopRequested
        self.told()


class App(Interface):
    """An ASGI application that knows of its process's end and of new settings."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def stop(self) -> None:
        """From now on it is not ready, and asks clients to leave their connections."""

    @property
    def balanced(self) -> bool:
        """Whether anybody goes by its readiness."""

    @property
    def settings(self) -> Settings: ...

    def apply(self, reload: Reload) -> None:
        """What came of reading the settings again. From any thread."""


def run_app(
    app: App,
    listener: socket.socket,
    stop: Stop,
    ready: Callable[[], None],
    *,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve `app` on `listener` until a signal. `ready` is called once, when requests are accepted.
    Returns the exit code; a failure to start has been logged as a sentence."""
    log_to_stderr(app.settings.log_format, app.settings.log_level)
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    config.load()
    config.lifespan_class = _Lifespan
    stop.hold()
    server = _Server(config, app, stop, ready)
    try:
        server.run(sockets=[listener])
    except SystemExit:  # uvicorn's way to say that the app did not start; it has logged why
        return FAILED
    return 0


class _Server(uvicorn.Server):
    """Mutable: how far the end has come. Signals are `Stop`'s business, not uvicorn's."""

    def __init__(self, config: uvicorn.Config, app: App, stop: Stop, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app = app
        self._stop = stop
        self._ready = ready
        self._leaves_at: float | None = None
        """When the listener closes; None: nobody has asked."""
        self._heard = 0
        self._reloads = 0
        self._closing = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop, self._wake = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            loop.call_soon_threadsafe(self._told)

        self._stop.told = told
        await super().startup([])
        for listener in sockets or []:
            acceptor = Acceptor(listener, self._connected, tls=self.config.ssl)
            self.servers.append(cast("asyncio.Server", acceptor))  # close and wait are all that is asked
        self.should_exit = self.should_exit or self._stop.count > 0
        if self.started and not self.should_exit:
            _spare_the_collector()
            self._ready()

    def _connected(self) -> asyncio.Protocol:
        return HttpProtocol(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        """The original looks ten times a second whether a signal has come; this is woken."""
        self._told()
        while not await self.on_tick(0) and not self._over():
            left = 1.0 if self._leaves_at is None else self._leaves_at - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(1.0, left))):
                    await self._wake.wait()
            self._wake.clear()
            if self._stop.reloads > self._reloads:
                self._reloads = self._stop.reloads
                self._app.apply(await asyncio.to_thread(reread, self._app.settings))

    def _over(self) -> bool:
        return self._leaves_at is not None and time.monotonic() >= self._leaves_at

    def _told(self) -> None:
        """A signal has come, or several."""
        while self._heard < self._stop.count:
            self._heard += 1
            if self._leaves_at is None:
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
        # What a client sent before now is read before its connection is taken for an idle one.
        await asyncio.sleep(_SETTLE_SECONDS)
        await super().shutdown(sockets)

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel("a second signal asked to stop")


def _spare_the_collector() -> None:
    """What is here now stays: the collector need not walk it again with every few hundred requests, which
    shows as pauses of streams. Until here it was off (see `gateway.cli`): imports leave little behind."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    gc.enable()


class _Lifespan(LifespanOn):
    async def send(self, message: Any) -> None:
        """Starlette sends a traceback as the reason for a failed start; what was to be expected (Redis away,
        a file that may not be written) is said in its own words instead."""
        if message["type"] == "lifespan.startup.failed":
            error = sys.exception()
            if isinstance(error, AdaptersError | SettingsError | ServerStartError | OSError):
                message = {**message, "message": str(error)}
        await super().send(message)
