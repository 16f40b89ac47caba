"""What engines and clients say is quoted in the log, and forges nothing there."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import pytest

from gateway.observability.logs import LONGEST, JsonLines, OneLine, one_line, shown
from gateway.observability.request_context import CURRENT, RequestContext
from tests.support.forking import FORKED


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


def test_engine_output_cannot_forge_a_line():
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


# -- what events are about, and JSON


@pytest.fixture
def request_context():
    context = RequestContext(
        "req-1", client_request_id="job-7", tenant="acme", adapter="acme/support@v3", engine="a1"
    )
    token = CURRENT.set(context)
    yield context
    CURRENT.reset(token)


def record_of(message, *args, exc_info=None, **extra):
    event = logging.LogRecord("gateway.test", logging.WARNING, __file__, 1, message, args, exc_info)
    event.__dict__.update(extra)
    return event


def object_of(message, *args, **options):
    line = JsonLines().format(record_of(message, *args, **options))
    assert len(line.splitlines()) == 1
    assert line.isascii()
    return json.loads(line)


def test_event_has_the_ids_of_its_request(request_context):
    names = {
        "request_id": "req-1", "client_request_id": "job-7", "tenant": "acme",
        "adapter": "acme/support@v3", "engine": "a1",
    }  # fmt: skip
    said = object_of("It %s", "failed")
    assert {k: v for k, v in said.items() if k not in {"time", "worker"}} == {
        "level": "warning", "logger": "gateway.test", "message": "It failed", **names,
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said["time"])
    assert said["worker"].endswith(f"-{os.getpid()}")
    line = OneLine("%(message)s%(about)s").format(record_of("It failed"))
    assert (
        line
        == "It failed request_id=req-1 client_request_id=job-7 tenant=acme adapter=acme/support@v3 engine=a1"
    )


def test_event_fields_override_those_of_its_request(request_context):
    assert object_of("down", engine="b2")["engine"] == "b2"


def test_events_outside_requests_have_no_request_ids():
    assert set(object_of("hello")) == {"time", "level", "logger", "message", "worker"}


@pytest.mark.parametrize(
    "text", ['"}\n{"level":"error"', "a\u2028b\x85c", "\ud800", "\x00\x1b[2J", "日本", "x" * 10 * LONGEST]
)
def test_nothing_forges_an_object(text):
    message = object_of("%s", text)["message"]
    assert message == (text if len(text) <= LONGEST else text[:LONGEST] + "…")


def test_a_traceback_is_one_field():
    try:
        raise ValueError("boom\nERROR test: forged")
    except ValueError:
        said = object_of("It failed", exc_info=sys.exc_info())
    assert said["exception"].startswith("Traceback (most recent call last):")
    assert said["exception"].endswith("forged")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a1", "a1"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ("", '""'),
        ("x\ny", '"x\\ny"'),
        (True, "true"),
        (3, "3"),
    ],
)
def test_a_value_in_a_text_line_is_one_value(value, text):
    assert shown(value) == text


LOGGING = """
import logging, sys, threading, warnings
from gateway.observability import logs
from gateway.observability.logs import log_to_stderr
logs.FLUSH_SECONDS = 60
log_to_stderr()
log_to_stderr()
logging.getLogger("gateway.x").debug("debug of ours")
logging.getLogger("gateway.x").info("info of ours")
logging.getLogger("aiohttp.client").debug("authorization: Bearer secret")
logging.getLogger("aiohttp.client").info("authorization: Bearer secret")
logging.getLogger("gateway.x").warning("three of %s", "one", "two")
warnings.warn("a warning of Python's")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("the end\\nERROR gateway.x: forged")
"""


@pytest.mark.parametrize(("form", "level"), [("json", "debug"), ("text", "warning")])
def test_all_output_of_a_process_is_formatted(form, level):
    done = subprocess.run(
        [sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "FLORIN_LOG_FORMAT": form, "FLORIN_LOG_LEVEL": level},
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert "secret" not in done.stderr
    assert ("info of ours" in done.stderr) == (level != "warning")
    assert ("debug of ours" in done.stderr) == (level == "debug")
    assert len(lines) == 4 + (level != "warning") + (level == "debug")
    if form == "json":
        said = [json.loads(line) for line in done.stderr.splitlines()]
        assert [s["exception"].splitlines()[-2:] for s in said[-2:]] == [
            said[-2]["exception"].splitlines()[-2:],
            ["RuntimeError: the end", "ERROR gateway.x: forged"],
        ]
        assert "Cannot format log message" in said[-4]["message"]


UNREAD = (
    FORKED
    + """
import logging, sys
from gateway.observability import logs
from gateway.observability.logs import log_to_stderr
logs.FLUSH_SECONDS = 60
log_to_stderr()
log = logging.getLogger("gateway.x")
for number in range(15_000):
    log.info("line %d %s", number, "x" * 100)
print("not held up", flush=True)
sys.stdin.read(1)
for _ in range(2):
    logging.getLogger().handlers[0].flush()
    log.info("read again")
"""
)


def test_unread_log_delays_nothing():
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "not held up\n"
        process.stdin.write("!")
        process.stdin.close()
        lines = process.stderr.read().splitlines()
        assert process.wait(60) == 0
    numbers = [int(line.split()[4]) for line in lines if " line " in line]
    assert numbers == sorted(numbers)
    assert 10_000 <= len(numbers) < 15_000
    [said] = [line for line in lines if "Dropped" in line]
    assert f"Dropped {15_000 - len(numbers)} log lines" in said
    assert lines[-1].endswith("read again")
