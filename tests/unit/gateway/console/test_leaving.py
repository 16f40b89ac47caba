"""A page that nobody waits for any more stops asking."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.console.console import unless_gone


def request(method: str, *messages: str) -> Request:
    """From somebody who sends these messages, and then waits."""
    coming = list(messages)

    async def receive() -> dict[str, object]:
        if not coming:
            await asyncio.Event().wait()
        return {"type": coming.pop(0), "body": b"", "more_body": False}

    return Request({"type": "http", "method": method, "headers": [], "path": "/"}, receive)


async def test_who_leaves_ends_what_the_page_asks_for():
    ended = []

    async def asking() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return Response()

    with pytest.raises(ClientDisconnect):
        await unless_gone(request("GET", "http.request", "http.disconnect"), asking())
    assert ended == [True]


async def test_what_is_answered_is_answered():
    async def answer() -> Response:
        return Response("here")

    assert (await unless_gone(request("GET", "http.request"), answer())).body == b"here"
    # A change is finished, whoever waits for it.
    assert (await unless_gone(request("POST", "http.disconnect"), answer())).body == b"here"


async def test_an_error_is_passed_on():
    async def fail() -> Response:
        raise LookupError("nothing")

    with pytest.raises(LookupError, match="nothing"):
        await unless_gone(request("GET", "http.request"), fail())
