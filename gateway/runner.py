"""One process that serves the app: uvicorn, set for streams, with an end that keeps its promises.

The first SIGTERM or SIGINT stops accepting and lets running requests finish within the grace period; a second
cancels them. The app's own shutdown (metering flushed, leases given back) runs either way.
"""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from adapters.errors import AdaptersError
from gateway.config import Settings, SettingsError
from gateway.logs import log_to_stderr
from gateway.peer import Protocol

FAILED = 1

_KEEP_ALIVE_SECONDS = 75
"""Longer than a load balancer's usual minute, so that it never writes to a socket that is being closed."""


class StartError(Exception):
    """The gateway cannot start; the message says why and what to do."""


class StopRequested(BaseException):
    """SIGTERM or SIGINT, heard while nothing yet listens for it; like KeyboardInterrupt, not to be caught."""


class Stop:
    """SIGTERM, SIGINT and SIGHUP (a closed terminal) of this process, from its first line to its last.

    They raise StopRequested until `hold`; from then on they are only counted, for whoever looks.
    """

    def __init__(self) -> None:
        self.count = 0
        self._held = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
                signal.signal(number, self._heard)

    def hold(self) -> None:
        self._held = True

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1
        if not self._held:
            raise StopRequested


def run_app(
    app: Callable[..., Any],
    settings: Settings,
    listener: socket.socket,
    stop: Stop,
    ready: Callable[[], None],
    *,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve `app` on `listener` until a signal. `ready` is called once, when requests are accepted.
    Returns the exit code; a failure to start has been logged as a sentence."""
    log_to_stderr(settings.log_format, settings.log_level)
    config = uvicorn.Config(
        app,
        http=Protocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=2048,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace),
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    config.load()
    config.lifespan_class = _Lifespan
    stop.hold()
    server = _Server(config, stop, ready)
    try:
        server.run(sockets=[listener])
    except SystemExit:  # uvicorn's way to say that the app did not start; it has logged why
        return FAILED
    return 0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stop: Stop, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.should_exit = self.should_exit or self._stop.count > 0
        if self.started and not self.should_exit:
            _spare_the_collector()
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """SIGHUP is no signal of uvicorn's own."""
        return await super().on_tick(counter) or self._stop.count > 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The original raises the signal again at the end, and skips the app's shutdown at a second one."""
        del sig, frame
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_requests)
        self.should_exit = True

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel("a second signal asked to stop")


def _spare_the_collector() -> None:
    """What is here now stays: the collector need not walk it again with every few hundred requests, which
    shows as pauses of streams."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


class _Lifespan(LifespanOn):
    async def send(self, message: Any) -> None:
        """Starlette sends a traceback as the reason for a failed start; what was to be expected (Redis away,
        a file that may not be written) is said in its own words instead."""
        if message["type"] == "lifespan.startup.failed":
            error = sys.exception()
            if isinstance(error, AdaptersError | SettingsError | StartError | OSError):
                message = {**message, "message": str(error)}
        await super().send(message)
