"""Errors and response headers in that API's vocabulary."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from gateway.dataplane.dialect import Dialect, Headers
from gateway.errors import FlorinError

STATUSES: Final[Mapping[str, int]] = {
    "overloaded": 529,
    "placement_timeout": 529,
    "worker_full": 529,
    "budget_exhausted": 402,
    "credits_exhausted": 402,
}
"""By code, where that API has another status. 529 says that the service has no room: clients retry it as they
do 503, and name it in their messages. 402 is not retried: a budget does not return in a moment."""
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_LIMITS: Final = re.compile(rb"x-ratelimit-(limit|remaining|reset)-(requests|tokens)")
_DURATION: Final = re.compile(rb"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def error_object(error: FlorinError) -> dict[str, Any]:
    """`code` and `param` are additions, for those who look a code up in Florin's documentation."""
    status = STATUSES.get(error.code, error.status)
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": kind, "message": error.message, "code": error.code, "param": error.param}


def error_body(error: FlorinError, request_id: str) -> bytes:
    """An error response's body."""
    return orjson.dumps({"type": "error", "error": error_object(error), "request_id": request_id or None})


def headers(ours: Headers) -> Headers:
    """That API's names of response headers, beside Florin's own."""
    return headers_at(ours, time.time())


def headers_at(ours: Headers, now: float) -> Headers:
    """`now`: in seconds since 1970."""
    return [their for name, value in ours if (their := _header(name, value, now)) is not None]


def _header(name: bytes, value: bytes, now: float) -> tuple[bytes, bytes] | None:
    if name == b"x-request-id":
        return b"request-id", value
    limit = _LIMITS.fullmatch(name)
    if limit is None:
        return None
    which, unit = limit.groups()
    their = b"anthropic-ratelimit-%b-%b" % (unit, which)
    return (their, _moment(now + _seconds(value))) if which == b"reset" else (their, value)


def _moment(seconds: float) -> bytes:
    """As RFC 3339 writes it, in full seconds."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z").encode()


def _seconds(duration: bytes) -> float:
    """See `gateway.tenants.limits.wording.duration`."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        return 0.0
    hours, minutes, seconds, ms = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds + ms / 1000


PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
DIALECT: Final = Dialect(error_body, STATUSES, headers, PING)
