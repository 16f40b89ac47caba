"""The parts of the fuzzer: each has a strategy of cases and runs one case."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar
from urllib.parse import unquote

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from gateway.tenants.directory import TENANT_ROLES
from loadtests.fuzz import answers, client, openapi
from loadtests.fuzz.hostile import Script
from loadtests.fuzz.judge import ENGINE_TROUBLE, NOTHING, Answer, BrokenPromiseError, check, check_secrets
from loadtests.fuzz.world import TENANTS, FuzzTarget

LOGGED = 0.1
"""Seconds until an error is in the log."""
PATIENCE = 60.0
"""Seconds until an engine must have been probed; generous, for busy machines."""


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
        """The responses, each with the server error codes that the case may cause."""

    def search(self, number: int, seed_: int) -> None:
        """Run `number` cases, deterministic in the seed. Raises BrokenPromiseError with the smallest failing
        case."""

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
        """Restore the world."""


class FromClient(Part):
    def leave(self) -> None:
        """Nothing to restore."""


class Bodies(FromClient):
    name = "bodies"
    about = "valid and invalid JSON to the data plane"

    def strategy(self) -> SearchStrategy[client.Body]:
        return client.bodies()

    def send(self, case: client.Body) -> list[tuple[Answer, frozenset[str]]]:
        return [(self.world.caller.post(case.path, case.content, self.world.keys["tenant"]), frozenset())]


class Wires(FromClient):
    name = "wire"
    about = "requests byte by byte, to any path, with every role"

    def strategy(self) -> SearchStrategy[client.Wire]:
        return client.wires(list(self.world.keys.values()))

    def send(self, case: client.Wire) -> list[tuple[Answer, frozenset[str]]]:
        return [(a, frozenset()) for a in client.play(self.world.host, self.world.port, case)]


class FromEngine(Part):
    """Hostile engines, whose answers are sent to a customer's request."""

    def __init__(self, world: FuzzTarget) -> None:
        super().__init__(world)
        self._turn = 0
        keys = [world.keys["tenant"]]
        for tenant in TENANTS[1:]:
            key = world.gateway.call("POST", "/admin/v1/keys", {"tenant": tenant, "role": "tenant"})
            keys.append(key["key"])
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
    about = "engines' answers to requests that are not streamed"

    def strategy(self) -> SearchStrategy[answers.Case]:
        return answers.answers()

    def send(self, case: answers.Case) -> list[tuple[Answer, frozenset[str]]]:
        return self.play(case, {case.path: case.script})


class Streams(Answers):
    name = "streams"
    about = "engines' event streams, mutated, cut and joined"

    def strategy(self) -> SearchStrategy[answers.Case]:
        return answers.streams()


class Selves(FromEngine):
    name = "selves"
    about = "engines' /health, /metrics and /v1/models"

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
    about = "every operation in the OpenAPI description, with every role"

    def __init__(self, world: FuzzTarget) -> None:
        super().__init__(world)
        self._api = openapi.Api(world.gateway.url, world.session, world.keys)

    def strategy(self) -> SearchStrategy[openapi.Request]:
        return self._api.requests()

    def send(self, case: openapi.Request) -> list[tuple[Answer, frozenset[str]]]:
        return [(self._api.send(case), ENGINE_TROUBLE)]

    def leave(self) -> None:
        self.world.heal()


class Roles(Part):
    """Customers' keys must not be told anything about other customers and about the fleet."""

    name = "roles"
    about = "every operation that a customer's key may call, and what its answers tell"

    def __init__(self, world: FuzzTarget) -> None:
        super().__init__(world)
        self._api = openapi.Api(world.gateway.url, world.session, world.keys)
        own, *others = TENANTS
        listed = world.gateway.call("GET", "/admin/v1/keys")["data"]
        foreign = [key["id"] for key in listed if key["tenant"] != own]
        versions = [
            version
            for tenant in others
            for version in world.gateway.call("GET", f"/admin/v1/adapters/{tenant}/support/versions")["data"]
        ]
        self._names = {
            "tenant": [*TENANTS, "nobody"],
            "name": ["support", "other"],
            "version": ["v1", "v2"],
            "adapter": [f"{tenant}/support" for tenant in TENANTS],
            "subject": [f"{tenant}/*" for tenant in TENANTS],
            "key_id": [*foreign, "000000000000"],
        }
        self._secrets = [
            *others,
            *foreign,
            *(version[field] for version in versions for field in ("digest", "engine_name", "path")),
            *(engine.url.removeprefix("http://") for engine in world.engines.all),
            str(world.directory),
        ]

    def strategy(self) -> SearchStrategy[openapi.Request]:
        return self._api.requests_of(TENANT_ROLES, self._names)

    def send(self, case: openapi.Request) -> list[tuple[Answer, frozenset[str]]]:
        answer = self._api.send(case)
        check_secrets(answer, unquote(case.case.as_curl_command()), self._secrets)
        return [(answer, ENGINE_TROUBLE)]

    def leave(self) -> None:
        self.world.heal()


PARTS: tuple[type[Part], ...] = (Bodies, Wires, Answers, Streams, Selves, Roles, Api)
"""In this order, because the last part may change the registry arbitrarily."""
