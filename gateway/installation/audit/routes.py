"""/admin/v1/audit: who changed what, and which version on which engine answered a request."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query

from gateway.api.admin_requests import Audited, OwnAudit
from gateway.api.dependencies import AuditReader, StateDep
from gateway.api.finance_requests import position, token
from gateway.costs.periods import instant_or_none, iso
from gateway.errors import FlorinError
from gateway.fleet.adapters.routes.answers import own_source
from gateway.installation.audit import operations as audit
from gateway.installation.audit.schemas import ActorKey, Attempt, AuditEntry, AuditPage, RequestAttempts
from gateway.metering.ledger.audit_log import Logged, Position, Wanted
from gateway.metering.records import UsageRecord
from gateway.operations.state import State
from gateway.schemas.base import Json
from gateway.tenants.directory import PERSON, TENANT_ROLES

router = APIRouter(prefix="/audit", tags=["audit"])

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


@router.get("", dependencies=[OwnAudit])
async def show(
    *,
    state: StateDep,
    authority: AuditReader,
    subject: Text = None,
    actor: Text = None,
    action: Text = None,
    since: Time = None,
    until: Annotated[str | None, Query(max_length=60, description="Exclusive.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=2000, description="`next` of the previous page.")] = None,
) -> AuditPage:
    """List entries, newest first. A key of role `tenant-admin` sees the entries about its tenant's adapters
    and keys; who else acted is `operator` or `florin`."""
    filters = Wanted(
        subject=subject,
        actor=actor,
        action=action,
        since=instant_or_none("since", since),
        until=instant_or_none("until", until),
        before=None if cursor is None else _position_of(cursor),
        within=audit.own_subjects(state, authority.tenant),
    )
    entries, complete = await audit.entries(state, filters, limit + 1)
    page = entries[:limit]
    more = token([str(part) for part in page[-1].position]) if len(entries) > limit else None
    shown = _entry if authority.tenant is None else _own_entry
    return AuditPage(data=tuple(shown(state, entry) for entry in page), next=more, complete=complete)


@router.get("/requests/{request_id}", dependencies=[Audited])
async def show_request(
    state: StateDep,
    request_id: Annotated[str, Path(max_length=200, description="`x-request-id` of the response.")],
) -> RequestAttempts:
    """All attempts of a request, in order. A request that was refused before it reached an engine has only an
    `error`, and one without a valid key not even that: it is in the log only."""
    (attempts, complete), error = await asyncio.gather(
        audit.attempts(state, request_id), audit.error_of(state, request_id)
    )
    return RequestAttempts(
        request_id=request_id,
        attempts=tuple(_attempt(state, record) for record in attempts),
        complete=complete,
        error=error,
    )


def _entry(state: State, entry: Logged) -> AuditEntry:
    return AuditEntry.of(entry, recorded_at=iso(entry.at), actor_key=_key(state, entry.actor))


def _own_entry(state: State, entry: Logged) -> AuditEntry:
    """For the tenant itself: nothing about operators, engines and hosts."""
    shown = _entry(state, entry)
    key = shown.actor_key
    own = entry.actor.startswith("oidc@") if key is None else key.role in TENANT_ROLES
    details = {name: value for name, value in entry.details.items() if name in _OWN_DETAILS}
    if "source" in details:
        details["source"] = own_source(str(details["source"]))
    changes: Json = {"details": details}
    if not own:
        staff = entry.actor == "bootstrap" or entry.actor.startswith(("key:", *PERSON))
        changes |= {"actor": "operator" if staff else "florin", "actor_key": None}
    return shown.model_copy(update=changes)


def _key(state: State, actor: str) -> ActorKey | None:
    """The actor's key; None if the actor is not a key or the registry does not know it."""
    key = state.directory.keys.get(actor.removeprefix("key:")) if actor.startswith("key:") else None
    return None if key is None else ActorKey.of(key, revoked=key.revoked is not None)


def _attempt(state: State, record: UsageRecord) -> Attempt:
    key = _key(state, f"key:{record.key_id}")
    return Attempt.of(
        record,
        dispatched=iso(record.dispatched),
        first_token=None if record.first_token is None else iso(record.first_token),
        ended=None if record.ended is None else iso(record.ended),
        key_role=key and key.role,
        loads=record.adapter_loads,
    )


def _position_of(cursor: str) -> Position:
    try:
        micros, seq, id_, digest = position(cursor, 4)
        place = int(micros[:20]), int(seq[:20]), id_, digest
        if not all(-_LARGEST <= n < _LARGEST for n in place[:2]):
            raise ValueError("beyond 64 bits")
    except (FlorinError, ValueError):
        raise FlorinError(
            "invalid_value", "cursor: use `next` of the previous page.", param="cursor"
        ) from None
    return place
