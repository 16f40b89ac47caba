"""The process that inserts usage records for all workers of a gateway: inserting would take a quarter of a
worker's time, and hold the interpreter's lock against its event loop.

Its owner is the supervisor of the workers, or the only worker. The owner keeps both ends of a socket pair,
the entrance: through one end, workers send the process a connection of their own; the process accepts them at
the other. When it dies, its successor accepts at the same entrance, and the workers connect again. When the
last worker and the owner have closed their ends, the process ends.

Nothing is lost with it: a worker notes in its log's cursor only what was acknowledged, and sends the rest
again; the ledger stores each record once.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final, Protocol

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.wal.insertion import InsertedLines, InserterUnavailableError, insert_lines

log = logging.getLogger("florin.metering")

PATIENCE: Final = 30.0
"""Seconds that a worker waits for the process; it may be stopped."""
_LAST_SECONDS: Final = 3.0
_NICE: Final = 10
"""Below the workers' priority: where they share a core, requests and streams need not wait for it. While all
cores are saturated, it gets a tenth of one and may fall behind; the lines are safe in the log meanwhile."""
_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0


class Start(Protocol):
    """Starts a process that calls the function with the ledger's URL and the inner end of the entrance."""

    def __call__(self, target: Callable[[str, socket.socket], None], /, *args: object) -> BaseProcess: ...


class InsertionProcess:
    """The owner's side. Mutable: the process, and when it may be started again."""

    def __init__(self, ledger_url: str, start: Start) -> None:
        self._url = ledger_url
        self._start = start
        self.entrance, self._inner = socket.socketpair()
        """The workers' end."""
        self._process: BaseProcess | None = None
        self._started = self._due = 0.0
        self._pause = _SHORTEST_PAUSE

    def __repr__(self) -> str:
        return f"<InsertionProcess {self._process.pid if self._process else 'not running'}>"

    def ensure_running(self) -> bool:
        """Start it, or start it again if it died; False during the pause before that, which grows if it keeps
        dying young. Blocks while a process starts."""
        now = time.monotonic()
        if self._process is not None and not self._process.is_alive():
            log.error("Insertion process %d died; restarting", self._process.pid)
            self._process.close()
            self._process = None
            self._wait(now)
        if self._process is None and now >= self._due:
            self._started = now
            try:
                self._process = self._start(serve, self._url, self._inner)
            except OSError as error:  # too many processes, or no memory
                log.error("Insertion process cannot start: %s", error)
                self._wait(now)
        return self._process is not None

    def _wait(self, now: float) -> None:
        self._due = now + self._pause
        young = now - self._started < _LONGEST_PAUSE
        self._pause = min(self._pause * 2, _LONGEST_PAUSE) if young else _SHORTEST_PAUSE

    def leave_to_owner(self) -> None:
        """Call it in a forked worker: without the owner, no process accepts at the entrance."""
        self._inner.close()

    def close(self) -> None:
        """Let the process finish what it inserts, and end it."""
        self.entrance.close()
        self._inner.close()
        if self._process is not None:
            self._process.join(_LAST_SECONDS)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
            self._process = None


class InsertionClient:
    """A worker's side, for its shipper: `insert_lines` in the process. Mutable: the connection."""

    def __init__(
        self,
        entrance: socket.socket,
        ensure_running: Callable[[], bool] | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        """`ensure_running`: for a worker that owns the process, which starts with its first call."""
        self._entrance = entrance
        self._ensure_running = ensure_running
        self._patience = struct.pack("ll", int(patience), int(patience % 1 * 1e6))
        self._connection: Connection | None = None

    @property
    def running(self) -> bool:
        """Whether it costs nothing more to use it."""
        return self._ensure_running is None or self._connection is not None

    def __call__(self, lines: Sequence[bytes]) -> InsertedLines:
        """Raises InserterUnavailableError, and LedgerUnavailableError."""
        try:
            if self._ensure_running is not None and not self._ensure_running():
                raise InserterUnavailableError("it died")
            connection = self._connection = self._connection or self._connect()
            connection.send(lines)
            reply = connection.recv()
        except (OSError, EOFError) as error:
            self.close()
            late = isinstance(error, BlockingIOError)
            raise InserterUnavailableError("no response" if late else "it died") from error
        if isinstance(reply, InsertedLines):
            return reply
        raise reply

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Connection:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, option, self._patience)
            socket.send_fds(self._entrance, [b"\0"], [theirs.fileno()])
            return Connection(ours.detach())


def spawn(target: Callable[[str, socket.socket], None], /, *args: object) -> BaseProcess:
    """For an owner with threads, which cannot fork."""
    process = get_context("spawn").Process(target=target, args=args, name="florin-inserter", daemon=True)
    process.start()
    return process


def serve(ledger_url: str, entrance: socket.socket) -> None:
    """Run the process: insert records until no worker is left that could send any."""
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
    ):  # sent to the group: the owner decides
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    gc.set_threshold(50_000, 20, 50)  # records without reference cycles
    ledger, turn = Ledger(ledger_url), threading.Lock()
    entrance.setblocking(True)
    while received := socket.recv_fds(entrance, 1, 1)[1]:
        worker = Connection(received[0])
        threading.Thread(target=_serve_worker, args=(worker, ledger, turn), daemon=True).start()
    with turn:
        ledger.close()


def _serve_worker(connection: Connection, ledger: Ledger, turn: threading.Lock) -> None:
    """A thread for each worker: one that is stopped in the middle of a message must not hold up the others.
    `turn`: for one transaction at a time, since the databases order them anyway."""
    with connection, suppress(OSError, EOFError):
        while True:
            lines = connection.recv()
            reply: InsertedLines | Exception
            try:
                with turn:
                    reply = insert_lines(ledger, lines)
            except LedgerUnavailableError as error:
                reply = error
            except Exception as error:  # noqa: BLE001  # a defect, for the worker's log
                reply = RuntimeError(f"The insertion process failed: {error!r}")
            connection.send(reply)
