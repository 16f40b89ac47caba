"""One engine's processes: started under a guard, read, told to end; and the pause before the next start.

Nothing survives: not the engine's core when its API server is killed, nor the engine when this process is
(see `guard`). What the engine writes goes on to this process's own stdout and stderr, or line by line to a
function that takes it.
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
"""A run of so long starts the backoff anew."""
TAIL_LINES = 30

MARK = "FLORIN_ENGINE_HOME"
"""Variable that all processes of an engine inherit: by it they are found when even their guard was killed."""

_GUARD = Path(__file__).with_name("subreaper.py")
_LINE_BYTES = 4096

Say = Callable[[str], None]


class EngineLaunchError(Exception):
    """The command cannot be executed at all."""


@dataclass(slots=True)
class Backoff:
    """Seconds between two starts: 1, doubling to 60; from 1 again after five healthy minutes."""

    seconds: float = FIRST_BACKOFF_SECONDS

    def after(self, healthy_for: float) -> float:
        """How long to wait after a run that was healthy for so many seconds."""
        if healthy_for >= HEALTHY_SECONDS:
            self.seconds = FIRST_BACKOFF_SECONDS
        pause, self.seconds = self.seconds, min(LAST_BACKOFF_SECONDS, self.seconds * 2)
        return pause


@dataclass(slots=True)
class Tail:
    """The last lines that the engine wrote. Fed by the pumps' threads."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _open: dict[int, bytes] = field(default_factory=dict)
    """Stream → its unfinished line."""

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
    """Descriptor of what it reads; closed: -1."""
    wait: Callable[[], Awaitable[object]]

    def close(self) -> None:
        if self.words >= 0:
            os.close(self.words)
            self.words = -1


class EngineProcess:
    """`await EngineProcess.start(…)`; then `wait` says how it ended, when nothing of it is left."""

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
        """Of the leader, and of its group."""

    def __repr__(self) -> str:
        return f"<EngineProcess {self.pid}>"

    @classmethod
    async def start(
        cls, command: Sequence[str], environ: Mapping[str, str], *, mark: str, say: Say | None = None
    ) -> Self:
        """`mark`: of this engine on this machine, see `end_marked`. `say`: is given each line that the engine
        writes, in a thread, instead of this process's own streams. Raises EngineLaunchError."""
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
        except asyncio.CancelledError:  # nobody would know of the engine: the guard ends it
            guard.close()
            await guard.wait()
            raise
        if word != "started":
            await guard.wait()
            guard.close()
            raise EngineLaunchError(rest or "the engine's guard did not start")
        made.pid = int(rest)
        made._ended = asyncio.create_task(made._follow(), name="engine process")
        return made

    @classmethod
    async def adopt(cls, running: RunningEngine, *, mark: str, say: Say | None = None) -> Self:
        """The engine of the agent that this process was before, see `handover`."""
        tail = Tail()
        tail.lines.extend(running.tail)
        guard = _Subreaper(running.guard, running.words, lambda: asyncio.to_thread(_reap, running.guard))
        made = cls(guard, running.status, await _reader(running.status), tail, mark)
        made.pid = running.pid
        made._pump(running.output, say)
        made._ended = asyncio.create_task(made._follow(), name="engine process")
        return made

    def leave(self, *, began: float, healthy_since: float | None) -> RunningEngine:
        """For the next agent. Nothing that the engine has written is lost: its output is not read from here
        on."""
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
        """There is no next agent."""
        for pump in self._pumps:
            pump.go_on()

    def _pump(self, sources: Sequence[int], say: Say | None) -> None:
        for source, target in zip(sources, (1, 2), strict=True):
            self._pumps.append(Pump(source, target, self.tail, say))

    @property
    def alive(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def wait(self) -> int:
        """The leader's exit code (below 0: that signal), once everything of the engine is gone."""
        assert self._ended, "not started"
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """SIGTERM to the group."""
        self._tell(b"term\n")

    def kill(self) -> None:
        """SIGKILL to all of it."""
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
        if not clean:  # the guard itself was killed, and with it the leader; this ends the rest
            await asyncio.to_thread(end_marked, self._mark)
        for pump in self._pumps:
            await asyncio.to_thread(pump.join, 2.0)
        return code

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            os.write(self._guard.words, word)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _marked(mark: str) -> dict[str, str]:
    return {MARK: mark, "SPT_NOENV": "1"}  # else vLLM's process titles are written over the environment


def end_marked(mark: str) -> int:
    """SIGKILL to every process that bears the mark, until there is none: how many there were. For what was
    left behind by an agent and a guard that were killed together. Blocking."""
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
        with contextlib.suppress(OSError):  # another user's, or ended meanwhile
            if entry in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    return reader


class Pump:
    """A thread: engine → our own stream, until it ends. If nobody reads ours any more, the engine must not
    notice."""

    def __init__(self, source: int, target: int, tail: Tail, say: Say | None = None) -> None:
        """`say`: is given each line, instead of the stream `target`."""
        self.source = source
        self._target = target
        self._tail = tail
        self._say = say
        self._line = b""
        """What `say` is still to be given: the beginning of a line."""
        self._busy = threading.Lock()
        """Held while something has been read, and not yet written."""
        self._rests = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"engine-log-{target}")
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def rest(self) -> None:
        """Within a second, until `go_on`."""
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
