"""Usage records: what one attempt of one request used. Integers and UTC microseconds only.

An attempt writes up to three kinds of lines to the log: an intent, checkpoints with the counts so far, and a
final. All are complete records, distinguished by `seq`, so that any of them can represent the attempt. Only
finals reach the ledger.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache, lru_cache
from hashlib import sha1
from types import NoneType
from typing import Literal, NamedTuple, cast, get_args
from uuid import UUID

import orjson

from adapters.model import GENERATE, NAME_PATTERN, Task
from gateway.dataplane.labels import storable
from gateway.metering.token_counts import MAX_CHOICES, MAX_GPUS, plausible
from gateway.units import DAY, HOUR

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
    """The worker died and its successor closed the attempt from the log, or the worker stopped and cut the
    attempt off."""
    RESUMED = "resumed"
    """It continued a stream that another engine had begun, and completed it."""
    RESUMED_CUT = "resumed_cut"
    """It continued such a stream but did not complete it: the client left, or this engine failed."""


CONTINUED = frozenset({Outcome.RESUMED.value, Outcome.RESUMED_CUT.value})
"""Outcomes of attempts that are partly waste: the prompt was processed again, with the part of the answer
already delivered. Only the completion is billed."""


class UsageSource(StrEnum):
    ENGINE_FINAL = "engine_final"
    """The engine's final counts: exact."""
    ENGINE_PARTIAL = "engine_partial"
    """The last counts that the engine sent before the attempt was interrupted."""
    ESTIMATED = "estimated"
    NONE = "none"


BATCH = "batch"
"""The service tier of lines of batches."""


class Labels(NamedTuple):
    """Whose a request is within its tenant, for reports; None: not given. See `gateway.dataplane.labels`."""

    end_user: str | None = None
    tag: str | None = None
    cost_centre: str | None = None


NO_LABELS = Labels()


class UsageRecord(NamedTuple):
    """A tuple, because making one takes a tenth of the time of a frozen dataclass of so many fields."""

    id: str
    """Follows from request id and attempt: the ledger's deduplication key. See `record_id`."""
    request_id: str
    attempt: int
    tenant: str
    key_id: str
    adapter: str
    """Full name, `acme/support`; empty for the base model."""
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
    """Part of the prompt tokens; None if the engine did not report it."""
    completion_tokens: int
    reasoning_tokens: int
    """Part of the completion tokens."""
    n: int
    usage_source: str
    outcome: str
    """Empty in intents and checkpoints."""
    billable: bool
    """True for the delivered attempt; others are retry waste. If the outcome is in CONTINUED, the prompt is
    waste."""
    adapter_loads: int = 0
    """Adapter loads caused by this attempt; attempts that waited for the same load caused none."""
    hour_marks: str | None = None
    """JSON [[time, prompt, cached or null, completion], …]: the cumulative counts at each full UTC hour
    during the attempt, ascending. None if there was none, or if the engine sent no running counts
    (non-streamed answers); the attempt is then divided by time."""
    end_user: str | None = None
    """See `Labels`, as the next two."""
    tag: str | None = None
    cost_centre: str | None = None
    """The label of the key, adapter or tenant when the attempt began."""
    service_tier: str = ""
    """BATCH: a line of a batch, at the batch price; empty: any other request."""
    task: str = ""
    """What the endpoint asked of the engine, `embed` or `score`; empty: GENERATE."""
    seq: int = FINAL
    seen: int = 0
    """Time of this line; becomes `ended` of an orphaned attempt."""

    @property
    def kind(self) -> Literal["intent", "checkpoint", "final"]:
        if self.seq == FINAL:
            return "final"
        return "checkpoint" if self.seq else "intent"

    def line(self) -> bytes:
        """The log line, with newline."""
        return orjson.dumps(self._asdict(), option=orjson.OPT_APPEND_NEWLINE)


