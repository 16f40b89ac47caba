"""One engine's processes: started under a guard, read, told to end; and the pause before the next start.

Nothing survives: not the engine's core when its API server is killed, nor the engine when this process is
(see `guard`). What the engine writes goes on to this process's own stdout and stderr, or line by line to a
function that takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 1.0, 60.0
HEALTHY_SECONDS = 300.0
"""A run of so long starts the backoff anew."""
TAIL_LINES = 30

MARK = "FLORIN_ENGINE_HOME"
"""Variable that all processes of an engine inherit: by it they are found when even their guard was killed."""

_GUARD = Path(__file__).with_name("guard.py")
_LINE_BYTES = 4096

Say = Callable[[str], None]


class StartError(Exception):
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


class EngineProcess:
    """`await EngineProcess.start(…)`; then `wait` says how it ended, when nothing of it is left."""

    def __init__(
        self, guard: asyncio.subprocess.Process, status: asyncio.StreamReader, tail: Tail, mark: str
    ) -> None:
        self._guard = guard
        self._mark = mark
        self._status = status
        self._ended: asyncio.Task[int] | None = None
        self._pumps: list[threading.Thread] = []
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
        writes, in a thread, instead of this process's own streams. Raises StartError."""
        tail = Tail()
        status, told = os.pipe()
        pipes = [os.pipe(), os.pipe()]
        try:
            guard = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(_GUARD), str(told), *command,
                env={**environ, **_marked(mark)}, stdin=asyncio.subprocess.PIPE,
                stdout=pipes[0][1], stderr=pipes[1][1], pass_fds=(told,), start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in (told, *(write for _, write in pipes)):
                os.close(fd)
        made = cls(guard, await _reader(status), tail, mark)
        for (read, _), out in zip(pipes, (1, 2), strict=True):
            pump = threading.Thread(
                target=_pump, args=(read, out, tail, say), daemon=True, name=f"engine-log-{out}"
            )
            pump.start()
            made._pumps.append(pump)
        try:
            word, _, rest = (await made._status.readline()).decode().strip().partition(" ")
        except asyncio.CancelledError:  # nobody would know of the engine: the guard ends it
            assert guard.stdin
            guard.stdin.close()
            await guard.wait()
            raise
        if word != "started":
            await guard.wait()
            raise StartError(rest or "the engine's guard did not start")
        made.pid = int(rest)
        made._ended = asyncio.create_task(made._follow(), name="engine process")
        return made

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
        while line := await self._status.readline():
            word, _, rest = line.decode().strip().partition(" ")
            if word == "exit":
                code = int(rest)
            clean = clean or word == "clean"
        await self._guard.wait()
        if not clean:  # the guard itself was killed, and with it the leader; this ends the rest
            await asyncio.to_thread(end_marked, self._mark)
        for pump in self._pumps:
            await asyncio.to_thread(pump.join, 2.0)
        return code

    def _tell(self, word: bytes) -> None:
        assert self._guard.stdin
        with contextlib.suppress(OSError, RuntimeError):  # it is gone already
            self._guard.stdin.write(word)


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


def _pump(source: int, target: int, tail: Tail, say: Say | None) -> None:
    """Engine → our own stream, until it ends. If nobody reads ours any more, the engine must not notice."""
    lost, rest = False, b""
    while data := os.read(source, 65536):
        tail.feed(source, data)
        if say is not None:
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                say(line.decode(errors="replace").rstrip())
            continue
        while data and not lost:
            try:
                data = data[os.write(target, data) :]
            except OSError:
                lost = True
    if say is not None and rest:
        say(rest.decode(errors="replace").rstrip())
    os.close(source)
