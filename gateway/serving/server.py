"""`florin serve`: from settings to processes that accept requests.

One worker runs in this process (`runner`); several are processes of their own (`workers`).
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sys
import threading
import time
from contextlib import ExitStack

from adapters.security import state_directory
from adapters.store.embedded import EmbeddedError, EmbeddedValkey
from gateway.config import Settings, SettingsError, load_settings
from gateway.observability.logs import is_json, log_to_stderr
from gateway.runtime.exposure import of_listener
from gateway.runtime.transport_security import TransportSecurity
from gateway.runtime.unknown_variables import unknown
from gateway.serving.runner import FAILED, ServerStartError, Stop, StopRequested, run_app
from gateway.serving.workers import supervise

log = logging.getLogger(__name__)

BAD_SETTINGS = 2

_FILES = 1 << 20
_LOOK_SECONDS = 0.5
_LONGEST_PAUSE = 4.0


def serve() -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code; what went wrong is said on stderr."""
    stop = Stop()
    os.umask(state_directory.UMASK)  # of all workers and of the embedded Valkey, too
    log_to_stderr()
    try:
        with ExitStack() as stack:
            settings = load_settings()
            log_to_stderr(settings.log_format, settings.log_level)
            for slip in unknown(os.environ):
                log.warning("%s", slip)
            TransportSecurity(settings).warn()  # what is wrong with it is said before anything is started
            make_state_dir(settings)
            listener = stack.enter_context(bind(settings.host, settings.port))
            valkey = _Valkey(settings, stack)
            raise_file_limit()
            return _run(settings.model_copy(update={"redis_url": valkey.url}), listener, stop, valkey)
    except SettingsError as error:
        return _say(error, BAD_SETTINGS)
    except ServerStartError as error:
        return _say(error, FAILED)
    except StopRequested:
        return 0


def _run(settings: Settings, listener: socket.socket, stop: Stop, valkey: _Valkey) -> int:
    if not settings.bootstrap_key:
        log.warning(
            "FLORIN_OPERATOR_KEY is not set: the admin API takes only the operators' keys that it knows."
        )
    exposed = of_listener(settings, str(listener.getsockname()[0]))
    if exposed.status != "ok":
        log.warning("%s %s", exposed.message, exposed.remedy)
    elif settings.behind_proxy:
        log.info("%s", exposed.message)
    line = f"Florin listens on {url_of(listener, tls=settings.tls_cert is not None)}\n"

    def announce() -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    if settings.workers > 1:
        return supervise(settings, listener, stop, announce, tend=valkey.tend, let_go=valkey.let_go)
    from gateway.app import create_app  # noqa: PLC0415  # a parent of workers loads it when it is ready to

    valkey.keep()
    app = create_app(settings)
    return run_app(app, listener, stop, announce, tls=app.security.server)


def make_state_dir(settings: Settings) -> None:
    """For the owner only, also when it exists: it holds usage records and the way into Redis."""
    try:
        state_directory.make_private(settings.state_dir)
    except OSError as error:
        raise SettingsError(
            f"FLORIN_STATE_DIR: {settings.state_dir} cannot be made: {error.strerror}."
        ) from error


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to the address, not yet listening. Raises ServerStartError in words."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ServerStartError(f"FLORIN_HOST: {host!r} is no address of this machine ({error}).") from error
    listener = socket.socket(family, kind, proto)
    try:
        if port:  # for 0 the kernel must not give a port that another socket is still bound to
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServerStartError(_why_not(error, host, port)) from error
    listener.setblocking(False)
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is taken: stop what listens there, or set FLORIN_PORT to another."
    if error.errno == errno.EACCES:
        return f"Port {port} of {host} needs privileges: set FLORIN_PORT to one from 1024 up."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"FLORIN_HOST: {host} is no address of this machine."
    return f"Cannot listen on port {port} of {host}: {error.strerror}."


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def raise_file_limit() -> None:
    """Every stream has two sockets; the usual limit of 1,024 files would end at 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Valkey:
    """The embedded server that lives as long as `stack`; nothing, where the settings name a Redis. It ends
    with the thread that started it, and is started anew by whoever looks: a thread that stays, or a parent of
    workers itself, which must have no threads. Raises ServerStartError."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.url = settings.redis_url
        self._stack = stack
        self._server: EmbeddedValkey | None = None
        self._next_look = 0.0
        self._pause = _LOOK_SECONDS
        if not self.url:
            try:
                self._server = stack.enter_context(EmbeddedValkey(settings.state_dir))
            except EmbeddedError as error:
                raise ServerStartError(str(error)) from error
            self.url = self._server.url

    def tend(self) -> None:
        """Start it anew if it died; what it acknowledged is on disk. Blocking. After longer pauses each time
        that it ends soon, as it does on a full disk."""
        now = time.monotonic()
        if self._server is None or now < self._next_look:
            return
        if self._server.alive:
            self._pause = max(self._pause / 2, _LOOK_SECONDS)
        else:
            self._pause = min(self._pause * 4, _LONGEST_PAUSE)
            log.error("the embedded Valkey ended by itself: starting it anew")
            try:
                self._server.start()
            except EmbeddedError as error:
                log.error("%s", error)  # the message says it all
        self._next_look = time.monotonic() + self._pause

    def keep(self) -> None:
        """`tend` it from a thread."""
        if self._server is None:
            return
        done = threading.Event()

        def look() -> None:
            while not done.wait(_LOOK_SECONDS):
                self.tend()

        keeper = threading.Thread(target=look, daemon=True, name="valkey-keeper")
        keeper.start()
        self._stack.callback(keeper.join)
        self._stack.callback(done.set)

    def let_go(self) -> None:
        """In a forked child: the lock is the parent's and the server's."""
        if self._server is not None:
            self._server.let_go()


def _say(error: Exception, code: int) -> int:
    """Why nothing is served: a sentence for a person, or the last object of a log."""
    if is_json():
        log.critical("%s", error)
        return code
    sys.stderr.write(f"florin: {error}\n")
    return code
