"""Logging to stderr: one line per event, as text or as JSON objects.

Messages quote what engines, sources and clients send. Newlines or terminal control sequences in them could
forge log lines or rewrite an operator's screen. So each message is kept on one line, control characters are
escaped, and tracebacks are indented: only an event begins a line. JSON is pure ASCII, so that lines only end
where an object ends.

Each event carries the ids of the request during which it happened (`request_context`), and those FIELDS that
the caller passes as `extra`.
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
"""Characters of one message; longer ones are truncated."""
WAITING = 10_000
"""Lines that may wait to be written."""
FLUSH_SECONDS = 2.0
STDERR: Final = 2
_LONGEST_TRACEBACK = 20_000
FIELDS: Final = ("request_id", "client_request_id", "trace_id", "span_id", "tenant", "adapter", "engine")
"""The fields of an event besides its message."""
_OWN = ("gateway", "adapters", "deploy", "florin")
"""Loggers to which FLORIN_LOG_LEVEL applies. Libraries only log warnings and errors, since their other
messages may quote headers and bodies."""

_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_PLAIN = re.compile(r"[^\s\"=]+")

log = logging.getLogger(__name__)


def log_to_stderr(form: str | None = None, level: str | None = None) -> None:
    """Configure logging. Defaults to FLORIN_LOG_FORMAT and FLORIN_LOG_LEVEL if they are valid, for events
    before the settings are read and for processes without settings."""
    form = form or _from_environment("FLORIN_LOG_FORMAT", FORMATS, "text")
    level = level or _from_environment("FLORIN_LOG_LEVEL", LEVELS, "info")
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, _Stderr)]
    if not root.handlers:
        ours = [_Stderr()]
        root.addHandler(ours[0])
    for handler in ours:  # none if a test has configured logging
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
    """Whether stderr carries only JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def worker_name() -> str:
    """A name for this process that is unique in the installation; its leases in Redis begin with it."""
    return f"{socket.gethostname()}-{os.getpid()}"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of an event; its own override those of the current request."""
    context = CURRENT.get()
    fields: dict[str, Any] = {}
    for name in FIELDS:
        value = getattr(record, name, None) or (getattr(context, name) if context is not None else None)
        if value:
            fields[name] = value
    return fields | getattr(record, "fields", {})


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
    """One object per line. A library would save only fifteen lines."""

    def __init__(self) -> None:
        super().__init__()
        self._worker = worker_name()

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage(), LONGEST),
            "worker": self._worker,
            **fields_of(record),
        }
        if record.exc_info:
            event["exception"] = cut(self.formatException(record.exc_info), _LONGEST_TRACEBACK)
        return json.dumps(event, separators=(",", ":"), default=str)


class _Stderr(logging.Handler):
    """Writes from a separate thread, so that a slow reader of stderr delays nothing. The queue is bounded;
    dropped lines are counted and reported."""

    def __init__(self, waiting: int = WAITING) -> None:
        super().__init__()
        # Mutable. A SimpleQueue, since a destructor may log at any time, even during a `put`.
        self._queue: queue.SimpleQueue[str | logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._most = waiting
        self._dropped = 0
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """Start again in a forked child, which does not inherit the thread. The parent writes its own
        queue."""
        self._queue, self._dropped = queue.SimpleQueue(), 0
        self._start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= self._most:
            self._dropped += 1
        elif "fields" in record.__dict__:  # needs no context, and may be frequent: formatted in the thread
            self._queue.put(record)
        else:
            self._queue.put(self._line(record))

    def flush(self) -> None:
        """Wait until all lines so far are written, or FLUSH_SECONDS have passed."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(FLUSH_SECONDS)

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001  # reported in place of the message
            message = f"Cannot format log message ({error!r}): {record.msg!r:.500}"
            return self.format(_record(record.name, logging.ERROR, message))

    def _write(self) -> None:
        reported = 0  # dropped lines that were reported
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            lines = [item if isinstance(item, str) else self._line(item)]
            if (
                self._dropped > reported and self._queue.qsize() < self._most // 2
            ):  # once the reader catches up
                dropped = self._dropped - reported
                reported += dropped
                message = f"Dropped {dropped} log lines: stderr is read too slowly"
                lines.append(self.format(_record(__name__, logging.WARNING, message)))
            with contextlib.suppress(OSError, ValueError):  # stderr is closed
                _write_all("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))


def _write_all(data: bytes) -> None:
    """Bypasses sys.stderr: a child forked during a write would find its lock held."""
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
    """`2026-11-22T04:55:51.042Z` from Unix seconds."""
    second = int(seconds)
    milliseconds = int((seconds - second) * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{milliseconds:03d}Z"


def one_line(text: str) -> str:
    """`text` on one line and without control characters."""
    text = cut(text, LONGEST)
    if text.isprintable():
        return text
    text = _LINE_BREAKS.sub(" ", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "…"


def shown(value: object) -> str:
    """The value of `name=value` in a text line, quoted if it could be mistaken for several."""
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
    """Suppress the traceback of a request that was cancelled at the end of the grace period."""
    from asyncio import CancelledError  # noqa: PLC0415  # most commands do not need asyncio

    return not (record.exc_info and isinstance(record.exc_info[1], CancelledError))