def record_id(request_id: str, attempt: int) -> str:
    """The digits of the request id and the attempt, in the form of a UUID: ids of later requests are greater,
    so records are stored one after the other.

    Of another request id, such as those of earlier versions, uuid5(NAMESPACE, "request_id/attempt")
    (RFC 9562)."""
    if _TIMED.fullmatch(request_id):
        d = request_id
        return f"{d[4:12]}-{d[12:16]}-{d[16:20]}-{d[20:24]}-{d[24:]}{attempt:04x}"
    digest = _NAMED.copy()
    digest.update(f"{request_id}/{attempt}".encode())
    h = digest.hexdigest()
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-{_VARIANTS[h[16]]}{h[17:20]}-{h[20:32]}"


_VARIANTS = {f"{bits:x}": "89ab"[bits & 3] for bits in range(16)}


_TIMED = re.compile(r"req-[0-9a-f]{28}")
"""See `new_request_id`."""
_FINAL_MARK = f'"seq":{FINAL},'.encode()


def is_final(line: bytes) -> bool:
    """A substring test is safe, because quotes inside a JSON string are escaped."""
    return _FINAL_MARK in line


_FIELDS = UsageRecord._fields
_MAYBE = {"first_token", "ended", "cached_tokens", "hour_marks", *Labels._fields}
_TYPES: dict[str, type] = {
    name: bool if "bool" in str(type_) else int if "int" in str(type_) else str
    for name, type_ in UsageRecord.__annotations__.items()
}
_OUTCOMES = {"", *(o.value for o in Outcome)}
_SOURCES = {s.value for s in UsageSource}
_TASKS = {"", *get_args(Task)} - {GENERATE}
_LONGEST = 366 * DAY
"""Longest attempt in microseconds; a damaged time could otherwise touch the roll-ups of a million hours."""
_LAST = 4_102_444_800_000_000
"""The year 2100, Unix microseconds: a limit for wrong clocks."""
MOST_ATTEMPTS = 10_000
"""Per request; the router gives up long before."""
_MOST_TEXT = 1024
"""Characters of a request id, key id or GPU type."""
_NUL = b"u0000"
"""In lines that may contain NUL, which the databases cannot store in text. One such record would block all
behind it."""
_VERSION = re.compile(r"v[1-9]\d{0,9}", re.ASCII)


def parse_line(line: bytes) -> UsageRecord:
    """Parse a line. Raises ValueError unless the writer could have written it: for torn, damaged, foreign and
    forged lines."""
    data = orjson.loads(line)
    # Canonical form only. A duplicate key or an unusual number could mean something else to another reader.
    if not isinstance(data, dict) or orjson.dumps(data) != line.rstrip(b"\n"):
        raise ValueError("not a usage record: not in canonical form")
    values = tuple(data.values())
    if tuple(data) != _FIELDS:
        raise ValueError("not a usage record")
    if not _typed(tuple(map(type, values))):
        raise ValueError("not a usage record: a field has a wrong type")
    if _NUL in line and any(isinstance(value, str) and "\0" in value for value in values):
        raise ValueError("not a usage record: a value that no database can store")
    record = UsageRecord._make(values)
    if wrong := _impossible(record):
        raise ValueError(f"not a usage record: {wrong}")
    return record


def of_newer_version(line: bytes) -> bool:
    """Whether a later version of Florin, whose records have more fields, has written this."""
    try:
        return set(orjson.loads(line)) > set(_FIELDS)
    except (ValueError, TypeError):
        return False


