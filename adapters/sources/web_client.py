"""One resource of a web server: its parts, redirects, credentials, and who may not be connected to.

Redirects are followed here, one by one, so that each is held to the same rules.
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

from adapters.sources.download import DownloadInterruptedError, DownloadPart
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError
from adapters.sources.url_policy import Allowed

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MISSING = frozenset({404, 410})
_DENIED = frozenset({401, 402, 403, 407, 451})
_LATER = frozenset({408, 409, 421, 423, 425, 429})
_CONNECT_SECONDS = 10.0
_LONGEST_WAIT = 30.0
"""Seconds that a server may ask for with `retry-after`."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class WebClient:
    """One resource of a web server."""

    url: URL
    """Without credentials."""
    authorization: str | None
    """Sent to the origin of `url` alone, never to where it redirects."""
    options: FetchOptions

    @asynccontextmanager
    async def open(
        self, start: int, validator: str | None, *, plain: bool = False
    ) -> AsyncGenerator[DownloadPart]:
        """See `download.Open`. `plain` refuses a body that the server has compressed on its own account."""
        headers = {"accept-encoding": "identity", "user-agent": "florin"}
        if start and validator is not None:
            headers |= {"range": f"bytes={start}-", "if-range": validator}
        url = self.url
        for _ in range(MAX_REDIRECTS + 1):
            async with self._answer(url, headers) as response:
                if response.status in _REDIRECTS:
                    url = _next(url, response.headers.get("location", ""))
                    continue
                if plain and response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise _refused("source_unavailable", url, "it sends compressed what was asked for plain")
                yield _part(response, url, start)
                return
        raise _refused("source_redirect", self.url, f"more than {MAX_REDIRECTS} redirects")

    @asynccontextmanager
    async def _answer(self, url: URL, headers: dict[str, str]) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self.authorization and url.origin() == self.url.origin():
            headers = {**headers, "authorization": self.authorization}
        allowed = Allowed.parse(self.options.allow_private)
        connector = aiohttp.TCPConnector(
            socket_factory=partial(_socket, allowed, url.raw_host or ""),
            happy_eyeballs_delay=None,  # one after the other: a refusal ends it
            force_close=True,
            use_dns_cache=False,
        )
        async with aiohttp.ClientSession(
            connector=connector,
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
        except TimeoutError:
            raise DownloadInterruptedError(f"{url.raw_host} did not answer within {seconds:g} s") from None
        except (aiohttp.InvalidURL, UnicodeError):  # the latter of names that DNS cannot ask for
            raise _refused("source_not_public", url, "an address in a form of its own") from None
        except aiohttp.ClientSSLError as error:
            raise _refused("source_unavailable", url, str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise DownloadInterruptedError(_words(error)) from error


def _socket(allowed: Allowed, host: str, address: aiohttp.AddrInfoType) -> socket.socket:
    """The socket that will be connected to this very address: whatever name or redirect led there."""
    family, kind, protocol, _, where = address
    allowed.check(host, str(where[0]))
    return socket.socket(family, kind, protocol)


def _next(url: URL, location: str) -> URL:
    """Where a redirect leads; credentials in it are not taken up."""
    try:
        target = url.join(URL(location, encoded=location.isascii() and " " not in location))
        if not location or not target.raw_host or target.scheme not in ("http", "https"):
            raise ValueError("leads nowhere")
    except ValueError:
        raise _refused("source_redirect", url, "a redirect to where http(s) does not lead") from None
    if url.scheme == "https" and target.scheme == "http":
        raise _refused("source_redirect", url, "a redirect from https to http")
    return target.with_user(None).with_fragment(None)


def _part(response: aiohttp.ClientResponse, url: URL, start: int) -> DownloadPart:
    """Raises SourceRefusedError and DownloadInterruptedError for what is no part."""
    status = response.status
    if status == 200:
        return DownloadPart(0, response.content_length, _validator(response), _chunks(response))
    if status == 206 and start:
        span = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if span is None or int(span[1]) != start:
            raise DownloadInterruptedError(
                "the server gives another range than it was asked for", afresh=True
            )
        total = None if span[3] == "*" else int(span[3])
        return DownloadPart(start, total, _validator(response), _chunks(response))
    if status in (206, 416):
        raise DownloadInterruptedError(f"the server answered {status}", afresh=True)
    if status in _MISSING:
        raise _refused("source_missing", url, f"status {status}")
    if status in _DENIED:
        raise _refused("source_denied", url, f"status {status}")
    if status in _LATER or status >= 500:
        raise DownloadInterruptedError(f"the server answered {status}", pause=_asked_pause(response))
    raise _refused("source_unavailable", url, f"status {status}")


def _validator(response: aiohttp.ClientResponse) -> str | None:
    """A strong validator (RFC 9110, 8.8): a strong ETag, or a time of change well before the answer."""
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
        raise DownloadInterruptedError(_words(error)) from error


def _words(error: Exception) -> str:
    """What happened, without the URL, which may hold a secret."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"{error.host}: {error.strerror or type(error.os_error).__name__}"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection broke off"
    return type(error).__name__


def _refused(code: str, url: URL, found: str) -> SourceRefusedError:
    message, expected = _SENTENCES[code]
    return SourceRefusedError(code, message.format(host=url.raw_host), found=found, expected=expected)


_SENTENCES = {
    "source_missing": ("{host} does not have it.", "status 200"),
    "source_denied": ("{host} does not give it to the gateway.", "status 200"),
    "source_unavailable": ("{host} does not answer as it should.", "status 200, plain"),
    "source_redirect": ("{host} redirects to where the gateway does not follow.", "the files"),
    "source_not_public": ("{host} is no name and no plain address.", "a host name, or a public address"),
}
