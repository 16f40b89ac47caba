"""Passes the engine's output on to this process's stdout and stderr, or line by line to a function, and keeps
its last lines."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

TAIL_LINES = 30
_LINE_BYTES = 4096

OnLine = Callable[[str], None]
"""Receives each line of the engine's output, in a thread."""


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


class OutputPump:
    """A thread that copies the engine's output to our own stream until it ends. If our stream is closed, the
    engine must not notice."""

    def __init__(self, source: int, target: int, tail: Tail, on_line: OnLine | None = None) -> None:
        """`on_line` receives each line instead of the stream `target`."""
        self.source = source
        self._target = target
        self._tail = tail
        self._on_line = on_line
        self._line = b""
        """An incomplete line not yet passed to `on_line`."""
        self._busy = threading.Lock()
        """Held while data has been read but not yet written."""
        self._paused = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"engine-log-{target}")
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def pause(self) -> None:
        """Pause reading, within a second, until `resume`."""
        self._paused = self._busy.acquire(timeout=1.0)
        if self._paused and self._on_line is not None:
            self._pass_on(b"", self._on_line, at_end=True)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
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
                if self._on_line is not None:
                    self._pass_on(data, self._on_line, at_end=not more)
                    continue
                while data and not lost:
                    try:
                        data = data[os.write(self._target, data) :]
                    except OSError:
                        lost = True
        os.close(self.source)

    def _pass_on(self, data: bytes, on_line: OnLine, *, at_end: bool) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if self._line and (at_end or len(self._line) > _LINE_BYTES):
            lines.append(self._line)
            self._line = b""
        for line in lines:
            on_line(line.decode(errors="replace").rstrip())
