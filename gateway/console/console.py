"""Receives the requests under /console: who is signed in, what they may see, and what their forms may do."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import compile_path

from adapters.errors import StoreUnavailableError
from gateway.config import Settings
from gateway.console import issuer_sign_in
from gateway.console.api_client import ApiClient, ApiError, Asgi
from gateway.console.pages import ENTRIES, ROUTES
from gateway.console.rendering import Renderer
from gateway.console.visit import ALL, LiveStreams, Route, Visit
from gateway.dataplane.asgi import Receive, Scope, Send
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.tenants.authentication import unknown_key
from gateway.tenants.directory import Key, Role
from gateway.tenants.sessions import Session

if TYPE_CHECKING:
    from gateway.tenants.people.verification import People

log = logging.getLogger(__name__)

COOKIE: Final = "florin_session"
HOST_COOKIE: Final = f"__Host-{COOKIE}"
"""Over HTTPS. Browsers accept it only over HTTPS, for this very host and with the path /, so that neither a
neighbouring subdomain nor somebody in the network can plant a session."""
PREFIX: Final = "/console"
_FORM_BYTES: Final = 1024 * 1024
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Console:
    """An ASGI application. One per worker, on its event loop, made by the first request."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        api: Asgi,
        models: Asgi,
        stopping: Callable[[], bool],
        build_routes: Callable[[], None],
    ) -> None:
        """`api`: the admin and finance API, with its gate. `models`: the data plane. Both take the
        session's key from the scope."""
        self._settings = settings
        self._state = state
        self._api = api
        self._models = models
        self._clock = state.clock.now
        self.sessions = state.sessions
        self._issuer = urlsplit(settings.oidc_issuer).hostname or ""
        self._renderer = Renderer(ENTRIES, state.clock.now)
        self._build_routes = build_routes
        self._preparing: asyncio.Task[None] | None = None
        self._streams = LiveStreams(self._valid, stopping)
        self._routes = [(compile_path(PREFIX + route.path), route) for route in ROUTES]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await unless_gone(request, self._respond(request))
        except ClientDisconnect:
            return
        except ApiError as error:
            response = self._failure(request, None, error)
        except MultiPartException:
            response = self._failure(request, None, ApiError(400, "invalid_value", _BAD_FORM))
        except StoreUnavailableError:
            response = self._failure(request, None, ApiError(503, "store_unavailable", _NO_STORE))
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            text = "Internal error in Florin; see the gateway's log."
            response = self._failure(request, None, ApiError(500, "internal_error", text))
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        path = request.url.path
        if path == "/":
            return RedirectResponse(PREFIX, 303)
        if path.startswith(f"{PREFIX}/static/"):
            return self._static(request, path)
        if not self._same_origin(request):
            return self._failure(request, None, ApiError(403, "invalid_value", _CROSS_SITE))
        if path in _PUBLIC:
            return await _PUBLIC[path](self, request)
        signed_in = await self._session(request)
        if signed_in is None:
            return self._to_sign_in(request)
        session, key = signed_in
        if path.rstrip("/") == PREFIX:  # each role has its own first page
            return RedirectResponse(PREFIX + _home(key.role), 303)
        visit = self._visit(request, session, key)
        if path == f"{PREFIX}/sign-out" and request.method == "POST":
            await self._read_form(visit)
            await self.sessions.end(session)
            response = RedirectResponse(f"{PREFIX}/sign-in", 303)
            name, path = self._cookie(request)
            response.delete_cookie(name, path=path, secure=self._secure(request), httponly=True)
            return response
        return await self._page(visit)

    async def _page(self, visit: Visit) -> Response:
        request = visit.request
        try:
            route = self._match(visit)
            if request.method == "POST" and route.reads_body:
                self._check_token(visit, request.headers.get("x-csrf-token", ""))
            elif request.method == "POST":
                await self._read_form(visit)
            if route.slow and _opens(request):
                return HTMLResponse(self._renderer.render("frame.html.j2", visit=visit))
            return await route.handler(visit)
        except ApiError as error:
            return self._failure(request, visit, error)

    def _match(self, visit: Visit) -> Route:
        """The route, whose parameters the visit gets. Raises ApiError."""
        method = "GET" if visit.request.method == "HEAD" else visit.request.method
        known = False
        for (pattern, _, converters), route in self._routes:
            match = pattern.match(visit.request.url.path)
            if match is None:
                continue
            known = True
            if route.method == method:
                visit.params = {n: converters[n].convert(v) for n, v in match.groupdict().items()}
                if visit.role not in route.roles:
                    raise ApiError(403, "insufficient_role", _NOT_YOURS.format(role=visit.role))
                return route
        if known:
            raise ApiError(405, "method_not_allowed", f"This page does not take {method[:10]}.")
        raise ApiError(404, "not_found", "There is no such page in the console.")

    async def _read_form(self, visit: Visit) -> None:
        """Raises ApiError, also if the form does not come from a page of this session."""
        request = visit.request
        length = request.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > _FORM_BYTES:
            raise ApiError(413, "body_too_large", f"A form may have up to {_FORM_BYTES:,} bytes.")
        visit.form = await request.form(max_files=0, max_fields=500)
        token = visit.form.get("csrf", "")
        self._check_token(visit, request.headers.get("x-csrf-token") or str(token))

    @staticmethod
    def _check_token(visit: Visit, token: str) -> None:
        if not hmac.compare_digest(token.encode(), visit.session.csrf.encode()):
            raise ApiError(403, "invalid_value", "This page is out of date. Load it again, then repeat.")

    def _visit(self, request: Request, session: Session, key: Key) -> Visit:
        client = (request.client.host, request.client.port) if request.client else None
        api = ApiClient(self._api, key, client)
        return Visit(
            request,
            session,
            key,
            api,
            self._renderer,
            self._streams,
            lambda caller: ApiClient(self._models, caller, client),
            self._clock(),
            _SECTIONS,
        )

    def _failure(self, request: Request, visit: Visit | None, error: ApiError) -> Response:
        whole_page = "hx-boosted" in request.headers or request.headers.get("hx-target") == "main"
        part = "hx-request" in request.headers and (request.method == "POST" or not whole_page)
        template = "error_part.html.j2" if part else "error.html.j2"
        text = self._renderer.render(template, visit=visit, error=error, path=request.url.path)
        return HTMLResponse(text, error.status)

    # -- signing in and out

    async def _session(self, request: Request) -> tuple[Session, Key] | None:
        """The session and its key as it is now. None: not signed in, or no longer. Raises
        StoreUnavailableError."""
        name, _ = self._cookie(request)
        secret = request.cookies.get(name, "")
        session = await self.sessions.find(secret) if secret else None
        key = self.sessions.key_of(session) if session else None
        if session is None or key is None or key.role not in ALL or not self._holds(key):
            return None
        return session, key

    def _holds(self, key: Key) -> bool:
        directory = self._state.directory
        suspended = key.own_tenant is not None and directory.suspended(key.own_tenant)
        return key.revoked is None and not directory.expired(key) and not suspended

    async def _valid(self, session: Session) -> bool:
        try:
            return await self.sessions.still(session)
        except StoreUnavailableError:
            return False

    async def sign_in_page(self, request: Request) -> Response:
        """GET: the form. POST: a key, or the secret of a link, begins a session."""
        if request.method != "POST":
            self._prepare()
            return self._sign_in(request)
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > 16_384:
            raise ApiError(413, "body_too_large", "This is no key.")
        form = await request.form(max_files=0, max_fields=10)
        then = str(form.get("next", ""))
        try:
            return await self.signed_in(request, await self._key_of(form, request), then)
        except ApiError as error:
            return self._sign_in(request, error, then)

    def _prepare(self) -> None:
        """Somebody is about to sign in: what pages are made of is compiled while they type, a template at a
        time, and not in workers whose console is never opened."""
        if self._preparing is None:
            self._preparing = asyncio.create_task(self._compile())

    async def _compile(self) -> None:
        await asyncio.to_thread(self._build_routes)
        for name in self._renderer.templates():
            await asyncio.to_thread(self._renderer.compile, name)

    async def _key_of(self, form: FormData, request: Request) -> Key:
        if link := str(form.get("link", "")):
            followed = await self.sessions.follow(link)
            if followed is None or not self._holds(followed):
                client = request.client.host if request.client else ""
                error = unknown_key(self._state.directory, client, "This link has been used or has expired.")
                raise ApiError(error.status, error.code, error.message)
            return followed
        text = str(form.get("key", "")).strip()
        if not text:
            raise ApiError(401, "missing_api_key", "Enter your key: it begins with fl_.")
        await _check(self._api, b"Bearer " + text.encode(), request)
        key = self._state.directory.find(text.encode())
        if key is None or key.role not in ALL:
            role = key.role if key else "unknown"
            raise ApiError(403, "insufficient_role", f"A key of role {role} has no console.")
        return key

    async def signed_in(
        self, request: Request, key: Key, next_path: str, *, expires: int | None = None
    ) -> Response:
        """Begin a session and go on to `next_path`. `expires`: see `Sessions.begin`. Raises ApiError if the
        key's owner has begun too many, StoreUnavailableError."""
        try:
            secret, session = await self.sessions.begin(key, expires=expires)
        except FlorinError as error:
            raise ApiError(error.status, error.code, error.message) from error
        log.info("console: key %s signed in", key.id)
        response = RedirectResponse(_inside(next_path), 303)
        name, path = self._cookie(request)
        response.set_cookie(
            name,
            secret,
            max_age=max(1, (session.expires - self._clock()) // 1_000_000),
            path=path,
            httponly=True,
            samesite="lax",  # strict would lose it on the way back from an identity provider
            secure=self._secure(request),
        )
        return response

    async def leave_for_issuer(self, request: Request) -> Response:
        """GET: to the issuer's page."""
        then = _inside(request.query_params.get("next", ""))
        try:
            return await issuer_sign_in.leave(self._people(), request, then, secure=self._secure(request))
        except ApiError as error:
            return self._sign_in(request, error, then)

    async def back_from_issuer(self, request: Request) -> Response:
        """GET: with the issuer's answer."""
        try:
            key, then = await issuer_sign_in.come_back(self._people(), request, secure=self._secure(request))
            response = await self.signed_in(request, key, then, expires=key.expires)
        except ApiError as error:
            response = self._sign_in(request, error)
        response.delete_cookie(issuer_sign_in.COOKIE, path=issuer_sign_in.PATH)
        return response

    def _people(self) -> People:
        if self._state.people is None:
            raise ApiError(404, "not_found", "This gateway has no issuer to sign in with.")
        return self._state.people

    def _cookie(self, request: Request) -> tuple[str, str]:
        """Name and path of the session's cookie."""
        return (HOST_COOKIE, "/") if self._secure(request) else (COOKIE, PREFIX)

    def _secure(self, request: Request) -> bool:
        return request.url.scheme == "https" or self._settings.behind_proxy

    def _sign_in(self, request: Request, error: ApiError | None = None, then: str = "") -> Response:
        then = _inside(then or request.query_params.get("next", ""))
        text = self._renderer.render(
            "sign_in.html.j2", error=error, next=then, issuer=self._issuer, path=issuer_sign_in.PATH
        )
        return HTMLResponse(text, error.status if error else 200)

    def _to_sign_in(self, request: Request) -> Response:
        if "hx-request" in request.headers:
            return Response(status_code=401, headers={"hx-redirect": f"{PREFIX}/sign-in"})
        if request.method != "GET":
            return RedirectResponse(f"{PREFIX}/sign-in", 303)
        then = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{PREFIX}/sign-in?next={quote(then)}", 303)

    # -- what comes from elsewhere, and files

    @staticmethod
    def _same_origin(request: Request) -> bool:
        """Whether a request that may change something comes from a page of this host. Browsers say so; the
        token in each form is the second proof."""
        if request.method in {"GET", "HEAD"}:
            return True
        site = request.headers.get("sec-fetch-site")
        if site is not None and site not in {"same-origin", "none"}:
            return False
        origin = request.headers.get("origin")
        return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")

    def _static(self, request: Request, path: str) -> Response:
        version, _, name = path.removeprefix(f"{PREFIX}/static/").partition("/")
        asset = self._renderer.assets.get(name)
        if asset is None or version != asset.version:
            return self._failure(request, None, ApiError(404, "not_found", "There is no such file."))
        headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(asset.compressed, headers=headers, media_type=asset.media)
        return Response(asset.body, headers=headers, media_type=asset.media)


_PUBLIC: Final[dict[str, Callable[[Console, Request], Awaitable[Response]]]] = {
    f"{PREFIX}/sign-in": Console.sign_in_page,
    issuer_sign_in.PATH: Console.leave_for_issuer,
    issuer_sign_in.CALLBACK: Console.back_from_issuer,
}
"""Pages without a session."""
_SECTIONS: Final = {entry.path: entry.roles for entry in ENTRIES}
_NO_STORE: Final = "The shared state (Redis) cannot be reached, so nobody can be signed in now. Try again."
_BAD_FORM: Final = "The form cannot be read."
_CROSS_SITE: Final = "This came from a page of another site, and was not done."
_NOT_YOURS: Final = "Your key has role {role}, which has no such page."


async def unless_gone(request: Request, response: Coroutine[Any, Any, Response]) -> Response:
    """What somebody still waits for. Who goes to another page must not wait there for what the last one asked
    the ledger: a tenant's queries run one after another. Only for what changes nothing. Raises
    ClientDisconnect."""
    if request.method != "GET":
        return await response
    answer = asyncio.ensure_future(response)
    left = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        for task in (answer, left):
            task.cancel()
        await asyncio.wait((answer, left))


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _opens(request: Request) -> bool:
    """Whether a browser opens a page from elsewhere and has nothing to show yet. Downloads look the same."""
    navigates = request.headers.get("sec-fetch-dest") == "document" and "hx-request" not in request.headers
    return navigates and request.method == "GET" and "format" not in request.query_params


def _home(role: Role) -> str:
    own = [entry.path for entry in ENTRIES if role in entry.roles]
    return next((entry.path for entry in ENTRIES if role in entry.first_of), own[0])


def _inside(path: str) -> str:
    """A path of the console, whatever a URL asks for."""
    good = path.startswith(PREFIX) and path[len(PREFIX) : len(PREFIX) + 1] in {"", "/", "?"}
    return path if good and "\\" not in path and path.isprintable() else PREFIX


async def _check(api: Asgi, authorization: bytes, request: Request) -> None:
    """Raises ApiError as the API refuses the key that somebody wants to sign in with."""
    client = (request.client.host, request.client.port) if request.client else None
    await ApiClient(api, None, client, authorization).call("GET", "/admin/v1/me")
