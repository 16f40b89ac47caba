"""What engines and clients say is quoted in the log, and forges nothing there."""

from __future__ import annotations

import logging
import sys

import pytest

from gateway.logs import LONGEST, OneLine, one_line


def line_of(message, *args, exc_info=None):
    """What the handler would write for one event."""
    event = logging.LogRecord("test", logging.WARNING, __file__, 1, message, args, exc_info)
    return OneLine("%(levelname)s %(name)s: %(message)s").format(event)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ü and 日本", "plain, ü and 日本"),
        ("a\n2026 INFO gateway: key created", "a 2026 INFO gateway: key created"),
        ("a\r\n\t b", "a b"),
        ("a\u2028b\x85c", "a b c"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("nul\x00 bidi\u202e", "nul\\x00 bidi\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_message_stays_on_its_line(text, shown):
    assert one_line(text) == shown


def test_a_long_message_is_cut():
    assert len(one_line("x" * 10 * LONGEST)) == LONGEST + 1


def test_an_engines_words_forge_no_line():
    line = line_of("Engine e0 is suspect: %s", "boom\nWARNING test: all is well")
    assert line == "WARNING test: Engine e0 is suspect: boom WARNING test: all is well"


def test_a_traceback_is_indented_and_forges_no_line():
    try:
        raise ValueError("boom\nERROR test: forged\x1b[2J")
    except ValueError:
        first, *rest = line_of("It failed", exc_info=sys.exc_info()).splitlines()
    assert first == "WARNING test: It failed"
    assert rest[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and "\x1b" not in line for line in rest)
