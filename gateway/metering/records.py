"""What one attempt of one request used. Integers and UTC microseconds only.

An attempt leaves up to three kinds of lines in the log: its intent, checkpoints with the counts so far, and
its final. All are whole records, told apart by `seq`, so that any of them can stand for the attempt alone.
Only finals reach the ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from hashlib import sha1
from types import NoneType
from typing import Literal
from uuid import UUID

import orjson

NAMESPACE = UUID("6f0a9c1e-3d0b-5b52-9a53-0f5c6b1d7a10")
_NAMED = sha1(NAMESPACE.bytes, usedforsecurity=False)
FINAL = 2**31 - 1
"""`seq` of a final: after every checkpoint."""


class Outcome(StrEnum):
    OK = "ok"
    CLIENT_ABORT = "client_abort"
    ENGINE_ERROR = "engine_error"
    REJECTED = "rejected"
    FAILOVER = "failover"
    ORPHANED = "orphaned"
    """The worker died, and its successor closed the attempt from what the log held; or the worker was
    stopped, and cut the attempt off."""


class UsageSource(StrEnum):
    ENGINE_FINAL = "engine_final"
    """The engine's closing counts: exact."""
    ENGINE_PARTIAL = "engine_partial"
    """The last counts that the engine sent before the attempt broke off."""
    ESTIMATED = "estimated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class UsageRecord:
    id: str
    """uuid5 of request id and attempt: the ledger's dedupe key."""
    request_id: str
    attempt: int
    tenant: str
    key_id: str
    adapter: str
    """Full name, `acme/support`; empty: the base model itself."""
    version: str
    """`v3`; empty for the base model."""
    base_model: str
    engine: str
    gpu_type: str
    gpu_count: int
    dispatched: int
    first_token: int | None
    ended: int | None
    """None in intents and checkpoints."""
    prompt_tokens: int
    cached_tokens: int | None
    """Part of the prompt tokens; None: the engine did not say."""
    completion_tokens: int
    reasoning_tokens: int
    """Part of the completion tokens."""
    n: int
    usage_source: str
    outcome: str
    """Empty in intents and checkpoints."""
    billable: bool
    """The delivered attempt; the rest is retry waste."""
    adapter_loads: int = 0
    """Adapter loads that this attempt caused; those that waited for the same load caused none."""
    hour_marks: str | None = None
    """JSON [[time, prompt, cached or null, completion], …]: the counts at each full UTC hour that the attempt
    ran across; ascending, cumulative. None: it crossed none, or the engine gave no running counts (answers
    that are not streamed), and only time can divide it."""
    seq: int = FINAL
    seen: int = 0
    """When this line was true: what an orphan's `ended` is taken from."""

    @property
    def kind(self) -> Literal["intent", "checkpoint", "final"]:
        if self.seq == FINAL:
            return "final"
        return "checkpoint" if self.seq else "intent"

    def line(self) -> bytes:
        """One line of the log, with its newline."""
        return orjson.dumps(self, option=orjson.OPT_APPEND_NEWLINE)


def record_id(request_id: str, attempt: int) -> str:
    """uuid5(NAMESPACE, "request_id/attempt"), spelled out: three times as fast as the standard library's."""
    digest = _NAMED.copy()
    digest.update(f"{request_id}/{attempt}".encode())
    h = digest.hexdigest()
    variant = "89ab"[int(h[16], 16) & 3]
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-{variant}{h[17:20]}-{h[20:32]}"


_FINAL_MARK = f'"seq":{FINAL},'.encode()


def is_final(line: bytes) -> bool:
    """Cheap, and sure: inside a JSON string the quotes of the mark would be escaped."""
    return _FINAL_MARK in line


_FIELDS = tuple(f.name for f in fields(UsageRecord))
_LATER = {"adapter_loads": 0, "hour_marks": None}
"""What lines of earlier versions lack: an upgrade must lose nothing that waits in the log."""
_EARLIER = tuple(name for name in _FIELDS if name not in _LATER)
_MAYBE = {"first_token", "ended", "cached_tokens", "hour_marks"}
_TYPES: dict[str, type] = {
    f.name: bool if f.type == "bool" else int if "int" in str(f.type) else str for f in fields(UsageRecord)
}
_OUTCOMES = {"", *(o.value for o in Outcome)}
_SOURCES = {s.value for s in UsageSource}
_LONGEST = 366 * 24 * 3_600_000_000
"""Microseconds of an attempt; more is a damaged time, which would touch a million hours' roll-ups."""
_ODD = re.compile(rb"u0000|:-?\d{19}")
"""What no database of ours can hold, or looks like it: NUL in a text, integers beyond 64 bits. One record
that cannot be stored would hold up all behind it."""


def parse_line(line: bytes) -> UsageRecord:
    """Raises ValueError for anything but a whole record: torn, foreign or damaged lines."""
    data = orjson.loads(line)
    if isinstance(data, dict) and tuple(data) == _EARLIER:
        data = {name: data.get(name, _LATER.get(name)) for name in _FIELDS}
    if not isinstance(data, dict) or tuple(data) != _FIELDS:
        raise ValueError("not a usage record")
    values = tuple(data.values())
    if not _typed(tuple(map(type, values))):
        raise ValueError("not a usage record: a field has a wrong type")
    if _ODD.search(line) and not all(map(_storable, values)):
        raise ValueError("not a usage record: a value that no database can hold")
    record = UsageRecord(*values)
    if record.usage_source not in _SOURCES or record.outcome not in _OUTCOMES:
        raise ValueError("not a usage record: an unknown outcome or source")
    if record.seq == FINAL and not (
        record.ended is not None and 0 <= record.dispatched <= record.ended <= record.dispatched + _LONGEST
    ):
        raise ValueError("not a usage record: it has no end, or one that cannot be")
    return record


@cache  # a handful of patterns: which of the optional fields are there
def _typed(types: tuple[type, ...]) -> bool:
    return all(
        have is _TYPES[name] or (have is NoneType and name in _MAYBE)
        for have, name in zip(types, _FIELDS, strict=True)
    )


def _storable(value: object) -> bool:
    return "\0" not in value if isinstance(value, str) else not isinstance(value, int) or abs(value) < 2**63


def orphaned(last: UsageRecord) -> UsageRecord:
    """The final of an attempt whose worker died, from the last line that it wrote. A function of that line
    alone: whoever closes it, and however often, comes to the same record. Not billable: nobody can say that
    the answer was delivered."""
    return replace(
        last, seq=FINAL, outcome=Outcome.ORPHANED.value, ended=max(last.seen, last.dispatched), billable=False
    )
