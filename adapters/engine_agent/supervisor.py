"""Starts, reads and stops one engine's processes, and computes the backoff before restarts.

No process is orphaned: neither the engine's core if its API server is killed, nor the engine if this process
is killed (see `subreaper`). The engine's output is passed on to this process's stdout and stderr, or line by
line to a function.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from adapters.engine_agent.handover import RunningEngine

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 1.0, 60.0
HEALTHY_SECONDS = 300.0
"""A healthy run of this many seconds resets the backoff."""
TAIL_LINES = 30

MARK = "FLORIN_ENGINE_HOME"
"""Environment variable inherited by all processes of an engine, to find them even if their subreaper was
killed."""

_GUARD = Path(__file__).with_name("subreaper.py")
_LINE_BYTES = 4096

Say = Callable[[str], None]


class EngineLaunchError(Exception):
    """The engine's command cannot be executed."""


@dataclass(slots=True)
class Backoff:
    """Seconds between restarts: from 1, doubling up to 60; reset after five healthy minutes."""

    seconds: float = FIRST_BACKOFF_SECONDS

    def after(self, healthy_for: float) -> float:
        """Seconds to wait after a run that was healthy for `healthy_for` seconds."""
        if healthy_for >= HEALTHY_SECONDS:
            self.seconds = FIRST_BACKOFF_SECONDS
        pause, self.seconds = self.seconds, min(LAST_BACKOFF_SECONDS, self.seconds * 2)
        return pause


