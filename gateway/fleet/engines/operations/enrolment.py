"""Enrolment: how an engine's host gets a key of its own.

An operator creates a token for one engine name, or the host's platform signs one. The host generates a key,
keeps it, and sends the token with the key's digest. No long-lived secret is ever sent, and a host that
receives no answer still has its key. The first exchange that commits uses up an operator's token; all others
are refused. A platform's may be sent again until it expires, and only takes over an engine that a host of the
same subject enrolled.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace

from adapters.errors import ConflictError
from adapters.model import Engine
from adapters.registry.transaction import Proposal
from adapters.store.protocol.registry import AuditNote, Change
from gateway.errors import FlorinError
from gateway.fleet.engines.schemas.hosts import NewToken
from gateway.operations.authorization import actor_of
from gateway.operations.state import State
from gateway.operations.transaction import Json, RegistryReading, change
from gateway.tenants.authentication import USED_UP
from gateway.tenants.directory import Key, Pins, Role, dump, mint
from gateway.tenants.keys.operations import check_engine
from gateway.units import DAY

_KEPT_MICROS = DAY
"""How long a token is listed after it has expired or was used."""


async def create_token(state: State, new: NewToken, *, actor: str) -> tuple[Key, str]:
    """Return the token and its text, which is not stored. It replaces any unused token for the same engine.
    Raises FlorinError, InvalidNameError."""
    engine, pins = new.engine, Pins(**new.model_dump(exclude={"engine", "expires_in"}))
    check_engine(engine)
    now = state.clock.now()
    expires = now + new.expires_in * 1_000_000
    token, text = mint("", Role.ENROLMENT, now, engine=engine, pins=pins, expires=expires)
    details = {"token": token.id, "expires_in": new.expires_in, **pins_json(pins)}

    def plan(reading: RegistryReading) -> Proposal[None]:
        stale = [k for k in reading.directory.keys.values() if _stale(k, engine, now)]
        changes = [
            Change("key", token.id, dump(token), expect=None),
            *(reading.deletion("key", k.id, dump(k)) for k in stale),
        ]
        return Proposal(changes, None, AuditNote(actor, "token.create", engine, details=details))

    await change(state, plan)
    return token, text


async def enrol(state: State, token: Key, *, engine: str, digest: str) -> Key:
    """Exchange the token for a key whose text has this SHA-256, and revoke the engine's earlier keys. Raises
    FlorinError, ConflictError."""
    if engine != token.engine:
        raise FlorinError(
            "invalid_value", f"This token is for engine {token.engine}, and no other.", param="engine"
        )
    now = state.clock.now()
    check_engine(token.engine)
    key = Key(
        secrets.token_hex(6), "", Role.ENGINE, digest, now, engine=token.engine, pins=token.pins,
        label=token.label,
    )  # fmt: skip
    note = AuditNote(actor_of(token), "token.use", token.engine, details={"key": key.id})

    def plan(reading: RegistryReading) -> Proposal[Key]:
        earlier = [k for k in reading.directory.keys.values() if _of_engine(k, token.engine)]
        ending = [k for k in earlier if k.revoked is None]
        replaced: list[Key] = []
        if token.is_stored:
            mine = reading.directory.keys.get(token.id)
            if mine is None or mine.revoked is not None:
                raise FlorinError("revoked_api_key", USED_UP)
            ending.append(mine)
        else:
            _check_same_subject(token, ending, reading.catalog.engines.get(token.engine))
            # A host may enrol as often as it likes: of its keys, only the last two are kept.
            replaced = [k for k in earlier if k.revoked is not None and k.label == token.label]
        if reading.directory.knows(digest) or state.directory.knows(digest):
            raise ConflictError("Another key has this secret: each needs its own.")
        changes = [
            *(reading.change("key", k.id, dump(replace(k, revoked=now)), dump(k)) for k in ending),
            *(reading.deletion("key", k.id, dump(k)) for k in replaced),
            Change("key", key.id, dump(key), expect=None),
        ]
        return Proposal(changes, key, note)

    return await change(state, plan)


def _check_same_subject(token: Key, valid: Sequence[Key], engine: Engine | None) -> None:
    """`valid`: keys of the engine, which is registered as `engine`."""
    if engine is not None and not engine.key and not valid:
        raise ConflictError(
            f"Engine {token.engine} was registered by an operator: remove it first (`florin engine remove "
            f"{token.engine}`), or name this host otherwise."
        )
    other = next((k for k in valid if k.label != token.label), None)
    if other is not None:
        raise ConflictError(
            f"Engine {token.engine} has the key {other.id} of another host: revoke that first (`florin key "
            f"revoke {other.id}`), or name this host otherwise."
        )


def pins_json(pins: Pins) -> Json:
    """The pinned fields only."""
    return {name: value for name, value in asdict(pins).items() if value is not None}


def _of_engine(key: Key, engine: str) -> bool:
    return key.role is Role.ENGINE and key.engine == engine


def _stale(key: Key, engine: str, now: int) -> bool:
    """Whether a new token for `engine` replaces this one, or it ended long ago."""
    if key.role is not Role.ENROLMENT:
        return False
    ended = key.revoked or key.expires or now
    return key.engine == engine or ended < now - _KEPT_MICROS
