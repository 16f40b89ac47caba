"""Shared by the finance routes: tenants, periods, content types, ETags and pagination."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute

from gateway.api.dependencies import StateDep
from gateway.costs.export.files import MissingPriceError
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.owner import Owner, names_reused, owns
from gateway.costs.periods import Period, iso, period, zone
from gateway.costs.periods import month_of as whole_month
from gateway.costs.rollups.parts import DIMENSIONS as PART_DIMENSIONS
from gateway.errors import FlorinError
from gateway.operations.known_tenants import require_tenant
from gateway.operations.state import State
from gateway.tenants.directory import Key

From = Annotated[str | None, Query(alias="from", description="Start, ISO 8601; inclusive.")]
To = Annotated[str | None, Query(description="End, ISO 8601; exclusive.")]
Month = Annotated[str | None, Query(description="`2026-11`, instead of from and to.")]
Zone = Annotated[
    str,
    Query(max_length=64, description="IANA name; months, days and times without an offset are in it."),
]
Tenant = Annotated[str | None, Query(description="Only this tenant's rows.")]
After = Annotated[str | None, Query(max_length=2000, description="`next` of the previous page.")]


class Tagged(APIRoute):
    """A route whose responses to GET have a strong ETag, the hash of the body, and which answers 304 to a
    client that has it. Streamed responses are unchanged."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await handle(request)
            body = getattr(response, "body", None)
            if request.method != "GET" or response.status_code != 200 or not isinstance(body, bytes):
                return response
            tag = response.headers["etag"] = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            response.headers.setdefault("vary", "authorization, accept")
            if not _known(request.headers.get("if-none-match", ""), tag):
                return response
            kept = {n: v for n, v in response.headers.items() if not n.startswith("content-")}
            return Response(status_code=304, headers=kept)

        return tagged


def _known(header: str, tag: str) -> bool:
    tags = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in tags or tag in tags


def preferred(accept: str, offers: Mapping[str, str], default: str) -> str:
    """The offer (media type → name) that an Accept header prefers; `default` if it has no preference or
    accepts none."""
    likes: dict[str, float] = {}
    for part in accept.split(","):
        media, *options = (piece.strip().lower() for piece in part.split(";"))
        given = [o.removeprefix("q=") for o in options if o.startswith("q=")]
        try:
            likes[media] = float(given[0]) if given else 1.0
        except ValueError:
            likes[media] = 0.0
    chosen, best = default, 0.0
    for media, name in offers.items():
        like = likes.get(media, likes.get(f"{media.split('/')[0]}/*", likes.get("*/*", 0.0)))
        if like > best or (like == best and like > 0 and name == default):
            chosen, best = name, like
    return chosen


def token(position: Sequence[str]) -> str:
    """A position in a paginated result, as an opaque token."""
    return base64.urlsafe_b64encode(json.dumps(list(position)).encode()).decode()


