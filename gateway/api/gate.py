"""Middleware in front of the admin and finance API: authentication, body limits, concurrency limits.

FastAPI reads and parses a body before it authenticates the sender. The gate reads nothing without the right
key, and then no more than the path's rule allows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI

from gateway.admission.complexity import check
from gateway.admission.owner_queue import OwnerQueue, QueueFullError, QueueTimeoutError
from gateway.api.access_rules import AccessRule, access_rules, rule_for
from gateway.api.responses import IDLE_SECONDS, ChunkedResponse, ClientStalledError
from gateway.config import Settings
from gateway.dataplane.exchange import ClientGoneError, Exchange, Message, Receive, Scope, Send, too_large
from gateway.errors import FlorinError
from gateway.lifecycle import authenticate
from gateway.operations.authorization import check_role
from gateway.operations.state import State
from gateway.tenants.directory import Key, Role

App = Callable[[Scope, Receive, Send], Awaitable[None]]

WAITING: Final = 4
"""Queries of one tenant that may wait."""
UNREAD: Final = 4
"""Responses to one tenant that may be in transmission: each occupies memory or a file."""
RUNNING: Final = 4
"""Queries of all tenants that may run at a time."""
WAITING_IN_TOTAL: Final = 64
UNREAD_IN_TOTAL: Final = 64
QUEUE_SECONDS: Final = 20.0


class Gate:
    """An ASGI application that guards the FastAPI application. One per worker, on its event loop."""

    def __init__(self, api: FastAPI, settings: Settings) -> None:
        self._api = api
        self._rules = access_rules(settings)
        self.idle = IDLE_SECONDS
        self._max_per_tenant = settings.tenant_reports + WAITING + UNREAD
        self.queue = OwnerQueue(
            running=max(RUNNING, settings.tenant_reports),
            running_each=settings.tenant_reports,
            waiting_each=WAITING,
            waiting=WAITING_IN_TOTAL,
            timeout=QUEUE_SECONDS,
        )
        # Mutable: tenants' queries, from their arrival until their responses are sent.
        self.open_requests: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        rule = rule_for(self._rules, scope["path"], scope["method"])
        exchange = Exchange(scope, receive, send)
        try:
            key = self._key(exchange, rule)
            receive = await _body(exchange, rule, receive)
            response = ChunkedResponse(exchange, send, idle=self.idle)
            if rule.queued:
                exchange.watch()
            async with self._queued(key, rule, response):
                await self._api(scope, receive, response.send)
        except FlorinError as error:
            await exchange.fail(error)
        except (ClientGoneError, ClientStalledError):
            pass
        except asyncio.CancelledError:
            if not exchange.hung_up:
                raise
        finally:
            exchange.close()

    def _key(self, exchange: Exchange, rule: AccessRule) -> Key | None:
        if rule.roles is None:
            return None
        state: State = self._api.state.florin
        key = authenticate(exchange, state.directory, state.follower)
        check_role(key, *sorted(rule.roles))
        return key

    @asynccontextmanager
    async def _queued(
        self, key: Key | None, rule: AccessRule, response: ChunkedResponse
    ) -> AsyncGenerator[None]:
        """A tenant's query waits for a permit, which it releases when the response starts."""
        if key is None or key.role is not Role.TENANT or not rule.queued:
            yield
            return
        if self.open_requests[key.tenant] >= self._max_per_tenant:
            raise _too_many()
        if self.open_requests.total() >= RUNNING + WAITING_IN_TOTAL + UNREAD_IN_TOTAL:
            raise _full()
        self.open_requests[key.tenant] += 1
        try:
            async with self.queue.acquire(key.tenant) as permit:
                response.on_start = permit.release
                yield
        except QueueFullError:
            raise _too_many() from None
        except QueueTimeoutError:
            raise _full() from None
        finally:
            self.open_requests[key.tenant] -= 1
            self.open_requests += Counter()  # drops zero counts


async def _body(exchange: Exchange, rule: AccessRule, receive: Receive) -> Receive:
    """The `receive` for the route. Unless the route streams the body, it has been read and checked."""
    body = rule.body
    if rule.roles is None:
        return _counted(exchange, receive, body.limit)
    if body.complexity is None:
        exchange.refuse_longer(body.limit)
        return _counted(exchange, receive, body.limit)
    if not (exchange.declares_body() or rule.queued):
        return receive
    whole = await exchange.body(body.limit)
    check(whole, body.complexity)
    return _replay(whole, receive)


def _counted(exchange: Exchange, receive: Receive, limit: int) -> Receive:
    """A `receive` that raises FlorinError beyond the limit. Routes that stream the body let it propagate."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body"):
            exchange.read()
        return message

    return counted


def _replay(whole: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was read, and then what follows: the disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given, whole
        if given:
            return await receive()
        given, body, whole = True, whole, b""
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _too_many() -> FlorinError:
    return FlorinError(
        "too_many_reports",
        "This tenant has too many finance queries running, waiting or unread.",
        retry_after=2,
    )


def _full() -> FlorinError:
    return FlorinError("worker_full", "This worker has too many finance queries.", retry_after=5)
