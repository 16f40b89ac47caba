"""The agent's client of the gateway's admin API."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

import aiohttp
import orjson
from yarl import URL

from adapters.engine_agent.artifact_download import StageError, StagingInterruptedError
from adapters.security.handshake_errors import EXPIRED, NOT_YET_VALID, explain

Json = dict[str, Any]

_ANSWER_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
_CHUNK_BYTES = 256 * 1024


class GatewayDownError(Exception):
    """The gateway does not respond; the message names its URL."""


class GatewayRefusedError(Exception):
    """The gateway refused; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class GatewayClient:
    """Use as an async context manager. `url`: the gateway's; `key`: an API key of role engine or operator.
    `reread` returns the key as stored now; it is called when the gateway refuses the key in use, which may
    have been rotated."""

    def __init__(
        self,
        url: str,
        key: str,
        reread: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._key = key
        self._reread = reread
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._store_session: aiohttp.ClientSession | None = None
        """To the bucket of the artifacts: without the gateway's key, CA and certificate."""

    def __repr__(self) -> str:
        return f"<GatewayClient {self.url}>"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or True),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._store_session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session
        assert self._store_session
        await self._session.close()
        await self._store_session.close()

    def is_key(self, given: bytes) -> bool:
        """Whether this is the key in use."""
        return hmac.compare_digest(given, self._key.encode())

    async def register(self, body: Json) -> Json:
        return await self._call("POST", "engines", body)

    async def heartbeat(self, name: str, body: Json) -> Json:
        return await self._call("PUT", f"engines/{quote(name, safe='')}/heartbeat", body)

    async def stopping(self, name: str, body: Json) -> Json:
        return await self._call("PUT", f"engines/{quote(name, safe='')}/stopping", body)

    async def merge_source(self, name: str, version: str) -> Json:
        """The version that is to be merged: its name on engines, its digest and its size."""
        path = f"engines/{quote(name, safe='')}/merge?version={quote(version, safe='')}"
        return await self._call("GET", path, None)

    async def engine(self, name: str) -> Json | None:
        """The engine as registered at the gateway, or None."""
        try:
            return await self._call("GET", f"engines/{quote(name, safe='')}", None)
        except GatewayRefusedError as error:
            if error.status == 404:
                return None
            raise

    async def _call(self, method: str, path: str, body: Json | None) -> Json:
        """Raises GatewayDownError, GatewayRefusedError."""
        try:
            return await self._once(method, path, body)
        except GatewayRefusedError as error:
            if error.status != 401 or not await self._exchanged():
                raise
        return await self._once(method, path, body)

    async def _exchanged(self) -> bool:
        """Switch to the stored key if it differs from the one in use; whether it did."""
        fresh = await asyncio.to_thread(self._reread) if self._reread else ""
        if not fresh or fresh == self._key:
            return False
        self._key = fresh
        return True

    @property
    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    async def _once(self, method: str, path: str, body: Json | None) -> Json:
        assert self._session, "not entered"
        try:
            async with self._session.request(
                method,
                f"{self.url}/admin/v1/{path}",
                data=None if body is None else orjson.dumps(body),
                proxy=_proxy(URL(self.url)),
                headers={"content-type": "application/json", **self._authorization},
                timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
                allow_redirects=False,
            ) as response:
                status, raw = response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise GatewayDownError(
                f"The gateway at {self.url} does not respond ({_describe(error, self.url)})."
            ) from error
        answer = _parsed(raw)
        if status < 300 and answer is not None:
            return answer
        if status in {502, 503, 504} or status < 300 or answer is None:
            raise GatewayDownError(
                f"The gateway at {self.url} is unavailable (HTTP {status}{_with_message(answer)})."
            )
        raise GatewayRefusedError(status, _message(answer) or f"HTTP {status}")

    @asynccontextmanager
    async def artifact(
        self, hexdigest: str, name: str, start: int
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """See `artifact_download.ArtifactSource`."""
        assert self._session, "not entered"
        assert self._store_session
        span = {"range": f"bytes={start}-"} if start else {}
        url = f"{self.url}/admin/v1/artifacts/{hexdigest}/{name}"
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(
                    self._session.get(
                        url,
                        headers={**self._authorization, **span},
                        proxy=_proxy(URL(self.url)),
                        **_DOWNLOAD,
                    )
                )
                refusal = b"" if response.status in {200, 206, 307} else await response.read()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise StagingInterruptedError(
                    f"the gateway at {self.url} does not respond ({_describe(error, self.url)})"
                ) from error
            if response.status == 307:
                response = await _stored(stack, self._store_session, response, span)
            elif response.status not in {200, 206}:
                words = f"the gateway returned HTTP {response.status}: {_message(_parsed(refusal))}"
                raise (StagingInterruptedError if response.status >= 500 else StageError)(words)
            yield start if response.status == 206 else 0, _chunks(response)


_DOWNLOAD: Final[Any] = {
    "timeout": aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS),
    "allow_redirects": False,
}


async def _stored(
    stack: AsyncExitStack,
    session: aiohttp.ClientSession,
    redirect: aiohttp.ClientResponse,
    headers: dict[str, str],
) -> aiohttp.ClientResponse:
    """The response of the bucket to which the gateway has signed a URL, which no message may show. Raises
    StagingInterruptedError, StageError."""
    try:
        url = URL(redirect.headers.get("location", ""), encoded=True)
        if url.scheme not in {"http", "https"} or not url.raw_host:
            raise ValueError("no URL of a bucket")
    except ValueError as error:
        raise StageError("the gateway returned HTTP 307 without the URL of a bucket") from error
    try:
        get = session.get(url, headers=headers, proxy=_proxy(url), **_DOWNLOAD)
        response = await stack.enter_async_context(get)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        reason = explain(error) or getattr(error, "strerror", None) or type(error).__name__
        raise StagingInterruptedError(f"the bucket at {url.raw_host} does not respond ({reason})") from None
    if response.status in {200, 206}:
        return response
    words = f"the bucket at {url.raw_host} returned HTTP {response.status}"
    if response.status in {403, 408, 416, 429} or response.status >= 500:  # 403: the signature has expired
        raise StagingInterruptedError(words)
    raise StageError(words)


def _proxy(url: URL) -> str | None:
    """The environment's proxy for that URL, unless it is on this machine. aiohttp's `trust_env` finds it,
    too, but also sends the host what a .netrc has for it, or for all hosts."""
    local = url.host in {"127.0.0.1", "localhost", "::1"}
    return None if local or proxy_bypass(f"{url.raw_host}:{url.port}") else getproxies().get(url.scheme)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            yield chunk
    except (TimeoutError, aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        raise StagingInterruptedError(
            f"the connection to {response.url.raw_host} was lost ({_describe(error)})"
        ) from error


def _parsed(raw: bytes) -> Json | None:
    try:
        body = orjson.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _message(body: Json | None) -> str:
    error = (body or {}).get("error")
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _with_message(body: Json | None) -> str:
    return f": {_message(body)}" if _message(body) else ""


def _describe(error: BaseException, url: str = "") -> str:
    tls = explain(error, url)
    if tls in {EXPIRED, NOT_YET_VALID}:
        return f"{tls}; renew it in the gateway's FLORIN_TLS_CERT, and check this host's clock"
    if tls:
        return f"{tls}; see FLORIN_CA_FILE, FLORIN_CLIENT_CERT, FLORIN_CLIENT_KEY"
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or type(error).__name__
