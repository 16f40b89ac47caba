"""The engine's output."""

from __future__ import annotations

from adapters.engine_agent.engine_output import Tail


def test_the_tail_holds_the_last_lines_whole():
    tail = Tail()
    tail.feed(1, b"".join(b"line %d\n" % i for i in range(100)))
    tail.feed(1, b"half a ")
    tail.feed(2, b"other\n")
    tail.feed(1, b"line \xff\n")
    tail.feed(1, b"no end" + b"x" * 10_000)
    lines = tail.text().splitlines()
    assert lines[:2] == ["line 72", "line 73"]
    assert lines[-3:-1] == ["other", "half a line \ufffd"]
    assert len(lines[-1]) == 4096
