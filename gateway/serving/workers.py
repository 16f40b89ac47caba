"""Several workers on one port: processes that share a socket, and the parent that supervises them.

The parent imports the app, which takes most of the start-up time, and then forks. At that point it has a
single thread and has opened only the listener, the embedded Valkey's lock, a channel to each worker, and the
entrance to the process that inserts usage records for all of them.

On its channel, a worker sends `!` once it serves, and the parent sends new settings, one line of JSON each.
Only the parent holds the other end: when it closes, however the parent died, the worker stops. Each worker
has its own session, so that Ctrl-C reaches it only through the parent.
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
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

from gateway.config import SECRET, Settings, SettingsError
from gateway.metering.wal.insertion_process import InsertionProcess
from gateway.runtime.settings_reload import Reload, SecretWatch, received, reread
from gateway.runtime.transport_security import TransportSecurity
from gateway.runtime.worker_watch import WorkerWatch
from gateway.serving.acceptor import Peers
from gateway.serving.fallback import FallbackApp
from gateway.serving.runner import FAILED, SIGNALS, App, Stop, StopRequested, run_app

log = logging.getLogger(__name__)

WORKER = "florin-worker"
INSERTER = "florin-inserter"
"""Names of the processes, for `ps -o comm` and `top`."""
_CHECK_SECONDS = 0.05
_KILL_AFTER_GRACE = 7.0
"""Seconds after its grace periods that a worker has to exit."""
_SHORT_LIFE = 10.0
_LONGEST_PAUSE = 10.0
_PR_SET_NAME = 15
_FORK = multiprocessing.get_context("fork")
_Process = multiprocessing.context.ForkProcess


class _Worker:
    """A worker and its current process, which is replaced when it dies."""

    def __init__(self, start: Callable[[socket.socket, int], _Process], watch: WorkerWatch) -> None:
        self._start = start
        self._watch = watch
        self._slot = -1
        self._short_lives = 0
        self._due = 0.0
        self.channel: socket.socket | None = None
        self.started = 0.0
        self.ready = False
        self.process: _Process | None = None

    def start(self) -> None:
        self.channel, theirs = socket.socketpair()
        self._slot = self._watch.acquire()
        with theirs:
            self.process = self._start(theirs, self._slot)
        self.channel.setblocking(False)
        self.started, self.ready = time.monotonic(), False

    def poll(self) -> int | None:
        """Check for readiness and death. Returns the exit code if the process was just found dead."""
        if self.process is None or self.channel is None:
            return None
        if not self.ready:
            with suppress(OSError):
                self.ready = self.channel.recv(1) != b""
        code: int | None = self.process.exitcode
        if code is not None:
            self._reap()
        return code

    def restart_when_due(self) -> None:
        """Restart a dead worker after a pause, which grows if it keeps dying young."""
        if self.process is None and time.monotonic() >= self._due:
            self.start()

    def send(self, message: dict[str, Any]) -> None:
        if self.channel is not None:
            with suppress(OSError):  # it has just died, or has stopped reading
                self.channel.send(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _reap(self) -> None:
        assert self.process is not None
        self.close()
        self.process.close()
        self._watch.release(self._slot)
        short = time.monotonic() - self.started < _SHORT_LIFE
        self._short_lives = self._short_lives + 1 if short else 0
        self._due = time.monotonic() + min(0.25 * 2**self._short_lives, _LONGEST_PAUSE)
        self.process = None


def supervise(
    settings: Settings,
    listeners: Sequence[socket.socket],
    stop: Stop,
    announce: Callable[[], None],
    *,
    maintain: Callable[[], None],
    detach: Callable[[], None],
) -> int:
    """Run `settings.workers` workers until SIGTERM or SIGINT. Dead workers are replaced, but at first all of
    them must start: a replacement would not fix what prevents that. `maintain` is called periodically;
    `detach` is called in each worker to give up what only the parent may hold."""
    import gateway.app  # noqa: F401, PLC0415  # once for all workers

    stop.hold()
    gc.freeze()  # keeps the imported modules in memory that the workers share
    gc.enable()
    with closing(WorkerWatch(settings.workers)) as watch:
        group = WorkerGroup(settings, listeners, stop, detach, watch)
        try:
            code = group.supervise(announce, maintain)
            if stop.first:
                log.info("Stopping on %s", signal.Signals(stop.first).name)
            return code
        finally:
            group.fallback.stop()
            for listener in listeners:
                listener.close()  # the workers' copies stay open during the lame duck
            group.stop()
            group.insertion.close()


class WorkerGroup:
    """Mutable: the current settings, the workers, the number of signals handled."""

    def __init__(
        self,
        settings: Settings,
        listeners: Sequence[socket.socket],
        stop: Stop,
        detach: Callable[[], None],
        watch: WorkerWatch,
    ) -> None:
        self._settings = settings
        self._refused: Reload | None = None
        self._listeners = listeners
        self._stop = stop
        self._detach = detach
        self._reloads = 0
        self._secrets = SecretWatch()
        self._watch = watch
        self.insertion = InsertionProcess(settings.ledger, self._fork_inserter)
        self._workers = [_Worker(self._fork_worker, watch) for _ in range(settings.workers)]
        self.fallback = FallbackApp(listeners, lambda: TransportSecurity(self._settings).server)

    def supervise(self, announce: Callable[[], None], maintain: Callable[[], None]) -> int:
        announced = False
        self.insertion.ensure_running()
        for worker in self._workers:
            worker.start()
        while not self._stop.count:
            for worker in self._workers:
                pid = worker.process.pid if worker.process else 0
                code = worker.poll()
                if code is not None:
                    if not announced:
                        return FAILED
                    self._watch.crashed(code)
                    log.error("Worker %d died with exit code %d; restarting", pid, code)
                if announced:
                    worker.restart_when_due()
            if not announced and all(w.ready for w in self._workers):
                announce()
                announced = True
            if announced:
                now = time.monotonic()
                self._watch.publish(now)
                self.fallback.update(now, serving=any(w.process and w.ready for w in self._workers))
            maintain()
            self.insertion.ensure_running()
            if self._stop.reloads > self._reloads:
                self._reloads = self._stop.reloads
                self._reload(reread(self._settings))
                self._secrets.follow()
            elif self._secrets.changed():
                self._reload(reread(self._settings, only=SECRET))
            time.sleep(_CHECK_SECONDS)
        return 0

    def _reload(self, reload: Reload) -> None:
        self._settings = reload.settings
        self._refused = reload if reload.refused else None
        for worker in self._workers:
            worker.send(reload.message)

    def stop(self) -> None:
        """Stop the workers with the parent's signal (anything but SIGTERM skips the lame duck), repeat it for
        each further signal, and kill them when `patience` is over."""
        number = signal.SIGTERM if self._stop.first == signal.SIGTERM else signal.SIGINT
        deadline = time.monotonic() + patience(self._settings)
        heard = 0
        while living := [w.process for w in self._workers if w.process and w.process.exitcode is None]:
            if time.monotonic() > deadline:
                for process in living:
                    log.error("Worker %d did not stop in time; killing it", process.pid)
                    process.kill()
            elif heard < max(self._stop.count, 1):
                heard += 1
                for process in living:
                    assert process.pid
                    os.kill(process.pid, number)
            self.insertion.ensure_running()  # the workers ship their last records
            time.sleep(_CHECK_SECONDS)
        for worker in self._workers:
            worker.poll()

    def _fork_worker(self, theirs: socket.socket, slot: int) -> _Process:
        return self._fork(WORKER, self._work, theirs, slot)

    def _fork_inserter(self, serve: Callable[[str, socket.socket], None], *args: Any) -> _Process:
        return self._fork(INSERTER, self._insert, serve, *args)

    def _fork(self, name: str, target: Callable[..., None], *args: Any) -> _Process:
        self.fallback.stop()  # no threads while forking; it restarts if still needed
        process = _FORK.Process(target=self._run_child, args=(name, target, *args), name=name)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child has its own handlers
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return process

    def _run_child(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Runs in the child."""
        os.setsid()
        _name(name)
        for worker in self._workers:
            worker.close()
        self._detach()
        try:
            target(*args)
        finally:
            logging.shutdown()  # its last lines say why it ends, and a forked process runs no `atexit`

    def _insert(self, serve: Callable[[str, socket.socket], None], url: str, inner: socket.socket) -> None:
        """Runs in the insertion process."""
        for listener in self._listeners:
            listener.close()
        self.insertion.entrance.close()
        serve(url, inner)

    def _work(self, channel: socket.socket, slot: int) -> None:
        """Runs in the worker."""
        self.insertion.leave_to_owner()
        try:
            sys.exit(self._serve(channel, slot))
        except StopRequested:
            sys.exit(0)

    def _serve(self, channel: socket.socket, slot: int) -> int:
        from gateway.app import create_app  # noqa: PLC0415  # the parent has imported it after this module
        from gateway.observability.process_metrics import ProcessValues  # noqa: PLC0415

        settings, values, refused = self._settings, self._watch.values, self._refused
        stop = Stop()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent handles it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            shared = ProcessValues(values, slot, self._watch.gateway)
            app = create_app(settings, shared, self.insertion.entrance)
        except SettingsError as error:  # for example, a certificate that was valid when the parent started
            log.error("%s", error)
            return FAILED
        if refused:
            app.apply(received(settings, {**refused.message, "changed": {}}))
        threading.Thread(target=_listen, args=(channel, app), daemon=True, name="parent").start()
        return run_app(
            app,
            self._listeners,
            stop,
            lambda: channel.sendall(b"!"),
            tls=app.security.server,
            peers=Peers(values, slot),
        )


def _listen(channel: socket.socket, app: App) -> None:
    """Apply settings from the parent until it is gone, then stop."""
    with channel.makefile("rb") as lines, suppress(OSError, RuntimeError):  # the event loop may have ended
        for line in lines:
            app.apply(received(app.settings, json.loads(line)))
    log.info("The parent process has stopped or died: this worker stops")
    os.kill(os.getpid(), signal.SIGINT)  # not SIGTERM: the next parent needs the port
    time.sleep(patience(app.settings))
    log.error("This worker did not stop in time; ending it")
    logging.shutdown()  # lines are written by a thread, for which nobody would wait
    os._exit(FAILED)


def patience(settings: Settings) -> float:
    """Seconds from the stop signal until a worker is killed."""
    return settings.lame_duck + settings.shutdown_grace + settings.usage_grace + _KILL_AFTER_GRACE


def _name(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
