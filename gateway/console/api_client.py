"""The admin and finance API and the data plane, called in this process on behalf of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import orjson

from gateway.dataplane.asgi import SESSION_KEY, Message, Receive, Scope, Send
from gateway.errors import CODES
from gateway.schemas.base import Answer
from gateway.tenants.directory import Key

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Json = dict[str, Any]
A = TypeVar("A", bound=Answer)

_MOST_BYTES: Final = 32 * 1024 * 1024
"""The limit on one answer that a page reads whole."""


class ApiError(Exception):
    """The API refused. `remedy` is what the error's code says to do."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, findings: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.findings = findings

    @property
    def remedy(self) -> str:
        known = CODES.get(self.code)
        return known.remedy if known else ""


@dataclass(slots=True)
class RawAnswer:
    """Mutable while it arrives."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    def json(self) -> Any:
        return orjson.loads(self.body) if self.body else None


class ApiClient:
    """Calls `app` as if the session's key had been sent. Raises ApiError for anything but success."""

    def __init__(
        self, app: Asgi, key: Key | None, client: tuple[str, int] | None = None, authorization: bytes = b""
    ) -> None:
        """`key`: of the session; None: `authorization` is sent instead. `client`: address and port of the
        browser, for the access log."""
        self._app = app
        self._key = key
        self._client = client
        self._authorization = authorization

    # Each returns what the API answers. Parameters that are None are left out; lists are repeated.

    async def get(self, path: str, answer: type[A], **query: Any) -> A:
        return await self._ask("GET", path, None, answer, query)

    async def post(self, path: str, body: object, answer: type[A], **query: Any) -> A:
        return await self._ask("POST", path, body, answer, query)

    async def put(self, path: str, body: object, answer: type[A], **query: Any) -> A:
        return await self._ask("PUT", path, body, answer, query)

    async def patch(self, path: str, body: object, answer: type[A], **query: Any) -> A:
        return await self._ask("PATCH", path, body, answer, query)

    async def delete(self, path: str, answer: type[A], **query: Any) -> A:
        return await self._ask("DELETE", path, None, answer, query)

    async def _ask(
        self, method: str, path: str, body: object, answer: type[A], query: Mapping[str, Any]
    ) -> A:
        sent = await self.call(method, path, body, query=query)
        await asyncio.sleep(0)  # a long one has taken its time to arrive, and takes as much to be parsed
        return answer.model_validate_json(sent.body)

    async def call(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, Any] | None = None
    ) -> RawAnswer:
        content = b"" if body is None else orjson.dumps(body)
        sent, over = False, asyncio.Event()

        async def receive() -> Message:
            nonlocal sent
            if sent:
                await over.wait()  # a disconnect would cancel the request
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": content, "more_body": False}

        headers = [] if body is None else [(b"content-type", b"application/json")]
        headers.append((b"content-length", b"%d" % len(content)))
        try:
            return await self.stream(method, path, receive, headers, query=query)
        finally:
            over.set()

    async def stream(
        self,
        method: str,
        path: str,
        receive: Receive,
        headers: list[tuple[bytes, bytes]],
        *,
        query: Mapping[str, Any] | None = None,
    ) -> RawAnswer:
        """The same with a body of any length, which is read as it comes. A refusal may leave some of it
        unread."""
        answer = RawAnswer()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")
                if len(answer.body) > _MOST_BYTES:
                    raise ApiError(500, "internal_error", "The answer is too long for a page. Use the API.")

        await self._app(self._scope(method, path, query, headers), receive, send)
        if answer.status >= 400:
            raise _error(answer)
        return answer

    async def forward(
        self,
        method: str,
        path: str,
        receive: Receive,
        send: Send,
        *,
        query: Mapping[str, Any] | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Let the API answer the browser itself: downloads, streams and uploads, whatever their size."""
        await self._app(self._scope(method, path, query, headers or []), receive, send)

    def _scope(
        self, method: str, path: str, query: Mapping[str, Any] | None, headers: list[tuple[bytes, bytes]]
    ) -> Scope:
        if self._authorization:
            headers = [*headers, (b"authorization", self._authorization)]
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(given, doseq=True).encode(),
            "root_path": "",
            "headers": headers,
            "client": self._client,
            "server": None,
            SESSION_KEY: self._key,
        }


async def maybe(answer: Awaitable[Any]) -> tuple[Any, ApiError | None]:
    """What the API answers, or why it does not: for a part without which a page is still worth showing."""
    try:
        return await answer, None
    except ApiError as error:
        return None, error


async def nothing() -> None:
    """For `gather`: what the visitor does not see."""


def _error(answer: RawAnswer) -> ApiError:
    try:
        error = orjson.loads(answer.body)["error"]
        findings = tuple(error.get("findings") or ())
        return ApiError(answer.status, error["code"], error["message"], error.get("param"), findings)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return ApiError(answer.status, "internal_error", f"The API answered with status {answer.status}.")