def position(after: str, width: int) -> tuple[str, ...]:
    """The position in a token. Raises FlorinError unless `token` made it."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(after.encode()))
    except (ValueError, binascii.Error, RecursionError):
        parts = None
    if not isinstance(parts, list) or len(parts) != width or not all(isinstance(v, str) for v in parts):
        raise FlorinError(
            "invalid_value", "after: use `next` of the previous page of the same query.", param="after"
        )
    return tuple(parts)


def dimensions_of(by: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",")))
    for name in names:
        if name not in known:
            raise FlorinError(
                "invalid_value", f"by: {name[:40]!r} is not one of {', '.join(known)}.", param="by"
            )
    parts = [name for name in names if name in PART_DIMENSIONS]
    if len(parts) > 2:
        raise FlorinError(
            "invalid_value",
            f"by: {', '.join(parts)} cannot be combined; ask for two of them at most.",
            param="by",
        )
    return names


def period_of(start: str | None, to: str | None, month: str | None, now: int, tz: tzinfo = UTC) -> Period:
    """The requested period, in the timezone `tz`. Raises PeriodError, and FlorinError if it lies in the
    future: that is a slip of the pen, and an empty report would hide it."""
    within = period(start=start, end=to, whole_month=month, now=now, tz=tz)
    if within.start > now:
        param, what = ("month", month) if month else ("from", iso(within.start))
        raise FlorinError(
            "invalid_value", f"{param}: {what} is in the future; it is {iso(now)} now.", param=param
        )
    return within


def _requested_period(
    state: StateDep, start: From = None, to: To = None, month: Month = None, timezone: Zone = "UTC"
) -> Period:
    return period_of(start, to, month, state.clock.now(), zone(timezone))


RequestedPeriod = Annotated[Period, Depends(_requested_period)]
"""Declare it after the key, so that only who may ask is told what is wrong with it."""


def month_of(value: str) -> str:
    """`value`, if it is a month. Raises PeriodError."""
    whole_month(value)
    return value


def owner_of(state: State, key: Key) -> Owner | None:
    """The tenant that a tenant's key may see, from when it was added; None for staff."""
    if key.own_tenant is None:
        return None
    known = state.directory.tenants.get(key.own_tenant)
    return Owner(key.own_tenant, state.clock.now() if known is None else known.created)


async def names_reused_in(state: State, within: Period) -> dict[str, str]:
    """For staff: see `names_reused`. Raises LedgerUnavailableError."""
    added = {t.name: t.created for t in state.directory.tenants.values() if t.created > within.start}
    return await state.ledger_process.run(names_reused, added, within) if added else {}


async def is_own_month(state: State, key: Key, name: str) -> bool:
    """Whether the key may see what exists of a month as a whole. Raises LedgerUnavailableError."""
    owner = owner_of(state, key)
    return owner is None or await ledger_process_of(state, key).run(owns, owner, name)


async def require_own_month(state: State, key: Key, name: str) -> None:
    """Raises FlorinError unless `is_own_month`."""
    if not await is_own_month(state, key, name):
        raise FlorinError(
            "not_found",
            f"{key.own_tenant} has no statement and no export of {name}: it was added later, or within that "
            "month. Usage and costs show what it used.",
            param="month",
        )


def tenants_of(key: Key, tenant: str | None) -> tuple[str, ...]:
    """The tenants whose rows are shown: the requested one, limited to its own for a tenant's key."""
    own = () if key.own_tenant is None else (key.own_tenant,)
    return own if tenant is None else (*own, tenant)


async def known_tenants_of(state: State, key: Key, tenant: str | None) -> tuple[str, ...]:
    """`tenants_of`, if there is such a tenant. A tenant's key hears the same of every tenant but its own,
    whether it exists or not. Raises FlorinError, LedgerUnavailableError."""
    if key.own_tenant is None:
        if tenant is not None:
            await require_tenant(state, tenant)
    elif tenant not in {None, key.own_tenant}:
        raise FlorinError(
            "not_found", f"This key sees only its own tenant, {key.own_tenant}.", param="tenant"
        )
    return tenants_of(key, tenant)


def ledger_process_of(state: State, key: Key) -> LedgerProcess:
    """The ledger process that answers: tenants have their own, so that operators and analysts do not wait."""
    return state.ledger_process if key.own_tenant is None else state.ledger_process.for_tenants()


def missing_price(error: MissingPriceError, key: Key) -> FlorinError:
    """For staff: which price, and how to add it. A customer can only wait or ask."""
    if key.own_tenant is None:
        return FlorinError("missing_price", str(error))
    return FlorinError("missing_price", "Your provider has not entered all prices for this month yet.")


def rendered(data: bytes, **beside: Any) -> Response:
    """{"data": …} and what stands beside it. `data` is JSON already, made off the event loop."""
    rest = json.dumps(beside, separators=(",", ":")).encode()
    return Response(b'{"data":' + data + b"," + rest[1:], media_type="application/json")


def only_staff(key: Key) -> None:
    """Raises FlorinError for a tenant's key."""
    if key.own_tenant is not None:
        raise FlorinError("insufficient_role", "This requires the finance or operator role.")
