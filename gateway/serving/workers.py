"""Several workers on one port: processes that share a socket, and the parent that watches over them.

The parent loads the app, which takes longer than all the rest of a start, and forks: it has one thread, and
has opened nothing but the listener, the embedded Valkey's lock and these:

A channel for each worker. The worker says `!` there once it serves; the parent sends new settings, a line of
JSON each. Only the parent has its other end: when that closes, however the parent died, the worker stops.
Workers have sessions of their own, so that Ctrl-C reaches them only through the parent.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from gateway.config import Settings, SettingsError
from gateway.observability.shared_values import SharedValues
from gateway.runtime.settings_reload import Reload, received, reread
from gateway.runtime.transport_security import TransportSecurity
from gateway.runtime.worker_watch import WorkerWatch
from gateway.serving.fallback import FallbackApp
from gateway.serving.runner import FAILED, SIGNALS, App, Stop, StopRequested, run_app

log = logging.getLogger(__name__)

WORKER = "florin-worker"
"""What a worker is called, in `ps -o comm` and `top`."""
_LOOK_SECONDS = 0.05
_KILL_AFTER_GRACE = 10.0
"""Seconds that a worker has, beyond the grace of its requests, to flush and leave."""
_SHORT_LIFE = 10.0
_LONGEST_PAUSE = 10.0
_PR_SET_NAME = 15
_FORK = multiprocessing.get_context("fork")
_Process = multiprocessing.context.ForkProcess


class _Worker:
    """One seat of the crew, and the process that has it now."""

    def __init__(self, start: Callable[[socket.socket, int], _Process], watch: WorkerWatch) -> None:
        self._start = start
        self._watch = watch
        self._seat = -1
        self._short_lives = 0
        self._due = 0.0
        self.channel: socket.socket | None = None
        self.started = 0.0
        self.ready = False
        self.process: _Process | None = None

    def start(self) -> None:
        self.channel, theirs = socket.socketpair()
        self._seat = self._watch.take()
        with theirs:
            self.process = self._start(theirs, self._seat)
        self.channel.setblocking(False)
        self.started, self.ready = time.monotonic(), False

    def look(self) -> int | None:
        """Notice readiness and death. Returns the exit code of a process that has just been found dead."""
        if self.process is None or self.channel is None:
            return None
        if not self.ready:
            with suppress(OSError):
                self.ready = self.channel.recv(1) != b""
        code: int | None = self.process.exitcode
        if code is not None:
            self._bury()
        return code

    def revive(self) -> None:
        """Start again when the pause is over: short after a long life, longer each time after short ones."""
        if self.process is None and time.monotonic() >= self._due:
            self.start()

    def send(self, message: dict[str, Any]) -> None:
        if self.channel is not None:
            with suppress(OSError):  # it has just died, or has not read for very long
                self.channel.send(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _bury(self) -> None:
        assert self.process is not None
        self.close()
        self.process.close()
        self._watch.leave(self._seat)
        short = time.monotonic() - self.started < _SHORT_LIFE
        self._short_lives = self._short_lives + 1 if short else 0
        self._due = time.monotonic() + min(0.25 * 2**self._short_lives, _LONGEST_PAUSE)
        self.process = None


def supervise(
    settings: Settings,
    listener: socket.socket,
    stop: Stop,
    announce: Callable[[], None],
    *,
    tend: Callable[[], None],
    let_go: Callable[[], None],
) -> int:
    """Run `settings.workers` workers until SIGTERM or SIGINT. A worker that dies is replaced, but at the
    beginning all must start: otherwise something is wrong that a replacement would not fix. `tend` is called
    now and then; `let_go` in each worker, of what only the parent may hold."""
    import gateway.app  # noqa: F401, PLC0415  # once for all workers

    stop.hold()
    gc.freeze()  # and in memory that they share
    gc.enable()
    with closing(WorkerWatch(settings.workers)) as watch:
        crew = WorkerGroup(settings, listener, stop, let_go, watch)
        try:
            return crew.watch(announce, tend)
        finally:
            crew.stand_in.stop()
            listener.close()  # the workers' own copies stay open until they have seen their balancers off
            crew.stop()


class WorkerGroup:
    """Mutable: the settings in force, the workers, how many signals were heard."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        stop: Stop,
        let_go: Callable[[], None],
        watch: WorkerWatch,
    ) -> None:
        self._settings = settings
        self._refused: Reload | None = None
        self._listener = listener
        self._stop = stop
        self._let_go = let_go
        self._reloads = 0
        self._watch = watch
        self._workers = [_Worker(self._fork, watch) for _ in range(settings.workers)]
        self.stand_in = FallbackApp(listener, lambda: TransportSecurity(self._settings).server)

    def watch(self, announce: Callable[[], None], tend: Callable[[], None]) -> int:
        announced = False
        for worker in self._workers:
            worker.start()
        while not self._stop.count:
            for worker in self._workers:
                pid = worker.process.pid if worker.process else 0
                code = worker.look()
                if code is not None:
                    if not announced:
                        return FAILED
                    self._watch.restarted()
                    log.error("worker %d ended by itself (exit code %d): starting another", pid, code)
                if announced:
                    worker.revive()
            if not announced and all(w.ready for w in self._workers):
                announce()
                announced = True
            if announced:
                now = time.monotonic()
                self._watch.look(now)
                self.stand_in.look(now, serving=any(w.process and w.ready for w in self._workers))
            tend()
            if self._stop.reloads > self._reloads:
                self._reloads = self._stop.reloads
                self._reload()
            time.sleep(_LOOK_SECONDS)
        return 0

    def _reload(self) -> None:
        reload = reread(self._settings)
        self._settings = reload.settings
        self._refused = reload if reload.refused else None
        for worker in self._workers:
            worker.send(reload.message)

    def stop(self) -> None:
        """What the parent was sent, to each, without a lame duck unless that was SIGTERM; once more for each
        further signal; SIGKILL when patience is over."""
        number = signal.SIGTERM if self._stop.first == signal.SIGTERM else signal.SIGINT
        deadline = time.monotonic() + patience(self._settings)
        heard = 0
        while living := [w.process for w in self._workers if w.process and w.process.exitcode is None]:
            if time.monotonic() > deadline:
                for process in living:
                    log.error("worker %d does not stop: killed", process.pid)
                    process.kill()
            elif heard < max(self._stop.count, 1):
                heard += 1
                for process in living:
                    assert process.pid
                    os.kill(process.pid, number)
            time.sleep(_LOOK_SECONDS)
        for worker in self._workers:
            worker.look()

    def _fork(self, theirs: socket.socket, seat: int) -> _Process:
        self.stand_in.stop()  # a thread; it begins again if it is still needed
        process = _FORK.Process(target=self._work, args=(theirs, seat), name=WORKER)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has handlers of its own
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return process

    def _work(self, channel: socket.socket, seat: int) -> None:
        """In the child."""
        os.setsid()
        _name(WORKER)
        for worker in self._workers:
            worker.close()
        self._let_go()
        refused = {**self._refused.message, "changed": {}} if self._refused else None
        try:
            sys.exit(_serve(self._settings, self._listener, channel, refused, self._watch.values, seat))
        except StopRequested:
            sys.exit(0)


