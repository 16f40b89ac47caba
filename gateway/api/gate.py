"""The gate before the admin side: who is asking, with what, and whether it is their turn, in this order and
before the framework sees the request.

FastAPI reads and parses a body before it asks who sent it. Here nothing is read for anybody without the right
key, and afterwards no more than the area allows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI

from gateway.admission.complexity import check
from gateway.admission.turns import NoTurnError, QueueFullError, Turns
from gateway.api.access_rules import AccessRule, area_of, areas
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
"""Questions of one tenant that wait for their turn."""
UNREAD: Final = 4
"""Answers to one tenant that are being sent: each is in memory, or a file."""
RUNNING: Final = 4
"""Questions of all tenants that run at once."""
WAITING_IN_ALL: Final = 64
UNREAD_IN_ALL: Final = 64
PATIENCE_SECONDS: Final = 20.0


class Gate:
    def __init__(self, api: FastAPI, settings: Settings) -> None:
        self._api = api
        self._areas = areas(settings)
        self.idle = IDLE_SECONDS
        self._most_of_one = settings.tenant_reports + WAITING + UNREAD
        self.turns = Turns(
            running=max(RUNNING, settings.tenant_reports),
            each=settings.tenant_reports,
            waiting=WAITING,
            waiting_in_all=WAITING_IN_ALL,
            patience=PATIENCE_SECONDS,
        )
        # Mutable: tenants' questions, from their coming until their answers are sent.
        self.present: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        area = area_of(self._areas, scope["path"], scope["method"])
        exchange = Exchange(scope, receive, send)
        try:
            key = self._key(exchange, area)
            receive = await _body(exchange, area, receive)
            answer = ChunkedResponse(exchange, send, idle=self.idle)
            if area.turns:
                exchange.watch()
            async with self._visit(key, area, answer):
                await self._api(scope, receive, answer.send)
        except FlorinError as error:
            await exchange.fail(error)
        except (ClientGoneError, ClientStalledError):
            pass
        except asyncio.CancelledError:
            if not exchange.hung_up:
                raise
        finally:
            exchange.close()

    def _key(self, exchange: Exchange, area: AccessRule) -> Key | None:
        if area.roles is None:
            return None
        state: State = self._api.state.florin
        key = authenticate(exchange, state.directory, state.follower)
        check_role(key, *sorted(area.roles))
        return key

    @asynccontextmanager
    async def _visit(
        self, key: Key | None, area: AccessRule, answer: ChunkedResponse
    ) -> AsyncGenerator[None]:
        """A tenant's question waits for its turn, which ends when the answer begins."""
        if key is None or key.role is not Role.TENANT or not area.turns:
            yield
            return
        if self.present[key.tenant] >= self._most_of_one:
            raise _too_many()
        if self.present.total() >= RUNNING + WAITING_IN_ALL + UNREAD_IN_ALL:
            raise _full()
        self.present[key.tenant] += 1
        try:
            async with self.turns.take(key.tenant) as turn:
                answer.on_start = turn.end
                yield
        except QueueFullError:
            raise _too_many() from None
        except NoTurnError:
            raise _full() from None
        finally:
            self.present[key.tenant] -= 1
            self.present += Counter()  # drops those that are 0


async def _body(exchange: Exchange, area: AccessRule, receive: Receive) -> Receive:
    """What the route receives: of a body that is not streamed, all, read and checked."""
    body = area.body
    if area.roles is None:
        return _counted(exchange, receive, body.limit)
    if body.complexity is None:
        exchange.refuse_longer(body.limit)
        return _counted(exchange, receive, body.limit)
    if not (exchange.declares_body() or area.turns):
        return receive
    whole = await exchange.body(body.limit)
    check(whole, body.complexity)
    return _again(whole, receive)


def _counted(exchange: Exchange, receive: Receive, limit: int) -> Receive:
    """Raises FlorinError in whoever reads more. (Routes that read as they like pass it on.)"""
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


def _again(whole: bytes, receive: Receive) -> Receive:
    """What has been read once more, and then whatever comes: the client's hanging up."""
    given = False

    async def again() -> Message:
        nonlocal given, whole
        if given:
            return await receive()
        given, body, whole = True, whole, b""
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _too_many() -> FlorinError:
    return FlorinError(
        "too_many_reports", "Too many questions of this tenant are running, waiting or unread.", retry_after=2
    )


def _full() -> FlorinError:
    return FlorinError("worker_full", "Too many tenants are asking for reports.", retry_after=5)
