"""Starts and stops one engine's processes.

No process is orphaned: neither the engine's core if its API server is killed, nor the engine if this process
is killed (see `subreaper`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from adapters.engine_agent.engine_output import OnLine, OutputPump, Tail
from adapters.engine_agent.handover import RunningEngine

MARK = "FLORIN_ENGINE_HOME"
"""Environment variable inherited by all processes of an engine, to find them even if their subreaper was
killed."""

_SUBREAPER = Path(__file__).with_name("subreaper.py")


class EngineLaunchError(Exception):
    """The engine's command cannot be executed."""


@dataclass(slots=True)
class _Subreaper:
    pid: int
    stdin: int
    """Descriptor; -1 once closed."""
    wait: Callable[[], Awaitable[object]]

    def close(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1


class EngineProcess:
    """A running engine. Create it with `start`; `wait` returns once all of its processes are gone.

    Owned by one `Agent`; all methods are called on its event loop. Mutable state: the subreaper, the pumps
    and the task that waits for the end.
    """

    def __init__(
        self, subreaper: _Subreaper, status: int, reader: asyncio.StreamReader, tail: Tail, mark: str
    ) -> None:
        self._subreaper = subreaper
        self._mark = mark
        self._status = status
        self._reader = reader
        self._ended: asyncio.Task[int] | None = None
        self._pumps: list[OutputPump] = []
        self.tail = tail
        self.pid = 0
        """Pid of the leader and of its process group."""

    def __repr__(self) -> str:
        return f"<EngineProcess {self.pid}>"

    @classmethod
    async def start(
        cls, command: Sequence[str], environ: Mapping[str, str], *, mark: str, on_line: OnLine | None = None
    ) -> Self:
        """`mark`: identifies this engine on this machine, see `end_marked`. `on_line` receives each line of
        output, in a thread, instead of this process's own streams. Raises EngineLaunchError."""
        tail = Tail()
        status, reports = os.pipe()
        stdin, commands = os.pipe()
        pipes = [os.pipe(), os.pipe()]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(_SUBREAPER), str(reports), *command,
                env={**environ, **_marked(mark)}, stdin=stdin,
                stdout=pipes[0][1], stderr=pipes[1][1], pass_fds=(reports,), start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in (reports, stdin, *(write for _, write in pipes)):
                os.close(fd)
        subreaper = _Subreaper(process.pid, commands, process.wait)
        engine = cls(subreaper, status, await _reader(status), tail, mark)
        engine._pump([read for read, _ in pipes], on_line)
        try:
            word, _, rest = (await engine._reader.readline()).decode().strip().partition(" ")
        except asyncio.CancelledError:  # the engine would be lost: closing makes the subreaper kill it
            subreaper.close()
            await subreaper.wait()
            raise
        if word != "started":
            await subreaper.wait()
            subreaper.close()
            raise EngineLaunchError(rest or "the engine's subreaper did not start")
        engine.pid = int(rest)
        engine._ended = asyncio.create_task(engine._follow(), name="engine process")
        return engine

    @classmethod
    async def adopt(cls, running: RunningEngine, *, mark: str, on_line: OnLine | None = None) -> Self:
        """Take over the engine of the previous agent in this process, see `handover`."""
        tail = Tail()
        tail.lines.extend(running.tail)
        subreaper = _Subreaper(
            running.subreaper, running.stdin, lambda: asyncio.to_thread(_reap, running.subreaper)
        )
        engine = cls(subreaper, running.status, await _reader(running.status), tail, mark)
        engine.pid = running.pid
        engine._pump(running.output, on_line)
        engine._ended = asyncio.create_task(engine._follow(), name="engine process")
        return engine

    def prepare_handover(self, *, began: float, healthy_since: float | None) -> RunningEngine:
        """Return what the next agent needs. Stops reading the engine's output, so that none of it is
        lost."""
        for pump in self._pumps:
            pump.pause()
        return RunningEngine(
            subreaper=self._subreaper.pid,
            pid=self.pid,
            stdin=self._subreaper.stdin,
            status=self._status,
            output=(self._pumps[0].source, self._pumps[1].source),
            tail=tuple(line[:400] for line in list(self.tail.lines)[-10:]),
            healthy_since=healthy_since,
            began=began,
        )

    def cancel_handover(self) -> None:
        """Resume reading the output after a failed handover."""
        for pump in self._pumps:
            pump.resume()

    def _pump(self, sources: Sequence[int], on_line: OnLine | None) -> None:
        for source, target in zip(sources, (1, 2), strict=True):
            self._pumps.append(OutputPump(source, target, self.tail, on_line))

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
        self._send(b"term\n")

    def kill(self) -> None:
        """Send SIGKILL to all of its processes."""
        self._send(b"kill\n")

    async def stop(self, grace: float) -> None:
        """SIGTERM, `grace` seconds, SIGKILL."""
        self.terminate()
        try:
            async with asyncio.timeout(grace):
                await self.wait()
        except TimeoutError:
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
        await self._subreaper.wait()
        self._subreaper.close()
        if not clean:  # the subreaper was killed, and the leader with it; kill the rest
            await asyncio.to_thread(end_marked, self._mark)
        for pump in self._pumps:
            await asyncio.to_thread(pump.join, 2.0)
        return code

    def _send(self, command: bytes) -> None:
        with contextlib.suppress(OSError):  # already gone
            os.write(self._subreaper.stdin, command)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _marked(mark: str) -> dict[str, str]:
    return {MARK: mark, "SPT_NOENV": "1"}  # otherwise vLLM's process titles overwrite the environment


def end_marked(mark: str) -> int:
    """SIGKILL every process with the mark until none is left; return how many there were. Cleans up after an
    agent and a subreaper that were killed together. Blocking."""
    ended: set[int] = set()
    while pids := [pid for pid in _bearers(f"{MARK}={mark}".encode()) if pid != os.getpid()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended.update(pids)
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