def _serve(
    settings: Settings,
    listener: socket.socket,
    channel: socket.socket,
    refused: dict[str, Any] | None,
    values: SharedValues,
    seat: int,
) -> int:
    """One worker. `seat`: its place among `values`, where the metrics of all of them meet."""
    from gateway.app import create_app  # noqa: PLC0415  # loaded by the parent, and not with this module
    from gateway.observability.process_metrics import ProcessValues as MetricsCrew  # noqa: PLC0415

    stop = Stop()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        app = create_app(settings, MetricsCrew(values, seat))
    except SettingsError as error:  # a certificate that was good when the parent looked
        log.error("%s", error)
        return FAILED
    if refused:
        app.apply(received(settings, refused))
    threading.Thread(target=_listen, args=(channel, app), daemon=True, name="parent").start()
    return run_app(app, listener, stop, lambda: channel.sendall(b"!"), tls=app.security.server)


def _listen(channel: socket.socket, app: App) -> None:
    """What the parent sends, until it is gone."""
    with channel.makefile("rb") as lines, suppress(OSError, RuntimeError):  # or the loop has ended
        for line in lines:
            app.apply(received(app.settings, json.loads(line)))
    os.kill(os.getpid(), signal.SIGINT)  # not SIGTERM: the port is wanted by the next parent
    time.sleep(patience(app.settings))
    os._exit(FAILED)


def patience(settings: Settings) -> float:
    """Seconds from the signal until a worker is killed."""
    return settings.lame_duck + settings.shutdown_grace + _KILL_AFTER_GRACE


def _name(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
