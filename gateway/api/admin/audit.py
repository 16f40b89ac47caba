"""/admin/v1/audit: who changed what, and which version on which engine answered a request."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query

from gateway.api.admin.adapter_answers import own_source
from gateway.api.admin.common import Managed, Operator
from gateway.api.dependencies import Manager, StateDep
from gateway.api.finance.common import position, token
from gateway.costs.periods import PeriodError, instant, iso
from gateway.errors import FlorinError
from gateway.metering.ledger.audit_log import Logged, Position, Wanted
from gateway.metering.records import UsageRecord
from gateway.operations import audit
from gateway.operations.state import State
from gateway.operations.transaction import Json
from gateway.tenants.directory import PERSON, TENANT_ROLES

router = APIRouter(prefix="/audit", tags=["audit"], dependencies=[Managed])

_LARGEST = 1 << 63
_OWN_DETAILS = frozenset(
    {
        *("digest", "source", "previous", "from", "weight", "live", "canary", "instead_of", "versions"),
        *("tenant", "role", "label", "new", "overlap", "cost_centre", "reason", "guard", "held"),
    }
)
"""Details of entries that the tenant may see."""

Text = Annotated[
    str | None,
    Query(max_length=500, description="`acme/*` matches everything that begins with `acme/`."),
]
Time = Annotated[str | None, Query(max_length=60, description="ISO 8601, UTC.")]


@router.get("")
async def show(
    *,
    state: StateDep,
    authority: Manager,
    subject: Text = None,
    actor: Text = None,
    action: Text = None,
    since: Time = None,
    until: Annotated[str | None, Query(max_length=60, description="Exclusive.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=2000, description="`next` of the previous page.")] = None,
) -> Json:
    """List entries, newest first. `next` is null on the last page. `complete` is false while Redis is
    unavailable: the entries of the last seconds may be missing then. A key of role `tenant-admin` sees the
    entries about its tenant's adapters and keys; who else acted is `operator` or `florin`."""
    wanted = Wanted(
        subject=subject,
        actor=actor,
        action=action,
        since=_instant("since", since),
        until=_instant("until", until),
        before=None if cursor is None else _position_of(cursor),
        within=audit.own_subjects(state, authority.tenant),
    )
    found, complete = await audit.entries(state, wanted, limit + 1)
    shown = found[:limit]
    more = token([str(part) for part in shown[-1].position]) if len(found) > limit else None
    rendered = _entry_json if authority.tenant is None else _own_entry_json
    return {"data": [rendered(state, entry) for entry in shown], "next": more, "complete": complete}


@router.get("/requests/{request_id}", dependencies=[Operator])
async def show_request(
    state: StateDep,
    request_id: Annotated[str, Path(max_length=200, description="`x-request-id` of the response.")],
) -> Json:
    """All attempts of a request, in order. `complete` is false while records are still arriving in the
    ledger, which takes a second or two: try again shortly. `error` is what the request ended with if it is
    among the last errors of its tenant, else null. A request that was refused before it reached an engine has
    nothing else, and one without a valid key not even that: it is in the log only."""
    (attempts, complete), error = await asyncio.gather(
        audit.attempts(state, request_id), audit.error_of(state, request_id)
    )
    return {
        "request_id": request_id,
        "attempts": [_attempt_json(state, record) for record in attempts],
        "complete": complete,
        "error": error,
    }


def _entry_json(state: State, entry: Logged) -> Json:
    return {
        "id": entry.id,
        "at": iso(entry.at),
        "actor": entry.actor,
        "actor_key": _key_json(state, entry.actor),
        "action": entry.action,
        "subject": entry.subject,
        "version": entry.version,
        "details": entry.details,
    }


def _own_entry_json(state: State, entry: Logged) -> Json:
    """For the tenant itself: nothing about operators, engines and hosts."""
    whole = _entry_json(state, entry)
    key = whole["actor_key"]
    own = entry.actor.startswith("oidc@") if key is None else key["role"] in TENANT_ROLES
    if not own:
        staff = entry.actor == "bootstrap" or entry.actor.startswith(("key:", *PERSON))
        whole |= {"actor": "operator" if staff else "florin", "actor_key": None}
    details = {name: value for name, value in entry.details.items() if name in _OWN_DETAILS}
    if "source" in details:
        details["source"] = own_source(str(details["source"]))
    return whole | {"details": details}


def _key_json(state: State, actor: str) -> Json | None:
    """The actor's key; None if the actor is not a key or the registry does not know it."""
    key = state.directory.keys.get(actor.removeprefix("key:")) if actor.startswith("key:") else None
    return (
        None if key is None else {"tenant": key.tenant, "role": key.role, "revoked": key.revoked is not None}
    )


def _attempt_json(state: State, record: UsageRecord) -> Json:
    fields = asdict(record)
    for name in ("id", "request_id", "seq", "seen", "hour_marks", "adapter_loads"):
        del fields[name]
    for name in ("dispatched", "first_token", "ended"):
        fields[name] = None if fields[name] is None else iso(fields[name])
    key = _key_json(state, f"key:{record.key_id}")
    return {**fields, "key_role": key and key["role"], "loads": record.adapter_loads}


def _position_of(cursor: str) -> Position:
    try:
        at, seq, id_, digest = position(cursor, 4)
        found = int(at[:20]), int(seq[:20]), id_, digest
        if not all(-_LARGEST <= n < _LARGEST for n in found[:2]):
            raise ValueError("beyond 64 bits")
    except (FlorinError, ValueError):
        raise FlorinError(
            "invalid_value", "cursor: use `next` of the previous page.", param="cursor"
        ) from None
    return found


def _instant(param: str, value: str | None) -> int | None:
    try:
        return None if value is None else instant(param, value)
    except PeriodError as error:
        raise FlorinError("invalid_value", str(error), param=error.param) from error
