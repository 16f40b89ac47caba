"""The short form of `python -m loadtests.fuzz`: the same rubbish every time, from every side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import CODES
from gateway.tenants.directory import Role
from loadtests.fuzz.hostile import Script, answer
from loadtests.fuzz.judge import ENGINE_TROUBLE, Answer, BrokenPromiseError, Log, check, check_secrets
from loadtests.fuzz.parts import PARTS, Api, FromEngine, Part, Roles
from loadtests.fuzz.world import FuzzTarget
from tests.support.forms import LONG

CASES = {"bodies": 200, "wire": 150, "answers": 20, "streams": 80, "selves": 15, "roles": 150, "api": 150}
SLOWEST = 10.0
"""Seconds for /healthz: no promise, but what even a busy machine shows when nothing stalls. The promise, 250 ms,
is what the long form holds to."""
GROWTH = 256 * 2**20
UNMINTED = {"enrolment"}
"""Roles that a key is not simply made for."""

pytestmark = pytest.mark.timeout(900)  # a failure is made small first, which takes its time


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzTarget]:
    # Engines that are looked at fifty times a second, as the long search has it, take most of what a short one takes.
    quick = {} if LONG else {"probe_interval": "0.1", "engine_idle_timeout": "2"}
    with FuzzTarget(tmp_path_factory.mktemp("fuzz"), **quick) as made:
        yield made


def test_every_role_has_a_key(world: FuzzTarget):
    assert set(world.keyless) <= UNMINTED
    assert set(world.keys) >= {"none", "wrong", *Role} - UNMINTED


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the strategy of all routes
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_garbage_input_breaks_no_promise(world: FuzzTarget, part: type[Part]):
    made = part(world)
    try:
        made.search(CASES[part.name], 1)
    finally:
        made.leave()
    world.ordinary()
    attempts = world.settle()
    world.log.check()
    assert made.cases >= CASES[part.name] * 0.9  # of few kinds of cases there are fewer
    if issubclass(part, FromEngine) and part.name != "selves":
        assert attempts > CASES[part.name] * 0.2
    if part is Roles:  # a 403 takes a rare argument of a route that the role may call
        assert {200, 400, 404} <= set(made.statuses)
    if part is Api:
        assert {200, 400, 401, 403} <= set(made.statuses)
    assert world.watch.failed == ""
    assert world.watch.slowest < SLOWEST
    assert world.watch.growth < GROWTH


# -- and it would see what it looks for


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, CODES["internal_error"]),
        (503, CODES["store_unavailable"]),
        (502, CODES["load_failed"]),
        (400, CODES["engine_failed"]),
    ],
)
def test_forbidden_errors_are_detected(status, body):
    name = next(name for name, code in CODES.items() if code is body)
    said = f'{{"error":{{"message":"","type":"","param":null,"code":"{name}"}}}}'.encode()
    with pytest.raises(BrokenPromiseError):
        check(Answer(status, said, "application/json"), ENGINE_TROUBLE)


@pytest.mark.parametrize(
    "body",
    [b"data: {}\n\n", b"data: {\n\ndata: [DONE]\n\n", b"x\n\ndata: [DONE]\n\n",
     b'data: {"error":{"code":"internal_error"}}\n\ndata: [DONE]\n\n',
     b'event: error\ndata: {"type":"error","code":"internal_error"}\n\nevent: response.failed\ndata: {}\n\n',
     b"event: response.created\ndata: {}\n\n"],
)  # fmt: skip
def test_invalid_streams_are_detected(body):
    with pytest.raises(BrokenPromiseError):
        check(Answer(200, body, "text/event-stream"), ENGINE_TROUBLE)


@pytest.mark.parametrize(
    "body",
    [b'data: {"a":"data: "}\n\ndata: [DONE]\n\n', b'event: response.completed\ndata: {"a":"x data: [DONE]"}\n\n',
     b'event: error\ndata: {"type":"error","code":"load_failed"}\n\nevent: response.failed\ndata: {}\n\n',
     b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":""}}\n\n'],
)  # fmt: skip
def test_sound_streams_of_every_dialect_pass(body):
    check(Answer(200, body, "text/event-stream"), ENGINE_TROUBLE)


def test_a_told_secret_is_seen():
    answer = Answer(404, b'{"error": {"message": "There is no adapter osprey/support."}}')
    check_secrets(answer, "GET /admin/v1/adapters/osprey/support", ["osprey"])
    with pytest.raises(BrokenPromiseError, match="tells"):
        check_secrets(answer, "GET /admin/v1/adapters/kestrel/support", ["osprey"])


def test_tracebacks_are_seen_once(tmp_path: Path):
    path = tmp_path / "log"
    log = Log(path)
    log.check()
    path.write_text(
        "2026-11-22 01:00:00 ERROR x: broke\n  Traceback (most recent call last):\n    a\n2026-11-22 y\n"
    )
    with pytest.raises(BrokenPromiseError, match=r"^in the log: 2026.*broke\n.*\n    a\n$"):
        log.check()
    log.check()


@pytest.mark.long
def test_an_attempt_without_a_record_is_seen(world: FuzzTarget, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadtests.fuzz.world.RECOVERY", 0.5)
    world.settle()
    world.engines.all[0].attempts.append("req-never-1")
    with pytest.raises(BrokenPromiseError, match=r"without a record: .*req-never-1"):
        world.settle()


@pytest.mark.long
def test_unresponsive_gateway_is_detected(world: FuzzTarget, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadtests.fuzz.world.RECOVERY", 0.5)
    refusing = Script((answer(b"{}", status=500),))
    world.engines.play({"/v1/chat/completions": refusing})
    try:
        with pytest.raises(BrokenPromiseError, match=r"an ordinary request failed"):
            world.ordinary()
    finally:
        world.engines.play({})
    monkeypatch.undo()
    world.ordinary()
    world.settle()
