"""Shared by the finance routes: tenants, periods, formats, ETags and page tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.routing import APIRoute

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.periods import Period, PeriodError, period
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.tenants.directory import Key, Role

From = Annotated[str | None, Query(alias="from", description="Start, inclusive: ISO 8601, UTC.")]
To = Annotated[str | None, Query(description="End, exclusive: ISO 8601, UTC.")]
Month = Annotated[str | None, Query(description="`2026-11`, instead of `from` and `to`.")]
Tenant = Annotated[str | None, Query(description="Only this tenant's rows.")]
After = Annotated[str | None, Query(max_length=2000, description="`next` of the previous page.")]


class Tagged(APIRoute):
    """Adds a strong ETag, the hash of the body, to responses to GET, and answers 304 if the client has that
    body. Streamed responses get none."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await handle(request)
            body = getattr(response, "body", None)
            if request.method != "GET" or response.status_code != 200 or not isinstance(body, bytes):
                return response
            tag = response.headers["etag"] = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            response.headers.setdefault("cache-control", "private, no-cache")
            response.headers.setdefault("vary", "authorization, accept")
            if not _known(request.headers.get("if-none-match", ""), tag):
                return response
            kept = {n: v for n, v in response.headers.items() if not n.startswith("content-")}
            return Response(status_code=304, headers=kept)

        return tagged


def _known(header: str, tag: str) -> bool:
    held = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in held or tag in held


def preferred(accept: str, offers: Mapping[str, str], default: str) -> str:
    """The entry of `offers` (media type → name) with the highest quality in an Accept header; `default` on a
    tie or if none matches."""
    qualities: dict[str, float] = {}
    for part in accept.split(","):
        media, *options = (piece.strip().lower() for piece in part.split(";"))
        given = [o.removeprefix("q=") for o in options if o.startswith("q=")]
        try:
            qualities[media] = float(given[0]) if given else 1.0
        except ValueError:
            qualities[media] = 0.0
    chosen, best = default, 0.0
    for media, name in offers.items():
        quality = qualities.get(media, qualities.get(f"{media.split('/')[0]}/*", qualities.get("*/*", 0.0)))
        if quality > best or (quality == best and quality > 0 and name == default):
            chosen, best = name, quality
    return chosen


def token(position: Sequence[str]) -> str:
    """A page token: the position as an opaque string."""
    return base64.urlsafe_b64encode(json.dumps(list(position)).encode()).decode()


def position(after: str, width: int) -> tuple[str, ...]:
    """The position in a page token. Raises FlorinError if `token` did not make it."""
    try:
        found = json.loads(base64.urlsafe_b64decode(after.encode()))
    except (ValueError, binascii.Error, RecursionError):
        found = None
    if not isinstance(found, list) or len(found) != width or not all(isinstance(v, str) for v in found):
        raise FlorinError(
            "invalid_value", "after: pass `next` of the previous page, with the same `by`.", param="after"
        )
    return tuple(found)


def dimensions_of(by: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",")))
    for name in names:
        if name not in known:
            raise FlorinError(
                "invalid_value", f"by: {name[:40]!r} is not one of {', '.join(known)}.", param="by"
            )
    return names


def period_of(start: str | None, to: str | None, month: str | None, now: int) -> Period:
    try:
        return period(start=start, end=to, whole_month=month, now=now)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error


def tenants_of(key: Key, asked: str | None) -> tuple[str, ...]:
    """The tenants that rows must belong to: the requested one, and the key's own if it is a tenant's."""
    own = (key.tenant,) if key.role is Role.TENANT else ()
    return own if asked is None else (*own, asked)


def ledger_process_of(state: State, key: Key) -> LedgerProcess:
    """The process that answers the query. Tenants have one of their own, so they never delay operators."""
    return state.ledger_process.for_tenants() if key.role is Role.TENANT else state.ledger_process


def rendered(data: bytes, **members: Any) -> Response:
    """{"data": …} and further members. `data` is JSON, rendered off the event loop."""
    rest = json.dumps(members, separators=(",", ":")).encode()
    return Response(b'{"data":' + data + b"," + rest[1:], media_type="application/json")


def only_staff(key: Key) -> None:
    """Raises FlorinError for a tenant's key, since the response covers all tenants."""
    if key.role is Role.TENANT:
        raise FlorinError("insufficient_role", "This requires a key of role finance or operator.")
