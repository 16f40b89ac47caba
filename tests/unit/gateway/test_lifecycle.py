"""How a request's story ends, whatever happens in it: what the client hears, what is counted, what is let go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from adapters.errors import StoreUnavailableError
from gateway.dataplane.asgi import AsgiRequest
from gateway.dataplane.exchange import ClientGoneError, Exchange
from gateway.dataplane.request import CHAT
from gateway.delivery import Delivery, Request
from gateway.errors import FlorinError
from gateway.lifecycle import Lifecycle
from gateway.routing.upstream import RetryElsewhere
from gateway.runtime.cancel_scope import CancelScope
from gateway.tenants.limits.grant import UNLIMITED


@dataclass
class Recording:
    """Stands for metrics, meter and router. Mutable: what they were told."""

    errors: list[str] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    failovers: list[str] = field(default_factory=list)
    learned: list[str] = field(default_factory=list)
    resumed: int = 0
    revoked: bool = False
    leases: list[SimpleNamespace] = field(default_factory=list)

    def error(self, code: str) -> None:
        self.errors.append(code)

    def client_abort(self, where: str) -> None:
        self.aborts.append(where)

    def failover(self, reason: str) -> None:
        self.failovers.append(reason)

    async def settled(self) -> None:
        pass

    def authenticate(self, _exchange: Exchange) -> None:
        if self.revoked:
            raise FlorinError("revoked_api_key", "This API key has been revoked.")

    def place_at_once(self, _state: object) -> None:
        """Nothing is there at once."""

    async def place(self, _state: object) -> SimpleNamespace:
        lease = SimpleNamespace(begun=False, ends=0, scope=CancelScope())
        lease.end = lambda: setattr(lease, "ends", lease.ends + 1)
        self.leases.append(lease)
        return lease

    def record_failure(self, _state: object, _lease: object, trouble: RetryElsewhere) -> None:
        self.learned.append(trouble.reason)
        if len(self.learned) == 3:
            raise FlorinError("engine_failed", "Enough.")

    def resume(self, _state: object) -> None:
        self.resumed += 1


async def act(script: list[Any], exchange: Exchange) -> None:
    step = script.pop(0)
    if isinstance(step, BaseException):
        raise step
    await step(exchange)


class ScriptedLifecycle(Lifecycle):
    """`serve` does as told."""

    def __init__(self, seen: Recording, *does: Any) -> None:
        self.metrics = self.meter = seen  # type: ignore[assignment]
        self.tracing = None
        self.script = list(does)

    async def serve(self, exchange: Exchange, endpoint: object) -> None:  # type: ignore[override]
        await act(self.script, exchange)


class ScriptedDelivery(Delivery):
    """`attempt` does as told."""

    def __init__(self, seen: Recording, *does: Any) -> None:
        self.metrics = self.router = self.retries = seen  # type: ignore[assignment]
        self.authenticate = seen.authenticate
        self.script = list(does)

    def note_decision(self, request: Request, lease: object) -> None:  # type: ignore[override]
        pass

    async def attempt(self, request: Request, lease: object) -> None:  # type: ignore[override]
        await act(self.script, request.exchange)


class Client:
    """The other end of one exchange. Mutable: what it was sent."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.sent: list[dict[str, Any]] = []
        scope = {
            "path": "/v1/completions",
            "method": "POST",
            "headers": [(b"content-length", b"0"), *headers],
        }
        self.exchange = Exchange(AsgiRequest(scope, self._receive, self._send))  # type: ignore[arg-type]
        self.places = 0
        self.exchange.reservation = SimpleNamespace(  # type: ignore[assignment]
            hold=lambda _: None, release=lambda: setattr(self, "places", self.places + 1)
        )

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def error(self) -> dict[str, Any]:
        return orjson.loads(self.sent[-1]["body"])["error"]


@pytest.fixture
def seen() -> Recording:
    return Recording()


@pytest.fixture
def client() -> Client:
    return Client()


async def run(seen: Recording, client: Client, *does: Any) -> None:
    await ScriptedLifecycle(seen, *does).run(client.exchange, CHAT)


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (FlorinError("model_not_found", "No."), 404, "model_not_found"),
        (StoreUnavailableError("Redis is away."), 503, "store_unavailable"),
        (ValueError("a secret"), 500, "internal_error"),
        (asyncio.CancelledError(), 503, "shutting_down"),  # only the server cancels tasks
    ],
)
async def test_every_failure_is_one_answer_and_lets_go(seen, client, raised, status, code):
    await run(seen, client, raised)
    assert (client.status, client.error["code"]) == (status, code)
    assert len(client.sent) == 2
    assert "secret" not in client.error["message"]
    assert seen.errors == [code]
    assert client.places == 1


