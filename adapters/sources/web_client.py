"""Fetches one resource of a web server: ranges, redirects, credentials and address checks.

Redirects are followed one at a time, so that each is subject to the same rules.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial

import aiohttp
from yarl import URL

from adapters.sources.download import DownloadInterruptedError, DownloadPart, persist
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError, too_much
from adapters.sources.url_policy import Allowed

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MISSING = frozenset({404, 410})
_DENIED = frozenset({401, 402, 403, 407, 451})
_LATER = frozenset({408, 409, 421, 423, 425, 429})
_CONNECT_SECONDS = 10.0
_LONGEST_WAIT = 30.0
"""Longest `retry-after` honoured, in seconds."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebClient:
    """One resource of a web server."""

    url: URL
    """Without credentials."""
    authorization: str | None
    """Sent only to the origin of `url`, never to redirect targets."""
    options: FetchOptions
    accept: str = "*/*"

    async def document(self, what: str, limit: int) -> bytes:
        """A resource of at most `limit` bytes, in memory. Raises SourceRefusedError."""

        async def read() -> bytes:
            content = bytearray()
            async with self.open(0, None, plain=True) as part:
                async for chunk in part.chunks:
                    content += chunk
                    if len(content) > limit:
                        raise too_much(what, len(content), limit)
            if part.total not in (None, len(content)):
                raise DownloadInterruptedError("the connection was lost")
            return bytes(content)

        return await persist(read, what=what, options=self.options)

    async def challenge(self) -> str | None:
        """What the server asks of a client before it lets it at `url` (`www-authenticate`), or None. Raises
        SourceRefusedError."""

        async def ask() -> str | None:
            async with self._answer(self.url, self._headers) as response:
                return response.headers.get("www-authenticate", "") if response.status == 401 else None

        return await persist(ask, what=self.url.raw_host or "", options=self.options)

    @property
    def _headers(self) -> dict[str, str]:
        return {"accept": self.accept, "accept-encoding": "identity", "user-agent": "florin"}

    @asynccontextmanager
    async def open(
        self, start: int, validator: str | None, *, plain: bool = False
    ) -> AsyncGenerator[DownloadPart]:
        """See `download.Open`. `plain` refuses a body with a content encoding that was not requested."""
        headers = self._headers
        if start and validator is not None:
            headers |= {"range": f"bytes={start}-", "if-range": validator}
        url = self.url
        for _ in range(MAX_REDIRECTS + 1):
            async with self._answer(url, headers) as response:
                if response.status in _REDIRECTS:
                    url = _next(url, response.headers.get("location", ""))
                    continue
                if plain and response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise _refused(
                        "source_unavailable", url, "a compressed response to a request for a plain one"
                    )
                yield _part(response, url, start)
                return
        raise _refused("source_redirect", self.url, f"more than {MAX_REDIRECTS} redirects")

    @asynccontextmanager
    async def _answer(self, url: URL, headers: dict[str, str]) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self.authorization and url.origin() == self.url.origin():
            headers = {**headers, "authorization": self.authorization}
        allowed = Allowed.parse(self.options.allow_private)
        async with aiohttp.ClientSession(
            connector=guarded_connector(allowed, url),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            auto_decompress=False,
            trust_env=False,
        ) as session:
            response = await self._get(session, url, headers)
            async with response:
                yield response

    async def _get(
        self, session: aiohttp.ClientSession, url: URL, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        seconds = self.options.stall_seconds
        try:
            async with asyncio.timeout(seconds):
                return await session.get(url, headers=headers, allow_redirects=False)
        except (SourceRefusedError, aiohttp.ClientConnectorDNSError) as error:
            if not self.options.own_access:  # a customer must not find out which names private networks have
                raise _refused("source_unreachable", url, "no public address") from None
            if isinstance(error, SourceRefusedError):
                raise
            raise DownloadInterruptedError(_describe(error)) from error
        except TimeoutError:
            raise DownloadInterruptedError(f"{url.raw_host} did not respond within {seconds:g} s") from None
        except (aiohttp.InvalidURL, UnicodeError):  # UnicodeError: a name that cannot be a DNS name
            raise _refused("source_not_public", url, "an address in an unusual notation") from None
        except aiohttp.ClientSSLError as error:
            raise _refused("source_unavailable", url, str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise DownloadInterruptedError(_describe(error)) from error


def guarded_connector(allowed: Allowed, url: URL) -> aiohttp.TCPConnector:
    """Connects to `url` if its address is public or allowed; otherwise raises SourceRefusedError."""
    return aiohttp.TCPConnector(
        socket_factory=partial(_socket, allowed, url.raw_host or ""),
        happy_eyeballs_delay=None,  # sequential: a refused address aborts
        force_close=True,
        use_dns_cache=False,
    )


def _socket(allowed: Allowed, host: str, address: aiohttp.AddrInfoType) -> socket.socket:
    """Create the socket for this address after checking it, whatever name or redirect led there."""
    family, kind, protocol, _, where = address
    allowed.check(host, str(where[0]))
    return socket.socket(family, kind, protocol)


def _next(url: URL, location: str) -> URL:
    """The target of a redirect, without any credentials in it."""
    try:
        target = url.join(URL(location, encoded=location.isascii() and " " not in location))
        if not location or not target.raw_host or target.scheme not in ("http", "https"):
            raise ValueError("no target")
    except ValueError:
        raise _refused("source_redirect", url, "a redirect to a scheme other than http(s)") from None
    if url.scheme == "https" and target.scheme == "http":
        raise _refused("source_redirect", url, "a redirect from https to http")
    return target.with_user(None).with_fragment(None)


def _part(response: aiohttp.ClientResponse, url: URL, start: int) -> DownloadPart:
    """The response as a part. Raises SourceRefusedError, DownloadInterruptedError."""
    status = response.status
    if status == 200:
        return DownloadPart(
            0, response.content_length, _validator(response), _chunks(response), response.headers
        )
    if status == 206 and start:
        span = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if span is None or int(span[1]) != start:
            raise DownloadInterruptedError(
                "the server returned a different range than requested", afresh=True
            )
        total = None if span[3] == "*" else int(span[3])
        return DownloadPart(start, total, _validator(response), _chunks(response), response.headers)
    if status in (206, 416):
        raise DownloadInterruptedError(f"the server returned HTTP {status}", afresh=True)
    if status in _MISSING:
        raise _refused("source_missing", url, f"status {status}")
    if status in _DENIED:
        raise _refused("source_denied", url, f"status {status}")
    if status in _LATER or status >= 500:
        raise DownloadInterruptedError(f"the server returned HTTP {status}", pause=_asked_pause(response))
    raise _refused("source_unavailable", url, f"status {status}")


def _validator(response: aiohttp.ClientResponse) -> str | None:
    """A strong validator (RFC 9110, section 8.8): a strong ETag, or a Last-Modified well before the
    response."""
    etag = response.headers.get("etag", "")
    if etag:
        return etag if etag.startswith('"') else None
    modified = response.headers.get("last-modified", "")
    try:
        age = parsedate_to_datetime(response.headers.get("date", "")) - parsedate_to_datetime(modified)
    except (ValueError, TypeError, OverflowError):
        return None
    return modified if age.total_seconds() >= 60 else None


def _asked_pause(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdigit() else 0.0


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise DownloadInterruptedError(_describe(error)) from error


def _describe(error: Exception) -> str:
    """Describe the error without the URL, which may contain a secret."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{error.host}: {error.strerror or type(error.os_error).__name__}"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection was lost"
    return type(error).__name__


def _refused(what: str, url: URL, actual: str) -> SourceRefusedError:
    message, expected = _SENTENCES[what]
    code = "source_not_public" if what == "source_unreachable" else what
    return SourceRefusedError(code, message.format(host=url.raw_host), found=actual, expected=expected)


_SENTENCES = {
    "source_missing": ("{host} does not have the file.", "status 200"),
    "source_denied": ("{host} denies the gateway access.", "status 200"),
    "source_unavailable": ("{host} returned an unexpected response.", "status 200, uncompressed"),
    "source_redirect": ("{host} redirects in a way that the gateway does not follow.", "the files"),
    "source_unreachable": ("{host} has no public address.", "a public address"),
    "source_not_public": (
        "{host} is neither a host name nor a plain address.",
        "a host name, or a public address",
    ),
}
