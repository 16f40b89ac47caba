"""Several workers on one port: processes that share a socket, and the parent that watches over them.

Each worker is `python -m gateway.workers`, with its settings in the environment. It holds the reading end of
a pipe whose writing end only the parent has (the lifeline): when it closes, however the parent died, the
worker stops. Workers have sessions of their own, so that Ctrl-C reaches them only through the parent.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from pydantic import SecretStr

from gateway.config import Settings, SettingsError, load_settings
from gateway.crew_watch import CrewWatch
from gateway.logs import log_to_stderr
from gateway.runner import FAILED, Stop, run_app
from gateway.shared_values import SharedValues
from gateway.stand_in import StandIn
from gateway.transport_security import TransportSecurity

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_KILL_AFTER_GRACE = 10.0
"""Seconds that a worker has, beyond the grace of its requests, to flush and leave."""
_SHORT_LIFE = 10.0
_LONGEST_PAUSE = 10.0


class _Worker:
    """One seat of the crew, and the process that has it now."""

    def __init__(self, start: Callable[[int, int], subprocess.Popen[bytes]], watch: CrewWatch) -> None:
        self._start = start
        self._watch = watch
        self._seat = -1
        self._ready_fd = -1
        self._short_lives = 0
        self._due = 0.0
        self.started = 0.0
        self.ready = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._ready_fd, theirs = os.pipe()
        os.set_blocking(self._ready_fd, False)
        self._seat = self._watch.take()
        try:
            self.process = self._start(theirs, self._seat)
        finally:
            os.close(theirs)
        self.started, self.ready = time.monotonic(), False

    def look(self) -> int | None:
        """Notice readiness and death. Returns the exit code of a process that has just been found dead."""
        if self.process is None:
            return None
        if not self.ready:
            with suppress(BlockingIOError):
                self.ready = os.read(self._ready_fd, 1) != b""
        code = self.process.poll()
        if code is not None:
            self._bury()
        return code

    def revive(self) -> None:
        """Start again when the pause is over: short after a long life, longer each time after short ones."""
        if self.process is None and time.monotonic() >= self._due:
            self.start()

    def _bury(self) -> None:
        os.close(self._ready_fd)
        self._watch.leave(self._seat)
        short = time.monotonic() - self.started < _SHORT_LIFE
        self._short_lives = self._short_lives + 1 if short else 0
        self._due = time.monotonic() + min(0.25 * 2**self._short_lives, _LONGEST_PAUSE)
        self.process = None


def supervise(settings: Settings, listener: socket.socket, stop: Stop, announce: Callable[[], None]) -> int:
    """Run `settings.workers` workers until SIGTERM or SIGINT. A worker that dies is replaced, but at the
    beginning all must start: otherwise something is wrong that a replacement would not mend."""
    log_to_stderr(settings.log_format, settings.log_level)
    lifeline, keep = os.pipe()
    stop.hold()
    try:
        with closing(CrewWatch(settings.workers)) as watch:
            environment = {**os.environ, **as_environment(settings)}

            def start(ready_fd: int, seat: int) -> subprocess.Popen[bytes]:
                fds = (listener.fileno(), ready_fd, lifeline, watch.values.file)
                return subprocess.Popen(  # noqa: S603  # this very interpreter, with numbers as arguments
                    [sys.executable, "-P", "-m", "gateway.workers", *map(str, (*fds, seat))],
                    env=environment,
                    pass_fds=fds,
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                )

            crew = [_Worker(start, watch) for _ in range(settings.workers)]
            stand_in = StandIn(listener, lambda: TransportSecurity(settings).server)
            try:
                return _watch(crew, stop, announce, watch, stand_in)
            finally:
                stand_in.stop()
                listener.close()  # new connections are refused from here on, not left waiting
                _stop_all(crew, stop, settings.shutdown_grace + _KILL_AFTER_GRACE)
    finally:
        os.close(lifeline)
        os.close(keep)


def _watch(
    crew: list[_Worker], stop: Stop, announce: Callable[[], None], watch: CrewWatch, stand_in: StandIn
) -> int:
    announced = False
    for worker in crew:
        worker.start()
    while not stop.count:
        for worker in crew:
            pid = worker.process.pid if worker.process else 0
            code = worker.look()
            if code is not None:
                if not announced:
                    return FAILED
                watch.restarted()
                log.error("worker %d ended by itself (exit code %d): starting another", pid, code)
            if announced:
                worker.revive()
        if not announced and all(w.ready for w in crew):
            announce()
            announced = True
        if announced:
            now = time.monotonic()
            watch.look(now)
            stand_in.look(now, serving=any(w.process and w.ready for w in crew))
        time.sleep(_LOOK_SECONDS)
    return 0


def _stop_all(crew: list[_Worker], stop: Stop, patience: float) -> None:
    """SIGTERM to each; once more for each further signal to the parent; SIGKILL when patience is over."""
    deadline = time.monotonic() + patience
    heard = 0
    while living := [w.process for w in crew if w.process and w.process.poll() is None]:
        if time.monotonic() > deadline:
            for process in living:
                log.error("worker %d does not stop: killed", process.pid)
                process.kill()
        elif heard < max(stop.count, 1):
            heard += 1
            for process in living:
                process.terminate()
        time.sleep(_LOOK_SECONDS)
    for worker in crew:
        worker.look()


def as_environment(settings: Settings) -> dict[str, str]:
    """The settings as FLORIN_* variables, so that a worker, also one started later, has these very ones."""
    return {
        f"FLORIN_{name.upper()}": value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in settings
        if value is not None
    }


def main() -> int:
    """One worker: `python -m gateway.workers LISTENER READY LIFELINE METRICS SEAT`. Four descriptors, and
    its part of the metrics."""
    from gateway.app import create_app  # noqa: PLC0415  # the parent needs this module, never the app
    from gateway.metrics_crew import Crew  # noqa: PLC0415

    listener_fd, ready_fd, lifeline, metrics, seat = map(int, sys.argv[1:])
    stop = Stop()
    settings = load_settings()
    patience = settings.shutdown_grace + _KILL_AFTER_GRACE
    threading.Thread(target=_leave_with_parent, args=(lifeline, patience), daemon=True).start()

    def ready() -> None:
        os.write(ready_fd, b"!")
        os.close(ready_fd)

    log_to_stderr(settings.log_format, settings.log_level)
    try:
        app = create_app(settings, Crew(SharedValues(metrics), seat))
    except SettingsError as error:  # a certificate that was good when the parent looked
        log.error("%s", error)
        return FAILED
    listener = socket.socket(fileno=listener_fd)
    return run_app(app, settings, listener, stop, ready, tls=app.security.server)


def _leave_with_parent(lifeline: int, patience: float) -> None:
    os.read(lifeline, 1)  # nobody ever writes: this returns when the parent is gone
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience)
    os._exit(FAILED)


if __name__ == "__main__":
    sys.exit(main())
