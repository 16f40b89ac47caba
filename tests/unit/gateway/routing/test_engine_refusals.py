"""What an operator learns of requests that engines refuse."""

from __future__ import annotations

import logging

import pytest

from gateway.routing.engine_messages import refusal
from gateway.routing.engine_refusals import LOG_SECONDS, SHOWN_SECONDS, EngineRefusals
from tests.unit.gateway.routing.test_engine_messages import LONG_PROMPT, NO_PARSER, NO_TOOLS


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.refusals = EngineRefusals(clock=lambda: self.now)

    def refuse(self, message: str, engine: str = "a") -> None:
        error = {"message": message}
        self.refusals.note(engine, error, refusal(error))


def test_a_missing_flag_is_shown_for_an_hour_after_the_last_request_that_needed_it():
    world = World()
    world.refuse(NO_TOOLS, "b")
    world.refuse(NO_PARSER)
    world.now += SHOWN_SECONDS / 2
    world.refuse(NO_TOOLS)
    shown = [(c.code, c.subject) for c in world.refusals.conditions()]
    assert shown == [("engine_lacks_flag", name) for name in ("a", "a", "b")]
    world.now += SHOWN_SECONDS / 2
    [left] = world.refusals.conditions()
    assert "--tool-call-parser" in left.message
    world.now += SHOWN_SECONDS / 2
    assert not list(world.refusals.conditions())


def test_each_reason_that_clients_are_not_told_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture):
    world = World()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            world.refuse(NO_TOOLS)
            world.refuse("Failed to load vllm.platforms: secret")
            world.refuse("'secret' in /srv/models/base")
            world.refuse(LONG_PROMPT)
            world.refuse("Token id 1000000 is out of vocabulary")
            world.now += LOG_SECONDS / 2
        assert [record.getMessage() for record in caplog.records] == [
            "Engine a refuses requests: it was started without --enable-auto-tool-choice and --tool-call-parser",
            "Engine a refused a request: Failed to load vllm.platforms",
        ]
        world.refuse("'secret' in /srv/models/base")
        assert "quotes the request" in caplog.messages[-1]
        assert "secret" not in caplog.text