@dataclass(slots=True)
class Tail:
    """The last lines of the engine's output. Fed by the pumps' threads."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _open: dict[int, bytes] = field(default_factory=dict)
    """Stream → its incomplete line."""

    def feed(self, stream: int, data: bytes) -> None:
        *lines, rest = (self._open.get(stream, b"") + data).split(b"\n")
        self._open[stream] = rest[-_LINE_BYTES:]
        self.lines.extend(line[:_LINE_BYTES].decode(errors="replace").rstrip() for line in lines)

    def text(self) -> str:
        return "\n".join([*self.lines, *(r.decode(errors="replace") for r in self._open.values() if r)])


@dataclass(slots=True)
class _Subreaper:
    pid: int
    words: int
    """Descriptor of its stdin; -1 once closed."""
    wait: Callable[[], Awaitable[object]]

    def close(self) -> None:
        if self.words >= 0:
            os.close(self.words)
            self.words = -1


class EngineProcess:
    """A running engine. Create it with `start`; `wait` returns once all of its processes are gone.

    Owned by one `Agent`; all methods are called on its event loop. Mutable state: the subreaper, the pumps
    and the task that waits for the end.
    """

    def __init__(
        self, guard: _Subreaper, status: int, reader: asyncio.StreamReader, tail: Tail, mark: str
    ) -> None:
        self._guard = guard
        self._mark = mark
        self._status = status
        self._reader = reader
        self._ended: asyncio.Task[int] | None = None
        self._pumps: list[Pump] = []
        self.tail = tail
        self.pid = 0
        """Pid of the leader and of its process group."""

    def __repr__(self) -> str:
        return f"<EngineProcess {self.pid}>"

    @classmethod
    async def start(
        cls, command: Sequence[str], environ: Mapping[str, str], *, mark: str, say: Say | None = None
    ) -> Self:
        """`mark`: identifies this engine on this machine, see `end_marked`. `say` receives each line of
        output, in a thread, instead of this process's own streams. Raises EngineLaunchError."""
        tail = Tail()
        status, told = os.pipe()
        heard, words = os.pipe()
        pipes = [os.pipe(), os.pipe()]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(_GUARD), str(told), *command,
                env={**environ, **_marked(mark)}, stdin=heard,
                stdout=pipes[0][1], stderr=pipes[1][1], pass_fds=(told,), start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in (told, heard, *(write for _, write in pipes)):
                os.close(fd)
        guard = _Subreaper(process.pid, words, process.wait)
        made = cls(guard, status, await _reader(status), tail, mark)
        made._pump([read for read, _ in pipes], say)
        try:
            word, _, rest = (await made._reader.readline()).decode().strip().partition(" ")
        except asyncio.CancelledError:  # the engine would be lost: closing makes the subreaper kill it
            guard.close()
            await guard.wait()
            raise
        if word != "started":
            await guard.wait()
            guard.close()
            raise EngineLaunchError(rest or "the engine's subreaper did not start")
        made.pid = int(rest)
        made._ended = asyncio.create_task(made._follow(), name="engine process")
        return made

    @classmethod
    async def adopt(cls, running: RunningEngine, *, mark: str, say: Say | None = None) -> Self:
        """Take over the engine of the previous agent in this process, see `handover`."""
        tail = Tail()
        tail.lines.extend(running.tail)
        guard = _Subreaper(running.guard, running.words, lambda: asyncio.to_thread(_reap, running.guard))
        made = cls(guard, running.status, await _reader(running.status), tail, mark)
        made.pid = running.pid
        made._pump(running.output, say)
        made._ended = asyncio.create_task(made._follow(), name="engine process")
        return made

    def leave(self, *, began: float, healthy_since: float | None) -> RunningEngine:
        """Prepare the handover to the next agent. Stops reading the engine's output, so that none of it is
        lost."""
        for pump in self._pumps:
            pump.rest()
        return RunningEngine(
            guard=self._guard.pid,
            pid=self.pid,
            words=self._guard.words,
            status=self._status,
            output=(self._pumps[0].source, self._pumps[1].source),
            tail=tuple(line[:400] for line in list(self.tail.lines)[-10:]),
            healthy_since=healthy_since,
            began=began,
        )

    def stay(self) -> None:
        """Resume after a failed handover."""
        for pump in self._pumps:
            pump.go_on()

    def _pump(self, sources: Sequence[int], say: Say | None) -> None:
        for source, target in zip(sources, (1, 2), strict=True):
            self._pumps.append(Pump(source, target, self.tail, say))

    @property
    def alive(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def wait(self) -> int:
        """Return the leader's exit code (negative: that signal) once all of the engine's processes are
        gone."""
        assert self._ended, "not started"
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""
        self._tell(b"term\n")

    def kill(self) -> None:
        """Send SIGKILL to all of its processes."""
        self._tell(b"kill\n")

    async def stop(self, grace: float) -> None:
        """SIGTERM, `grace` seconds, SIGKILL."""
        self.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self.wait()
        self.kill()
        await self.wait()

    async def _follow(self) -> int:
        code = -int(signal.SIGKILL)
        clean = False
        while line := await self._reader.readline():
            word, _, rest = line.decode().strip().partition(" ")
            if word == "exit":
                code = int(rest)
            clean = clean or word == "clean"
        await self._guard.wait()
        self._guard.close()
        if not clean:  # the subreaper was killed, and the leader with it; kill the rest
            await asyncio.to_thread(end_marked, self._mark)
        for pump in self._pumps:
            await asyncio.to_thread(pump.join, 2.0)
        return code

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # already gone
            os.write(self._guard.words, word)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _marked(mark: str) -> dict[str, str]:
    return {MARK: mark, "SPT_NOENV": "1"}  # otherwise vLLM's process titles overwrite the environment


def end_marked(mark: str) -> int:
    """SIGKILL every process with the mark until none is left; return how many there were. Cleans up after an
    agent and a subreaper that were killed together. Blocking."""
    ended: set[int] = set()
    while found := [pid for pid in _bearers(f"{MARK}={mark}".encode()) if pid != os.getpid()]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        time.sleep(0.02)
    return len(ended)


def _bearers(entry: bytes) -> Iterator[int]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or already gone
            if entry in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    return reader


class Pump:
    """A thread that copies the engine's output to our own stream until it ends. If our stream is closed, the
    engine must not notice."""

    def __init__(self, source: int, target: int, tail: Tail, say: Say | None = None) -> None:
        """`say` receives each line instead of the stream `target`."""
        self.source = source
        self._target = target
        self._tail = tail
        self._say = say
        self._line = b""
        """An incomplete line not yet passed to `say`."""
        self._busy = threading.Lock()
        """Held while data has been read but not yet written."""
        self._rests = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"engine-log-{target}")
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def rest(self) -> None:
        """Pause reading, within a second, until `go_on`."""
        self._rests = self._busy.acquire(timeout=1.0)
        if self._rests and self._say is not None:
            self._speak(b"", self._say, whole=True)

    def go_on(self) -> None:
        if self._rests:
            self._rests = False
            self._busy.release()

    def _run(self) -> None:
        lost, more = False, True
        coming = select.poll()
        coming.register(self.source, select.POLLIN)
        while more:
            coming.poll()
            with self._busy:
                data = os.read(self.source, 65536)
                more = bool(data)
                self._tail.feed(self.source, data)
                if self._say is not None:
                    self._speak(data, self._say, whole=not more)
                    continue
                while data and not lost:
                    try:
                        data = data[os.write(self._target, data) :]
                    except OSError:
                        lost = True
        os.close(self.source)

    def _speak(self, data: bytes, say: Say, *, whole: bool) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if self._line and (whole or len(self._line) > _LINE_BYTES):
            lines.append(self._line)
            self._line = b""
        for line in lines:
            say(line.decode(errors="replace").rstrip())
