"""Output for people and scripts: tables, JSON, one-sentence errors.

Results go to stdout; notes, progress and errors to stderr, so that a pipe carries only results. On a pipe
tables have no rules and never wrap, so that grep and awk can read them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.observability.logs import is_json

if TYPE_CHECKING:  # local commands show no reports
    from gateway.schemas.finance import Complete

log = logging.getLogger(__name__)

_PIPE_WIDTH = 20_000
"""Wider than any row: a path has at most 4,096 characters."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich's own ends the process as if the command had been refused."""
        raise  # noqa: PLE0704  # Rich calls it where it has caught the error


def console(*, stderr: bool = False) -> Console:
    """Created on each call, since tests and pipes swap the streams."""
    stream: IO[str] = sys.stderr if stderr else sys.stdout
    return _Console(
        file=stream,
        width=None if stream.isatty() else _PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def clean(value: Any) -> str:
    """Text that is safe on a terminal: names and findings come from untrusted files."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    text = value if isinstance(value, str) else ", ".join(clean(v) for v in value) or "-"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> Table:
    """`right`: columns to align right."""
    piped = not sys.stdout.isatty()
    listing = Table(box=None if piped else SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        listing.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=piped
        )
    for row in rows:
        listing.add_row(*(value if isinstance(value, Text) else Text(clean(value)) for value in row))
    return listing


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """One object, one line per field."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(Text(name, "bold"), Text(clean(value)))
    return grid


def show(renderable: Any) -> None:
    console().print(renderable)
    sys.stdout.flush()  # for readers of a pipe


def say(text: str) -> None:
    """A result, as a sentence."""
    console().print(Text(text), soft_wrap=True)


def note(text: str) -> None:
    """A remark for people, to stderr; a log event if stderr carries JSON."""
    if is_json():
        log.info("%s", text)
        return
    console(stderr=True).print(Text(text), soft_wrap=True)


def note_incomplete(report: Complete) -> None:
    """Say what the gateway says that the figures lack."""
    for reason in report.reasons:
        detail = f"{report.missing} See florin doctor." if reason.code == "ledgers_differ" else reason.message
        note(f"Incomplete: {clean(detail)}")
    if not (report.complete or report.reasons):  # an older gateway
        note("Incomplete: records are still arriving in the ledger. Try again shortly.")


def print_json(body: Any) -> None:
    """The API's object unchanged. Escapes non-ASCII characters only if stdout cannot encode them."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=ascii_only) + "\n")
    sys.stdout.flush()


def fail(message: str, findings: Sequence[dict[str, Any]] = ()) -> None:
    """An expected failure: a sentence, with the findings if checks refused an adapter."""
    console(stderr=True).print(Text(f"florin: {clean(message)}"), soft_wrap=True)
    if findings:
        console(stderr=True).print(findings_table(findings))


def label_pairs(labels: Mapping[str, str]) -> list[str]:
    """`pool=acme`"""
    return [f"{label}={value}" for label, value in sorted(labels.items())]


def findings_table(findings: Sequence[dict[str, Any]]) -> Table:
    """Findings of the checks; warnings are marked. Shows a remedy column if any finding has one."""
    columns = {"code": "check", "message": "problem", "found": "found", "expected": "expected"}
    if any(f.get("remedy") for f in findings):
        columns["remedy"] = "remedy"
    rows = []
    for finding in findings:
        code = finding.get("code")
        shown = f"{code} (warning)" if finding.get("severity") == "warning" else code
        rows.append([shown, *(finding.get(key) for key in columns if key != "code")])
    return table(tuple(columns.values()), rows)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on a terminal; nothing otherwise."""
    watched = console(stderr=True)
    if not watched.is_terminal:
        yield
        return
    with watched.status(Text(what)):
        yield


def when(micros: int | None) -> str:
    """`2026-07-01 12:00:05Z`; empty for None."""
    return "" if micros is None else f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%d %H:%M:%SZ}"


def idle(seconds: float | None) -> str:
    """`5s`, `3m`, `2h`, `4d`; empty for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