def _impossible(r: UsageRecord) -> str:
    """Why the writer cannot have written this, or an empty string."""
    if r.usage_source not in _SOURCES or r.outcome not in _OUTCOMES:
        return "unknown outcome or source"
    if r.service_tier not in {"", BATCH}:
        return "unknown service tier"
    if r.task not in _TASKS:
        return "unknown task"
    final = r.seq == FINAL
    if (r.ended is not None) != final or (r.outcome != "") != final or (r.billable and not final):
        return "its end does not fit its kind"
    if not _in_time(r):
        return "an impossible time"
    if r.id != record_id(r.request_id, r.attempt):
        return "the id belongs to another attempt"
    if not (0 <= r.attempt <= MOST_ATTEMPTS and 0 <= r.seq <= FINAL and 0 <= r.adapter_loads < 2**31):
        return "a number out of range"
    if not _well_named(r.tenant, r.adapter, r.version, r.engine, r.key_id, r.gpu_type) or not (
        0 < len(r.request_id) <= _MOST_TEXT
    ):
        return "an invalid name"
    if not all(map(_storable, (r.end_user, r.tag, r.cost_centre))):
        return "an invalid label"
    if not _countable(r):
        return "implausible token counts"
    return "" if r.hour_marks is None or _marked(r, r.hour_marks) else "invalid hour marks"


def _storable(label: str | None) -> bool:
    return label is None or storable(label)


def _in_time(r: UsageRecord) -> bool:
    start, end = r.dispatched, _end(r)
    return (
        0 <= start <= end <= min(start + _LONGEST, _LAST)
        and 0 <= r.seen <= _LAST
        and (r.first_token is None or start <= r.first_token <= end)
    )


def _end(r: UsageRecord) -> int:
    return r.seen if r.ended is None else r.ended


def _countable(r: UsageRecord) -> bool:
    if not (0 <= r.n <= MAX_CHOICES and 0 <= r.gpu_count <= MAX_GPUS):
        return False
    return plausible(
        r.prompt_tokens,
        r.completion_tokens,
        r.cached_tokens,
        r.reasoning_tokens,
        prompts=MAX_CHOICES // (r.n or 1),
        choices=MAX_CHOICES,
    )


@lru_cache(maxsize=4096)  # the same few while an adapter is in use
def _well_named(tenant: str, adapter: str, version: str, engine: str, key_id: str, gpu_type: str) -> bool:
    owner, slash, name = adapter.partition("/")
    return (
        NAME_PATTERN.fullmatch(tenant) is not None
        and (not adapter or (slash == "/" and all(map(NAME_PATTERN.fullmatch, (owner, name)))))
        and (not version or _VERSION.fullmatch(version) is not None)
        and (not engine or NAME_PATTERN.fullmatch(engine) is not None)
        and len(key_id) <= _MOST_TEXT
        and len(gpu_type) <= _MOST_TEXT
    )


def _marked(r: UsageRecord, text: str) -> bool:
    """Full hours within the attempt, ascending, with counts that never decrease or exceed the record's."""
    try:
        marks = orjson.loads(text)
        before, least = r.dispatched, (0, 0)
        for hour, prompt, cached, completion in marks:
            if not (
                type(hour) is int
                and before < hour <= _end(r)
                and hour % HOUR == 0
                and plausible(prompt, completion, cached, 0, prompts=MAX_CHOICES, choices=MAX_CHOICES)
                and least[0] <= prompt <= r.prompt_tokens
                and least[1] <= completion <= r.completion_tokens
            ):
                return False
            before, least = hour, (prompt, completion)
    except (ValueError, TypeError):
        return False
    return bool(marks)


@cache  # a few patterns, depending on the optional fields
def _typed(types: tuple[type, ...]) -> bool:
    return all(
        have is _TYPES[name] or (have is NoneType and name in _MAYBE)
        for have, name in zip(types, _FIELDS, strict=True)
    )


def task_of(recorded: str | None) -> Task:
    """The task that a record, or what is made of it, says."""
    return cast("Task", recorded or GENERATE)


def orphaned(last: UsageRecord) -> UsageRecord:
    """The final of an attempt whose worker died, computed from its last line alone, so that closing it again
    gives the same record. Not billable, because delivery is unknown."""
    return last._replace(
        seq=FINAL, outcome=Outcome.ORPHANED.value, ended=max(last.seen, last.dispatched), billable=False
    )
