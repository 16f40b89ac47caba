"""Cross-origin requests from browsers (FLORIN_CORS_ORIGINS). Pure.

Florin authenticates by a header that a page must set itself, and never by cookies. So credentials are never
allowed.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.transport.request_head import Headers

ANY: Final = "*"
MAX_AGE: Final = 7200
"""Seconds for which a browser may keep a preflight's answer; none keeps it longer."""
_REQUESTED = re.compile(rb"[A-Za-z0-9_, -]{1,1000}")

_DEFAULT: Final = b"authorization, content-type, x-api-key, anthropic-version"
"""Headers that may be sent if a preflight does not say which."""


class Cors:
    """Which origins may read the data plane's responses."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = ANY in origins

    def headers(self, request: Headers) -> Headers:
        """Headers of the response to this request."""
        origin = next((value for name, value in request if name == b"origin"), b"")
        shown = b"*" if self._any else origin if origin in self._origins else b""
        varies = [] if self._any else [(b"vary", b"origin")]
        if not origin or not shown:
            return varies
        return [
            (b"access-control-allow-origin", shown),
            (b"access-control-expose-headers", b"*"),
            *varies,
        ]


def preflight(method: str, request: Headers) -> Headers | None:
    """Further headers of the answer if the request is a preflight; None: it is none."""
    if method != "OPTIONS":
        return None
    given = dict(request)
    if b"origin" not in given or b"access-control-request-method" not in given:
        return None
    requested = given.get(b"access-control-request-headers", b"")
    allowed = requested if _REQUESTED.fullmatch(requested) else _DEFAULT
    return [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", b"%d" % MAX_AGE),
    ]