async def test_a_tenant_hears_nothing_of_what_is_behind_the_gateway(seen, client):
    await run(seen, client, StoreUnavailableError("Redis at 10.0.0.7 is away."))
    assert "Redis" not in client.error["message"]


async def test_a_client_that_leaves_before_the_end_of_its_body_hears_nothing(seen, client):
    await run(seen, client, ClientGoneError())
    assert (client.sent, seen.aborts, seen.errors, client.places) == ([], ["body"], [], 1)


@pytest.mark.parametrize(
    ("attempts", "started", "where"), [(0, False, "waiting"), (1, False, "answer"), (1, True, "stream")]
)
async def test_hanging_up_is_counted_by_how_far_it_came(seen, client, attempts, started, where):
    async def hang_up(exchange: Exchange) -> None:
        exchange.read()
        exchange.answering = started
        exchange.context.attempts = attempts
        raise ClientGoneError

    await run(seen, client, hang_up)
    assert (client.sent, seen.aborts, seen.errors, client.places) == ([], [where], [], 1)


async def test_a_stream_that_has_begun_ends_with_the_error(seen, client):
    async def fail_midway(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.write(b"data: 1\n\n")
        raise FlorinError("stream_interrupted", "Gone.")

    await run(seen, client, fail_midway)
    start, _, last = client.sent
    assert start["status"] == 200
    assert b"stream_interrupted" in last["body"]
    assert last["body"].endswith(b"data: [DONE]\n\n")
    assert "more_body" not in last


async def test_what_has_been_answered_is_not_answered_again(seen, client):
    async def fail_after(exchange: Exchange) -> None:
        await exchange.respond(200, b"{}")
        raise RuntimeError

    await run(seen, client, fail_after)
    assert [m["type"] for m in client.sent] == ["http.response.start", "http.response.body"]
    assert client.status == 200


# -- attempts


async def deliver(seen: Recording, *does: Any, answer: Any = None) -> None:
    routing_state = SimpleNamespace(compared=())
    request = Request(Client().exchange, None, None, None, answer, routing_state, UNLIMITED)  # type: ignore[arg-type]  # unread
    await ScriptedDelivery(seen, *does).deliver(request)


async def answers(_exchange: Exchange) -> None:
    pass


def elsewhere(reason: str) -> RetryElsewhere:
    return RetryElsewhere(reason, "")


async def test_attempts_follow_each_other_until_one_answers(seen):
    await deliver(seen, elsewhere("died"), elsewhere("busy"), answers)
    assert seen.learned == seen.failovers == ["died", "busy"]
    assert [lease.ends for lease in seen.leases] == [1, 1, 1]
    assert seen.resumed == 0


@pytest.mark.parametrize(
    "end", [FlorinError("request_refused", "No."), asyncio.CancelledError(), ValueError()]
)
async def test_whatever_ends_an_attempt_ends_its_lease_and_no_other_follows(seen, end):
    with pytest.raises(type(end)):
        await deliver(seen, elsewhere("died"), end, answers)
    assert [lease.ends for lease in seen.leases] == [1, 1]


async def test_a_key_that_is_revoked_while_its_request_waits_is_refused_as_otherwise(seen):
    seen.revoked = True
    with pytest.raises(FlorinError, match="This API key has been revoked"):
        await deliver(seen, answers)
    assert [lease.ends for lease in seen.leases] == [1]


async def test_the_router_says_when_it_is_enough(seen):
    with pytest.raises(FlorinError, match="Enough"):
        await deliver(seen, *(elsewhere("died") for _ in range(5)))
    assert [lease.ends for lease in seen.leases] == [1, 1, 1]


async def test_an_answer_that_has_begun_goes_on_where_it_stopped(seen):
    async def breaks_off(_exchange: Exchange) -> None:
        seen.leases[-1].begun = True
        raise elsewhere("died")

    async def goes_on(exchange: Exchange) -> None:
        assert exchange.payload == b"the rest"

    await deliver(
        seen, breaks_off, goes_on, answer=SimpleNamespace(resume=lambda: b"the rest", end=lambda: None)
    )
    assert seen.resumed == 1
