"""What is sent, part by part: a strategy of cases, and what one case must come to."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from loadtests.fuzz import answers, client, openapi
from loadtests.fuzz.hostile import Script
from loadtests.fuzz.judge import ENGINE_TROUBLE, NOTHING, Answer, BrokenPromiseError, check
from loadtests.fuzz.world import TENANTS, FuzzTarget

LOGGED = 0.1
"""Seconds until what went wrong is in the log."""
PATIENCE = 60.0
"""Seconds until an engine must have been probed: generous, for busy machines."""


class Part(ABC):
    name: ClassVar[str]
    about: ClassVar[str]

    def __init__(self, world: FuzzTarget) -> None:
        self.world = world
        self.cases = 0
        self.statuses: dict[int, int] = {}

    @abstractmethod
    def strategy(self) -> SearchStrategy[Any]: ...

    @abstractmethod
    def send(self, case: Any) -> list[tuple[Answer, frozenset[str]]]:
        """What came back, each with the codes of server errors that have their cause in the case."""

    def search(self, number: int, seed_: int) -> None:
        """So many cases, the same for the same seed. Raises BrokenPromiseError for what breaks a promise,
        with the smallest case that does."""

        @seed(seed_)
        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
        )
        @given(case=self.strategy())
        def one(case: Any) -> None:
            self.cases += 1
            for answer, allowed in self.send(case):
                self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
                try:
                    check(answer, allowed)
                except BrokenPromiseError as error:
                    time.sleep(LOGGED)
                    raise BrokenPromiseError(f"{error}\n{self.world.log.news()}") from error
            self.world.log.check()

        one()
        self.world.log.check()

    @abstractmethod
    def leave(self) -> None:
        """Leave the world as it was found."""


class FromClient(Part):
    def leave(self) -> None:
        """A client leaves nothing behind."""


class Bodies(FromClient):
    name = "bodies"
    about = "JSON and what is none, to the data plane"

    def strategy(self) -> SearchStrategy[client.Body]:
        return client.bodies()

    def send(self, case: client.Body) -> list[tuple[Answer, frozenset[str]]]:
        return [(self.world.caller.post(case.path, case.content, self.world.keys["tenant"]), frozenset())]


class Wires(FromClient):
    name = "wire"
    about = "requests byte by byte, to any path, by every role"

    def strategy(self) -> SearchStrategy[client.Wire]:
        return client.wires(list(self.world.keys.values()))

    def send(self, case: client.Wire) -> list[tuple[Answer, frozenset[str]]]:
        return [(a, frozenset()) for a in client.play(self.world.host, self.world.port, case)]


class FromEngine(Part):
    """Hostile engines; a customer's request meets their answer."""

    def __init__(self, world: FuzzTarget) -> None:
        super().__init__(world)
        self._turn = 0
        keys = [world.keys["tenant"]]
        for tenant in TENANTS[1:]:
            made = world.gateway.call("POST", "/admin/v1/keys", {"tenant": tenant, "role": "tenant"})
            keys.append(made["key"])
        self._keys = keys

    def play(self, case: answers.Case, scripts: dict[str, Script]) -> list[tuple[Answer, frozenset[str]]]:
        self._turn += 1
        self.world.engines.play(scripts)
        body = {"model": "support", "stream": case.stream, "n": case.n} | client.BASES[case.path]
        key = self._keys[self._turn % len(self._keys)]
        answer = self.world.caller.post(case.path, json.dumps(body).encode(), key)
        return [(answer, ENGINE_TROUBLE)]

    def leave(self) -> None:
        self.world.engines.play({})


class Answers(FromEngine):
    name = "answers"
    about = "what engines answer to a request that is not streamed"

    def strategy(self) -> SearchStrategy[answers.Case]:
        return answers.answers()

    def send(self, case: answers.Case) -> list[tuple[Answer, frozenset[str]]]:
        return self.play(case, {case.path: case.script})


class Streams(Answers):
    name = "streams"
    about = "the events of engines, mutated, cut and joined"

    def strategy(self) -> SearchStrategy[answers.Case]:
        return answers.streams()


class Selves(FromEngine):
    name = "selves"
    about = "what engines say of themselves: /health, /metrics, /v1/models"

    def strategy(self) -> SearchStrategy[dict[str, Script]]:
        return answers.selves()

    def send(self, case: dict[str, Script]) -> list[tuple[Answer, frozenset[str]]]:
        self.world.engines.play(case)
        self.world.engines.looked_at("/metrics" if "/health" not in case else "/health", PATIENCE)
        operator = self.world.gateway.operator_key
        return [
            (self.world.caller.get(path, operator), NOTHING) for path in ("/metrics", "/admin/v1/engines")
        ]


class Api(Part):
    name = "api"
    about = "every operation of the OpenAPI description, by every role"

    def __init__(self, world: FuzzTarget) -> None:
        super().__init__(world)
        self._api = openapi.Api(world.gateway.url, world.session, world.keys)

    def strategy(self) -> SearchStrategy[openapi.Request]:
        return self._api.requests()

    def send(self, case: openapi.Request) -> list[tuple[Answer, frozenset[str]]]:
        return [(self._api.send(case), ENGINE_TROUBLE)]

    def leave(self) -> None:
        self.world.heal()


PARTS: tuple[type[Part], ...] = (Bodies, Wires, Answers, Streams, Selves, Api)
"""In this order: the last may change the registry as it likes."""
