"""Log lines on stderr: one event, one line, whatever the event quotes.

Messages quote what engines, sources and clients send. A newline or a terminal control sequence in there could
forge a line, or rewrite what an operator sees. So a message is kept on one line, control characters are
escaped, and tracebacks are indented: only a real event begins a line.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import textwrap
from typing import Any

LONGEST = 4_000
"""Characters of one message; the rest is cut off."""

_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("uvicorn", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_no_cancellations)


class OneLine(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        lines = super().formatException(ei).splitlines()
        return textwrap.indent("\n".join(map(one_line, lines)), "  ", lambda _: True)


def one_line(text: str) -> str:
    """`text` without anything that a terminal or a reader of lines would obey."""
    if len(text) > LONGEST:
        text = text[:LONGEST] + "…"
    if text.isprintable():
        return text
    text = _LINE_BREAKS.sub(" ", text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _no_cancellations(record: logging.LogRecord) -> bool:
    """A request that was cancelled at the end of the grace period is no defect: no traceback for it."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
