"""`florin serve`: reads the settings, binds the port, and starts the worker or workers.

A single worker runs in this process (`runner`); several run in child processes (`workers`).
"""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager

from adapters.security import state_directory
from adapters.store.embedded import EmbeddedError, EmbeddedValkey
from adapters.store.redis.connection import without_password
from gateway.config import Settings, SettingsError, load_settings
from gateway.config.secret_files import SecretFileError, export_others
from gateway.observability import build_info
from gateway.observability.logs import is_json, log_to_stderr
from gateway.runtime.exposure import of_listeners
from gateway.runtime.transport_security import TransportSecurity
from gateway.runtime.unknown_variables import unknown
from gateway.serving.runner import FAILED, ServerStartError, Stop, StopRequested, run_app
from gateway.serving.unix_socket import bound
from gateway.serving.workers import supervise

log = logging.getLogger(__name__)

BAD_SETTINGS = 2

_FILES = 1 << 20
_CHECK_SECONDS = 0.5
_LONGEST_PAUSE = 4.0


def quiet_children(environ: MutableMapping[str, str]) -> None:
    """Suppress a warning that would not be a log line: when a worker with a ledger process is killed, Python
    warns of the semaphores that it cleans up."""
    filters = (environ.get("PYTHONWARNINGS"), "ignore:resource_tracker")
    environ["PYTHONWARNINGS"] = ",".join(filter(None, filters))


def serve() -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code; errors go to stderr."""
    stop = Stop()
    os.umask(state_directory.UMASK)  # inherited by all workers and the embedded Valkey
    quiet_children(os.environ)
    log_to_stderr()
    faulthandler.enable(2)  # also for the workers: a crash in native code says where, and nothing else does
    try:
        with ExitStack() as stack:
            export_others(os.environ)
            settings = load_settings()
            log_to_stderr(settings.log_format, settings.log_level)
            for warning in unknown(os.environ):
                log.warning("%s", warning)
            TransportSecurity(settings).warn()  # report problems before anything starts
            make_state_dir(settings)
            listeners = [
                stack.enter_context(
                    bound(settings.uds) if settings.uds else bind(settings.host, settings.port)
                )
            ]
            if settings.admin_port is not None:
                listeners.append(
                    stack.enter_context(bind(settings.admin_host, settings.admin_port, "FLORIN_ADMIN"))
                )
            valkey = _ValkeyKeeper(settings, stack)
            raise_file_limit()
            import gateway.app  # noqa: F401, PLC0415  # while Valkey loads its data

            valkey.wait_until_ready()
            return _run(settings.model_copy(update={"redis_url": valkey.url}), listeners, stop, valkey)
    except (SettingsError, SecretFileError) as error:
        return _report(error, BAD_SETTINGS)
    except ServerStartError as error:
        return _report(error, FAILED)
    except StopRequested:
        log.info("Stopped on %s while starting", signal.Signals(stop.first).name)
        return 0


def _run(settings: Settings, listeners: Sequence[socket.socket], stop: Stop, valkey: _ValkeyKeeper) -> int:
    log.info(
        "Florin %s starts, with ledger %s and Redis %s",
        *(build_info.build(), without_password(settings.ledger), without_password(settings.redis_url)),
    )
    if not settings.bootstrap_key:
        log.warning("FLORIN_OPERATOR_KEY is not set; the admin API only accepts existing operator keys")
    for exposed in of_listeners(settings, [address_of(listener) for listener in listeners]):
        if exposed.status != "ok":
            log.warning("%s %s", exposed.message, exposed.remedy)
        elif settings.behind_proxy:
            log.info("%s", exposed.message)
    urls = [url_of(listener, tls=settings.tls_cert is not None) for listener in listeners]
    lines = [f"Florin listens on {urls[0]}\n", *(f"Admin and finance API on {url}\n" for url in urls[1:])]

    def announce() -> None:
        sys.stdout.writelines(lines)
        sys.stdout.flush()

    if settings.workers > 1:
        return supervise(
            settings, listeners, stop, announce, maintain=valkey.restart_if_dead, detach=valkey.detach
        )
    from gateway.app import create_app  # noqa: PLC0415  # as `serve` does

    valkey.watch_from_thread()
    app = create_app(settings)
    return run_app(app, listeners, stop, announce, tls=app.security.server)


def make_state_dir(settings: Settings) -> None:
    """Create the state directory, or make it private: it contains usage records and access to Redis."""
    try:
        state_directory.make_private(settings.state_dir)
    except OSError as error:
        raise SettingsError(
            f"FLORIN_STATE_DIR: cannot create {settings.state_dir}: {error.strerror}."
        ) from error


def bind(host: str, port: int, settings: str = "FLORIN") -> socket.socket:
    """A TCP socket bound to the address, not yet listening. `settings`: what the names of its settings begin
    with. Raises ServerStartError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ServerStartError(
            f"{settings}_HOST: {host!r} is not an address of this machine ({error})."
        ) from error
    listener = socket.socket(family, kind, proto)
    try:
        if port:  # for 0, the kernel must not choose a port that another socket is still bound to
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServerStartError(_explain(error, host, port, settings)) from error
    listener.setblocking(False)
    return listener


def _explain(error: OSError, host: str, port: int, settings: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use. Stop the process that uses it, or set {settings}_PORT."
    if error.errno == errno.EACCES:
        return f"Port {port} of {host} needs privileges. Set {settings}_PORT to 1024 or higher."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings}_HOST: {host} is not an address of this machine."
    return f"Cannot listen on port {port} of {host}: {error.strerror}."


def address_of(listener: socket.socket) -> str:
    """The bound address; empty for a Unix socket."""
    return "" if listener.family == socket.AF_UNIX else str(listener.getsockname()[0])


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def raise_file_limit() -> None:
    """Each stream uses two sockets, so the usual limit of 1,024 files would allow only about 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except EmbeddedError as error:
        raise ServerStartError(str(error)) from error


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
            self._server = EmbeddedValkey(settings.state_dir)
            stack.callback(self._server.stop)
            with _explained():
                self._server.launch()
            self.url = self._server.url

    def wait_until_ready(self) -> None:
        if self._server is not None:
            with _explained():
                self._server.wait_until_ready()

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
            self._server.release_in_child()


def _report(error: Exception, code: int) -> int:
    """Report why nothing is served: as a sentence, or as the last object of a JSON log."""
    if is_json():
        log.critical("%s", error)
        return code
    sys.stderr.write(f"florin: {error}\n")
    return code
