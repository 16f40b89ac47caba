"""One request of a signed-in browser, as a page's handler receives it, and how pages declare themselves."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import orjson
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from gateway.console.api_client import ApiClient, ApiError
from gateway.console.tables import Column, TableView, exported, view
from gateway.dataplane.asgi import Message, Receive, Scope, Send
from gateway.tenants.directory import CONSOLE_ROLES, TENANT_ROLES, Key, Role
from gateway.tenants.sessions import Session

FLASH: Final = "florin_notice"
"""Cookie of what the next page says first: what an action did."""
_PING_SECONDS: Final = 15.0
_LIVE_SECONDS: Final = 600.0
"""After which a stream ends, and the browser connects again: a session that ended does not see more."""

ALL: Final = CONSOLE_ROLES
"""The roles that have a console."""
OPERATORS: Final = frozenset({Role.OPERATOR})
STAFF: Final = frozenset({Role.OPERATOR, Role.FINANCE})
BOOKS: Final = STAFF | {Role.AUDITOR}
"""Who reads the books of every tenant."""
MANAGERS: Final = frozenset({Role.OPERATOR, Role.TENANT_ADMIN})
AUDIT: Final = MANAGERS | {Role.AUDITOR}
CUSTOMERS: Final = TENANT_ROLES


class Renders(Protocol):
    """See `rendering.Renderer`."""

    def render(self, template: str, *, visit: Visit | None = None, **context: Any) -> str: ...


@dataclass(slots=True)
class Visit:
    request: Request
    session: Session
    key: Key
    api: ApiClient
    renderer: Renders
    streams: LiveStreams
    models: Callable[[Key], ApiClient]
    """The data plane, called under this key."""
    now: int
    """Unix microseconds."""
    sections: Mapping[str, frozenset[Role]]
    """The navigation: path below /console → who has it."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Those of the path."""
    form: FormData = field(default_factory=FormData)
    """The fields of a POST, unless its route reads the body itself."""

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def role(self) -> Role:
        return self.key.role

    @property
    def keeps_books(self) -> bool:
        """Whether the visitor may change prices, budgets and months. Others get no forms for that."""
        return self.role in STAFF

    @property
    def tenant(self) -> str | None:
        """The only tenant that the visitor sees; None: all."""
        return self.key.own_tenant

    def reaches(self, href: str) -> bool:
        """Whether the visitor has the part of the console that this leads to. Other pages are not linked."""
        section = "/" + href.removeprefix("/console/").partition("/")[0].partition("?")[0]
        return self.role in self.sections.get(section, ALL)

    def text(self, name: str) -> str:
        """A field of the form, without surrounding blanks; empty if it is absent or a file."""
        content = self.form.get(name, "")
        return content.strip() if isinstance(content, str) else ""

    def page(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """A whole page, or with a template that extends nothing, a part of one."""
        response = HTMLResponse(self.renderer.render(template, visit=self, **context), status)
        if FLASH in self.request.cookies:
            response.delete_cookie(FLASH, path="/console")
        return response

    def notice(self) -> str:
        """What the action before this page did, if it left word."""
        try:
            message = orjson.loads(base64.urlsafe_b64decode(self.request.cookies.get(FLASH, "")))
        except ValueError:  # binascii's and orjson's errors are ones
            return ""
        return message[:500] if isinstance(message, str) else ""

    def see(self, path: str, notice: str = "") -> Response:
        """Redirect after an action. `notice`: what it did, for the next page to say."""
        response = RedirectResponse(path, 303)
        if notice:
            text = base64.urlsafe_b64encode(orjson.dumps(notice[:500])).decode()
            response.set_cookie(FLASH, text, max_age=60, path="/console", httponly=True, samesite="strict")
        return response

    def table(self, columns: list[Column], rows: Sequence[Any], **options: Any) -> TableView:
        """Rows sorted, filtered and paged as the URL says. See `tables.view`."""
        return view(columns, rows, self.query, path=self.request.url.path, **options)

    def export(self, table: TableView, name: str) -> Response | None:
        """The whole table as CSV or JSON if the URL asks for it with `format`."""
        file = exported(table, self.query.get("format", ""))
        if file is None:
            return None
        body, media, suffix = file
        headers = {"content-disposition": f'attachment; filename="{name}.{suffix}"'}
        return Response(body, media_type=media, headers=headers)

    async def live(self, draw: Callable[[], Awaitable[str]], *, every: float = 1.0) -> Response:
        """A stream of server-sent events: the HTML that `draw` returns, whenever it changes. `every`: seconds
        between two looks, at least one."""
        return await self.streams.open(self.session, draw, max(every, 1.0))


class Forwarded(Response):
    """The answer of the API or the data plane itself, passed on as it comes: downloads, uploads, streams."""

    def __init__(  # keyword-only options of one thing
        self,
        client: ApiClient,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: list[tuple[bytes, bytes]] | None = None,
        body: bytes | None = None,
    ) -> None:
        """`body`: sent instead of the browser's."""
        super().__init__()
        self._client, self._method, self._path = client, method, path
        self._query, self._own_headers, self._body = query, headers or [], body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        headers = self._own_headers
        if self._body is not None:
            headers = [*headers, (b"content-length", b"%d" % len(self._body))]
            receive = _after(self._body, receive)
        elif self._method == "GET":  # the browser's empty body was received while the page was made
            receive = _after(b"", receive)
        await self._client.forward(
            self._method, self._path, receive, send, query=self._query, headers=headers
        )


def _after(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns this body, and then what the browser does: it disconnects."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    """Starlette's pattern, below /console: `/adapters/{tenant}/{name}`."""
    handler: Handler
    roles: frozenset[Role] = ALL
    method: str = "GET"
    reads_body: bool = False
    """The handler reads the body itself (an upload); the session's token then comes in a header."""
    slow: bool = False
    """It waits for the ledger or for every engine. Somebody who comes from elsewhere sees the frame at once,
    into which the page is then loaded."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the navigation."""

    title: str
    path: str
    roles: frozenset[Role]
    icon: str
    """Name of a symbol in static/icons.svg."""
    first_of: frozenset[Role] = frozenset()
    """Roles whose first page it is, although others come before it."""


class LiveStreams:
    """The open streams of a worker. Mutable: how many each session has."""

    MOST: Final = 64
    MOST_OF_SESSION: Final = 6

    def __init__(self, valid: Callable[[Session], Awaitable[bool]], stopping: Callable[[], bool]) -> None:
        self._valid = valid
        self._stopping = stopping
        self._open: dict[str, int] = {}

    async def open(self, session: Session, draw: Callable[[], Awaitable[str]], every: float) -> Response:
        mine = self._open.get(session.digest, 0)
        if mine >= self.MOST_OF_SESSION or sum(self._open.values()) >= self.MOST:
            return Response("Too many live views are open.", 503, {"retry-after": "30"})
        self._open[session.digest] = mine + 1  # before anything is awaited: many may be opened at once
        try:
            first = await draw()  # what it may not see is refused before the stream begins
        except BaseException:
            self._close(session)
            raise
        return _LiveResponse(
            self._events(session, draw, every, first),
            partial(self._close, session),
        )

    def _close(self, session: Session) -> None:
        left = self._open.pop(session.digest, 1) - 1
        if left:
            self._open[session.digest] = left

    async def _events(
        self, session: Session, draw: Callable[[], Awaitable[str]], every: float, shown: str
    ) -> AsyncIterator[bytes]:
        began = sent = time.monotonic()
        yield _event(shown)
        while time.monotonic() - began < _LIVE_SECONDS and not self._stopping():
            await asyncio.sleep(every)
            if not await self._valid(session):
                return
            try:
                drawn = await draw()
            except ApiError:  # the browser connects again, and is told then
                return
            if drawn != shown:
                shown, sent = drawn, time.monotonic()
                yield _event(shown)
            elif time.monotonic() - sent > _PING_SECONDS:
                sent = time.monotonic()
                yield b": still here\n\n"


class _LiveResponse(StreamingResponse):
    """Calls `close` at its end, also for a browser that has gone before the first event."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _event(html: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: message\n{lines}\n".encode()
