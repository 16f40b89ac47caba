from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.commands import output
from gateway.commands.output import idle, when


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (1.5, "1.500"),
        (["a", "b"], "a, b"),
        ("\x1b[2Jboo\n", "\\x1b[2Jboo\\n"),
        ("[red]x[/red]", "[red]x[/red]"),
        ("\u202ex", "\\u202ex"),
    ],
)
def test_clean(value, shown):
    assert output.clean(value) == shown


def test_a_piped_table_neither_wraps_nor_cuts(capsys):
    long = "x" * 4096
    output.show(output.table(("name", "path"), [("a", long), ("[b]", "y")]))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["name  path", f"a     {long}", "[b]   y"]


def test_json_is_what_the_api_said(capsys):
    output.print_json({"a": "é", "b": [1.5, None]})
    assert capsys.readouterr().out == '{\n  "a": "é",\n  "b": [\n    1.5,\n    null\n  ]\n}\n'


def test_failures_go_to_stderr(capsys):
    output.fail("It broke\x1b.", [{"code": "c", "message": "m", "found": "1", "expected": "2"}])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "florin: It broke\\x1b."
    assert [line.split() for line in err.splitlines()[1:]] == [
        ["check", "problem", "found", "expected"],
        ["c", "m", "1", "2"],
    ]


def test_times():
    assert when(1_700_000_000_999_999) == "2023-11-14 22:13:20Z"
    assert when(None) == ""
    assert [idle(s) for s in (None, 0.4, 59, 61, 7300, 200_000)] == ["", "0s", "59s", "1m", "2h", "2d"]


def florin(*words, stdout, before=()):
    """The command in a process of its own: its exit code, and what is on stderr."""
    command = [*before, sys.executable, "-m", "gateway.cli", *words]
    ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    return ended.returncode, ended.stderr


def test_a_full_disk_is_a_sentence():
    with Path("/dev/full").open("w") as full:
        sentence = b"florin: The output cannot be written: No space left on device.\n"
        assert florin("--version", stdout=full) == (1, sentence)


def test_output_that_nobody_reads_ends_a_command_silently():
    reader, writer = os.pipe()
    os.close(reader)  # as `head -1` does
    with os.fdopen(writer, "w") as pipe:
        assert florin("--version", stdout=pipe) == (141, b"")
        refused = florin(
            "tenant", "list", "--json", "--gateway", "http://127.0.0.1:9", "--key", "k", stdout=pipe
        )
    assert refused[0] == 141
    assert refused[1].startswith(b"florin: No gateway answers at ")
    closed = ("sh", "-c", 'exec "$@" >&-', "sh")
    assert florin("--version", stdout=None, before=closed) == (0, b"")
