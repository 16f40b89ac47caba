"""The issuer's endpoints and public keys, fetched when needed and cached.

Keys that were fetched are used while the issuer does not answer, for a day. A token with an unknown key
causes another fetch, but at most one every few seconds: anybody can send such tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

from adapters.security.tls import client_context
from gateway.config.identity import safe_url
from gateway.errors import FlorinError
from gateway.tenants.people.tokens import Header, Jwk, header_of, key_for, keys_of, verified

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 600.0
"""After that, the next sign-in has the keys fetched again, and uses the old ones meanwhile."""
STALE_SECONDS: Final = 86_400.0
"""After that, keys are not used: the issuer may have withdrawn them."""
PAUSE_SECONDS: Final = 5.0
"""Between two attempts to fetch."""
_RETRY_SECONDS: Final = 30.0
"""Between two attempts to reach an issuer that does not answer, when nobody sends a token."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10, connect=5)
_MAX_BYTES: Final = 512 * 1024
_PATH: Final = "/.well-known/openid-configuration"


class IssuerError(Exception):
    """The issuer does not answer, or its answer is not valid; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints in the issuer's discovery document; empty where it has none."""

    authorization: str
    token: str
    keys: str
    scopes: frozenset[str]
    """Those that it lists; empty: it lists none."""


@dataclass(frozen=True, slots=True)
class Known:
    endpoints: Endpoints
    keys: tuple[Jwk, ...]
    at: float
    """When they were fetched, monotonic seconds."""


class Issuer:
    """Mutable: what is known, and the attempt to fetch that is under way. On one event loop."""

    def __init__(
        self,
        url: str,
        *,
        ca: Path | None = None,
        token: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url`: as the issuer names itself. `ca`: None verifies with the system's. `token`: file with what
        the issuer itself asks for; it may be replaced at any time. Raises TlsError."""
        self.url = url
        self._trust = client_context(ca) if ca else None
        self._token = token
        self._clock = clock
        self._known: Known | None = None
        self._fetch: asyncio.Task[None] | None = None
        self._tried = float("-inf")
        self.trouble = ""
        """Why the last attempt failed; empty: it did not."""

    def __repr__(self) -> str:
        return f"<Issuer {self.url}, {len(self._known.keys) if self._known else 0} keys>"

    async def close(self) -> None:
        if self._fetch is not None:
            self._fetch.cancel()
            await asyncio.gather(self._fetch, return_exceptions=True)

    async def run(self) -> None:
        """Keep the keys fresh, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(_RETRY_SECONDS if self.trouble else FRESH_SECONDS)

    async def claims(self, token: str, audience: Collection[str]) -> dict[str, Any]:
        """The claims of a token that this issuer signed for this audience. Their times are not checked.
        Raises FlorinError."""
        header = header_of(token)
        return verified(token, header, await self.key(header), issuer=self.url, audience=audience)

    async def key(self, header: Header) -> Jwk:
        """The public key of a token's signature. Raises FlorinError."""
        known = await self._current()
        jwk = key_for(header, known.keys)
        if jwk is None and await self.refresh():
            jwk = key_for(header, (await self._current()).keys)
        if jwk is None and self.trouble:  # it may be a new one
            raise _unavailable()
        if jwk is None:
            raise FlorinError("invalid_token", "The token is not valid: its key is not one of the issuer's.")
        return jwk

    async def endpoints(self) -> Endpoints:
        """Raises FlorinError."""
        return (await self._current()).endpoints

    async def _current(self) -> Known:
        age = self._age
        if age >= STALE_SECONDS:
            await self.refresh()
        elif age >= FRESH_SECONDS:
            self._start()
        if self._known is None or self._age >= STALE_SECONDS:
            raise _unavailable()
        return self._known

    @property
    def _age(self) -> float:
        return float("inf") if self._known is None else self._clock() - self._known.at

    async def refresh(self) -> bool:
        """Fetch, or wait for the attempt under way. False: the last one was a moment ago."""
        task = self._start()
        if task is None:
            return False
        await asyncio.wait([task])  # others wait for it, too: it outlives a client that leaves
        return True

    def _start(self) -> asyncio.Task[None] | None:
        """The attempt under way, or a new one. None: the last one was a moment ago."""
        if self._fetch is None or self._fetch.done():
            if self._clock() - self._tried < PAUSE_SECONDS:
                return None
            self._tried = self._clock()
            self._fetch = asyncio.get_running_loop().create_task(self._renew())
        return self._fetch

    async def _renew(self) -> None:
        try:
            headers = await asyncio.to_thread(self._authorization)
            async with self.session() as session:
                document = endpoints_of(await read(session, self.url.rstrip("/") + _PATH, headers), self.url)
                keys = await read(session, document.keys, headers)
            try:
                usable = keys_of(keys)
            except ValueError as error:
                raise IssuerError(f"{document.keys} has no usable keys: {error}.") from error
            self._known = Known(document, usable, self._clock())
        except IssuerError as error:
            if not self.trouble:
                log.warning("Issuer of tokens: %s", error)
            self.trouble = str(error)
        else:
            if self.trouble:
                log.info("Issuer of tokens %s answers again", self.url)
            self.trouble = ""

    def _authorization(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"authorization": f"Bearer {self._token.read_text().strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise IssuerError(f"Cannot read {self._token}: {error}.") from error

    def session(self) -> aiohttp.ClientSession:
        """For requests to the issuer."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._trust if self._trust is not None else True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_TIMEOUT,
            trust_env=True,
        )


async def read(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> bytes:
    """Raises IssuerError, also for an answer that is no success."""
    status, body = await ask(session, url, headers=headers)
    if status != 200:
        raise IssuerError(f"{url} answered HTTP {status}.")
    return body


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body; redirects are not followed. Raises IssuerError."""
    method = "GET" if form is None else "POST"
    try:
        async with session.request(method, url, data=form, headers=headers, allow_redirects=False) as answer:
            body = b""
            async for part in answer.content.iter_chunked(64 * 1024):
                body += part
                if len(body) > _MAX_BYTES:
                    raise IssuerError(f"{url} answered with more than {_MAX_BYTES:,} bytes.")
            return answer.status, body
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise IssuerError(f"{url} does not answer: {str(error) or type(error).__name__}.") from error


def _unavailable() -> FlorinError:
    text = "Tokens cannot be verified now: their issuer does not answer."
    return FlorinError("issuer_unavailable", text, retry_after=5)


def endpoints_of(body: bytes, issuer: str) -> Endpoints:
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise IssuerError(f"{issuer}{_PATH} is not JSON.") from error
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        named = document.get("issuer") if isinstance(document, dict) else None
        raise IssuerError(
            f"The issuer names itself {str(named)[:200]!r}, but the settings name it {issuer!r}: they must "
            "be equal."
        )
    scopes = document.get("scopes_supported")
    listed = scopes if isinstance(scopes, list) else []
    return Endpoints(
        _endpoint(document, "authorization_endpoint"),
        _endpoint(document, "token_endpoint"),
        _endpoint(document, "jwks_uri", required=True),
        frozenset(scope for scope in listed if isinstance(scope, str)),
    )


def _endpoint(document: Mapping[str, Any], name: str, *, required: bool = False) -> str:
    url = document.get(name, "")
    if (url or required) and not (isinstance(url, str) and safe_url(url.partition("?")[0])):
        raise IssuerError(f"The issuer's {name} is not an https:// URL.")
    return str(url)
