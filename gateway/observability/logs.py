"""Log lines on stderr: one event, one line, whatever the event quotes; as text, or as JSON objects.

Messages quote what engines, sources and clients send. A newline or a terminal control sequence in there could
forge a line, or rewrite what an operator sees. So a message is kept on one line, control characters are
escaped, and tracebacks are indented: only a real event begins a line. JSON is ASCII throughout, so that
nothing but the end of an object ends a line.

Each event bears the names of the request that it happened in (`request_context`), and whatever of FIELDS the
caller gives as `extra`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import socket
import sys
import textwrap
import threading
import time
from types import TracebackType
from typing import Any, Final, Literal, get_args

from gateway.observability.request_context import CURRENT

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
LEVELS: Final[tuple[str, ...]] = get_args(Level)

LONGEST = 4_000
"""Characters of one message; the rest is cut off."""
WAITING = 10_000
"""Lines that wait to be written."""
FLUSH_SECONDS = 2.0
STDERR: Final = 2
_LONGEST_TRACEBACK = 20_000
FIELDS: Final = ("request_id", "client_request_id", "trace_id", "tenant", "adapter", "engine")
"""What an event may be about, besides its message."""
_OWN = ("gateway", "adapters", "deploy", "florin")
"""Loggers that FLORIN_LOG_LEVEL is about. What libraries say below a warning may quote headers and bodies."""

_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_PLAIN = re.compile(r"[^\s\"=]+")

log = logging.getLogger(__name__)


def log_to_stderr(form: str | None = None, level: str | None = None) -> None:
    """From now on. By default as FLORIN_LOG_FORMAT and FLORIN_LOG_LEVEL say, where they say anything that can
    be: for what is logged before the settings have been read, and for processes that have none."""
    form = form or _from_environment("FLORIN_LOG_FORMAT", FORMATS, "text")
    level = level or _from_environment("FLORIN_LOG_LEVEL", LEVELS, "info")
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _Stderr)]
    if not root.handlers:
        ours = [_Stderr()]
        root.addHandler(ours[0])
    for handler in ours:  # none, where somebody else has taken over the log: a test
        handler.setFormatter(JsonLines() if form == "json" else OneLine(TEXT))
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(number, logging.WARNING))
    for name in _OWN:
        logging.getLogger(name).setLevel(number)
    uvicorn = logging.getLogger("uvicorn.error")
    if _no_cancellations not in uvicorn.filters:
        uvicorn.addFilter(_no_cancellations)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def is_json() -> bool:
    """Whether stderr is for JSON alone."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def worker_name() -> str:
    """This process among all of an installation's; its leases in Redis begin with it."""
    return f"{socket.gethostname()}-{os.getpid()}"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What an event is about: what it says itself goes before the request it happened in."""
    context = CURRENT.get()
    found: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(record, name, None) or (getattr(context, name) if context is not None else None)
        if value:
            found[name] = value
    return found | getattr(record, "fields", {})


class OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.about = "".join(
            f" {name}={shown(value)}" for name, value in fields_of(record).items() if value is not None
        )
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's own name
        del datefmt
        return rfc3339(record.created)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        lines = super().formatException(ei).splitlines()
        return textwrap.indent("\n".join(map(one_line, lines)), "  ", lambda _: True)


TEXT: Final = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s%(about)s"


class JsonLines(logging.Formatter):
    """One object a line. Own code, since a library would save fifteen lines."""

    def __init__(self) -> None:
        super().__init__()
        self._worker = worker_name()

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage(), LONGEST),
            "worker": self._worker,
            **fields_of(record),
        }
        if record.exc_info:
            said["exception"] = cut(self.formatException(record.exc_info), _LONGEST_TRACEBACK)
        return json.dumps(said, separators=(",", ":"), default=str)


class _Stderr(logging.Handler):
    """Writes in a thread of its own: whoever reads stderr slowly, or not at all, holds up nobody. What waits
    is bounded; what is left out is counted and said."""

    def __init__(self, waiting: int = WAITING) -> None:
        super().__init__()
        # Mutable. A SimpleQueue, since a destructor may log at any moment, also within a `put`.
        self._queue: queue.SimpleQueue[str | logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._most = waiting
        self._dropped = 0
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """In a forked child, which has no thread of its parent's; what waited is the parent's to write."""
        self._queue, self._dropped = queue.SimpleQueue(), 0
        self._start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= self._most:
            self._dropped += 1
        elif "fields" in record.__dict__:  # it says all of itself, and there may be thousands: not here
            self._queue.put(record)
        else:
            self._queue.put(self._line(record))

    def flush(self) -> None:
        """Until what has been logged so far is written, unless nobody reads."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(FLUSH_SECONDS)

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is told in its place
            message = f"A message could not be put together ({error!r}): {record.msg!r:.500}"
            return self.format(_record(record.name, logging.ERROR, message))

    def _write(self) -> None:
        said = 0  # of the lines left out
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            lines = [item if isinstance(item, str) else self._line(item)]
            if self._dropped > said and self._queue.qsize() < self._most // 2:  # said once, when it is over
                dropped = self._dropped - said
                said += dropped
                message = f"{dropped} lines were left out: stderr is read too slowly"
                lines.append(self.format(_record(__name__, logging.WARNING, message)))
            with contextlib.suppress(OSError, ValueError):  # it is closed: nothing can be done about that
                _write_all("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))


def _write_all(data: bytes) -> None:
    """Past sys.stderr, whose lock a child would find held if it were forked within a write."""
    while data:
        data = data[os.write(STDERR, data) :]


def _begin_anew() -> None:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Stderr):
            handler.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)


def _record(name: str, level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 0, "%s", (message,), None)


def rfc3339(seconds: float) -> str:
    """`2026-11-22T04:55:51.042Z`, of seconds since the epoch."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def one_line(text: str) -> str:
    """`text` without anything that a terminal or a reader of lines would obey."""
    text = cut(text, LONGEST)
    if text.isprintable():
        return text
    text = _LINE_BREAKS.sub(" ", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "…"


def shown(value: object) -> str:
    """As the value in a text line's `name=value`: in quotes where it could be taken for more than one."""
    if isinstance(value, str) and not (_PLAIN.fullmatch(value) and value.isprintable()):
        return json.dumps(value)
    return json.dumps(value) if isinstance(value, bool | None) else str(value)


def _from_environment(name: str, allowed: tuple[str, ...], default: str) -> str:
    value = os.environ.get(name, "")
    return value if value in allowed else default


def _uncaught(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error or kind(), traceback)
        return
    log.critical("Uncaught exception", exc_info=(kind, error or kind(), traceback))


def _no_cancellations(record: logging.LogRecord) -> bool:
    """A request that was cancelled at the end of the grace period is no defect: no traceback for it."""
    from asyncio import CancelledError  # noqa: PLC0415  # commands that print notes run no event loop

    return not (record.exc_info and isinstance(record.exc_info[1], CancelledError))
