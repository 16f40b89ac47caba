"""`florin serve`: reads the settings, binds the port, and starts the worker or workers.

A single worker runs in this process (`runner`); several run in child processes (`workers`).
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
_CHECK_SECONDS = 0.5
_LONGEST_PAUSE = 4.0


def serve() -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code; errors go to stderr."""
    stop = Stop()
    os.umask(state_directory.UMASK)  # inherited by all workers and the embedded Valkey
    log_to_stderr()
    try:
        with ExitStack() as stack:
            settings = load_settings()
            log_to_stderr(settings.log_format, settings.log_level)
            for warning in unknown(os.environ):
                log.warning("%s", warning)
            TransportSecurity(settings).warn()  # report problems before anything starts
            make_state_dir(settings)
            listener = stack.enter_context(bind(settings.host, settings.port))
            valkey = _ValkeyKeeper(settings, stack)
            raise_file_limit()
            return _run(settings.model_copy(update={"redis_url": valkey.url}), listener, stop, valkey)
    except SettingsError as error:
        return _report(error, BAD_SETTINGS)
    except ServerStartError as error:
        return _report(error, FAILED)
    except StopRequested:
        return 0


def _run(settings: Settings, listener: socket.socket, stop: Stop, valkey: _ValkeyKeeper) -> int:
    if not settings.bootstrap_key:
        log.warning("FLORIN_OPERATOR_KEY is not set; the admin API only accepts existing operator keys")
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
        return supervise(
            settings, listener, stop, announce, maintain=valkey.restart_if_dead, detach=valkey.detach
        )
    from gateway.app import create_app  # noqa: PLC0415  # `supervise` imports it at a better moment

    valkey.watch_from_thread()
    app = create_app(settings)
    return run_app(app, listener, stop, announce, tls=app.security.server)


def make_state_dir(settings: Settings) -> None:
    """Create the state directory, or make it private: it contains usage records and access to Redis."""
    try:
        state_directory.make_private(settings.state_dir)
    except OSError as error:
        raise SettingsError(
            f"FLORIN_STATE_DIR: cannot create {settings.state_dir}: {error.strerror}."
        ) from error


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to the address, not yet listening. Raises ServerStartError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ServerStartError(
            f"FLORIN_HOST: {host!r} is not an address of this machine ({error})."
        ) from error
    listener = socket.socket(family, kind, proto)
    try:
        if port:  # for 0, the kernel must not choose a port that another socket is still bound to
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServerStartError(_explain(error, host, port)) from error
    listener.setblocking(False)
    return listener


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use. Stop the process that uses it, or set FLORIN_PORT."
    if error.errno == errno.EACCES:
        return f"Port {port} of {host} needs privileges. Set FLORIN_PORT to 1024 or higher."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"FLORIN_HOST: {host} is not an address of this machine."
    return f"Cannot listen on port {port} of {host}: {error.strerror}."


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def raise_file_limit() -> None:
    """Each stream uses two sockets, so the usual limit of 1,024 files would allow only about 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _ValkeyKeeper:
    """Runs the embedded Valkey as long as `stack`, and restarts it when it dies; does nothing if the settings
    name a Redis. The server dies with the thread that started it, so restarts must come from a thread that
    lasts: `watch_from_thread`, or the main thread of a parent of workers, which must not have threads. Raises
    ServerStartError."""

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.url = settings.redis_url
        self._stack = stack
        self._server: EmbeddedValkey | None = None
        self._next_check = 0.0
        self._pause = _CHECK_SECONDS
        if not self.url:
            try:
                self._server = stack.enter_context(EmbeddedValkey(settings.state_dir))
            except EmbeddedError as error:
                raise ServerStartError(str(error)) from error
            self.url = self._server.url

    def restart_if_dead(self) -> None:
        """Restart the server if it died; what it acknowledged is on disk. Backs off if it keeps dying, as it
        does on a full disk. Blocks."""
        now = time.monotonic()
        if self._server is None or now < self._next_check:
            return
        if self._server.alive:
            self._pause = max(self._pause / 2, _CHECK_SECONDS)
        else:
            self._pause = min(self._pause * 4, _LONGEST_PAUSE)
            log.error("Embedded Valkey exited; restarting")
            try:
                self._server.start()
            except EmbeddedError as error:
                log.error("%s", error)  # the message says it all
        self._next_check = time.monotonic() + self._pause

    def watch_from_thread(self) -> None:
        """Call `restart_if_dead` from a thread from now on."""
        if self._server is None:
            return
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_CHECK_SECONDS):
                self.restart_if_dead()

        keeper = threading.Thread(target=watch, daemon=True, name="valkey-keeper")
        keeper.start()
        self._stack.callback(keeper.join)
        self._stack.callback(done.set)

    def detach(self) -> None:
        """Call it in a forked child: the lock belongs to the parent and the server."""
        if self._server is not None:
            self._server.let_go()


def _report(error: Exception, code: int) -> int:
    """Report why nothing is served: as a sentence, or as the last object of a JSON log."""
    if is_json():
        log.critical("%s", error)
        return code
    sys.stderr.write(f"florin: {error}\n")
    return code
