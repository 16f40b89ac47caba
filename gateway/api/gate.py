"""Middleware in front of the admin and finance API: authentication, body limits, concurrency limits.

FastAPI reads and parses a body before it authenticates the sender. The gate reads nothing without the right
key, and then no more than the path's rule allows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from fastapi import FastAPI

from gateway.admission.complexity import check
from gateway.api.access_rules import AccessRule, Queue, access_rules, rule_for
from gateway.api.responses import IDLE_SECONDS, ChunkedResponse, ClientStalledError
from gateway.api.security_headers import security_headers
from gateway.api.tenant_queues import tenant_queues
from gateway.config import Settings
from gateway.dataplane.asgi import SESSION_KEY, AsgiRequest, Message, Receive, Scope, Send
from gateway.dataplane.exchange import ClientGoneError, Exchange, too_large
from gateway.errors import FlorinError
from gateway.operations.authorization import check_role
from gateway.operations.state import State
from gateway.tenants.authentication import authenticate, looks_like_token, unknown_key
from gateway.tenants.directory import Key, Role

if TYPE_CHECKING:
    from gateway.tenants.host_tokens import HostTokens
    from gateway.tenants.people.verification import People

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI application that guards the FastAPI application. One per worker, on its event loop."""

    def __init__(self, api: FastAPI, settings: Settings) -> None:
        self._api = api
        self._rules = access_rules(settings)
        self.idle = IDLE_SECONDS
        self.queues = tenant_queues(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        scope = _as_routed(scope)
        rule = rule_for(self._rules, scope["path"], scope["method"])
        exchange = Exchange(AsgiRequest(scope, receive, send), session_key=scope.get(SESSION_KEY))
        try:
            key = await self._key(exchange, rule, scope)
            receive = await _body(exchange, rule, receive)
            response = ChunkedResponse(exchange, send, idle=self.idle)
            if rule.queue is Queue.REPORTS:
                exchange.watch()
            with exchange.scope:
                async with self._turn(key, rule, response):
                    await self._api(scope, receive, response.send)
        except FlorinError as error:
            exchange.extra_headers = security_headers(scope["path"])
            await exchange.fail(error)
        except (ClientGoneError, ClientStalledError):
            pass
        finally:
            exchange.close()

    def _turn(
        self, key: Key | None, rule: AccessRule, response: ChunkedResponse
    ) -> AbstractAsyncContextManager[None]:
        if key is None or key.own_tenant is None or rule.queue is None:
            return nullcontext()
        return self.queues[rule.queue].turn(key.own_tenant, response)

    async def _key(self, exchange: Exchange, rule: AccessRule, scope: Scope) -> Key | None:
        if rule.roles is None:
            return None
        state: State = self._api.state.florin
        bearer = exchange.bearer()
        issuer = _issuer(state, rule.roles, bearer)
        if issuer is not None and looks_like_token(bearer) and not state.directory.find(bearer):
            exchange.session_key = scope[SESSION_KEY] = await _identified(issuer, exchange, state)
        key = authenticate(exchange, state.directory, state.follower)
        check_role(key, *sorted(rule.roles))
        if key.is_stored:
            state.lifecycle.activity.used(key.id)
        return key


def _as_routed(scope: Scope) -> Scope:
    """What the routes are compared with: HEAD is GET, whose body the server leaves out, and a slash at the
    end of the path does not matter."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    return {**scope, "method": method, "path": scope["path"].rstrip("/") or "/"}


def _issuer(state: State, roles: frozenset[Role], bearer: bytes) -> People | HostTokens | None:
    """Whose tokens the route takes: hosts' alone, people's, or where a controller may call it, either."""
    hosts = state.host_tokens
    if Role.ENROLMENT in roles:
        return hosts
    if Role.CONTROLLER in roles and hosts is not None and hosts.may_be_controller(bearer):
        return hosts
    return state.people


async def _identified(issuer: People | HostTokens, exchange: Exchange, state: State) -> Key:
    """Raises FlorinError, also for too many tokens of this client that are not valid."""
    try:
        return await issuer.identify(exchange.bearer())
    except FlorinError as error:
        if error.code != "invalid_token":
            raise
        client = exchange.transport.client
        raise unknown_key(state.directory, client, error.message, error.code) from error


async def _body(exchange: Exchange, rule: AccessRule, receive: Receive) -> Receive:
    """The `receive` for the route. Unless the route streams the body, it has been read and checked."""
    body = rule.body
    if body.complexity is None:
        if body.limit:
            exchange.refuse_longer(body.limit)
        return _counted(exchange, receive, body.limit)
    if not (exchange.declares_body() or rule.queue is Queue.REPORTS):
        return receive
    content = await exchange.body(body.limit)
    check(content, body.complexity)
    return _replay(content, receive)


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


def _replay(content: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body that was read, and then what follows: the disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given, content
        if given:
            return await receive()
        given, body, content = True, content, b""
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
