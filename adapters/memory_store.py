"""The store's twin in one process: for tests that need no server, and as a model of the Lua scripts.

The placement part follows the scripts line by line, so that the two can be read side by side; the property
tests run them against each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from adapters.errors import ConflictError, FencedError, StoreUnavailableError
from adapters.model import Placement, SlotState, dump
from adapters.store import (
    DOCUMENT_KINDS,
    AuditEntry,
    AuditNote,
    Change,
    Claim,
    ClaimResult,
    Event,
    Facts,
    Fence,
    GapError,
    Snapshot,
    Touch,
    check_kinds,
    dump_note,
    load_note,
    with_time_left,
)

LEAVING_MS = 5000
RENEW_MS = 500
ASKED_MS = 1500
QUIET_S = 0.9


@dataclass(slots=True)
class _Held:
    """One version's assignment."""

    state: SlotState
    owner: str
    until: int
    """ms at which `loading` or `leaving` lapses; 0: never."""


@dataclass(slots=True)
class _Engine:
    """What Redis keeps per engine: mutable, changed only between two awaits."""

    held: dict[str, _Held] = field(default_factory=dict)
    recency: dict[str, int] = field(default_factory=dict)
    leases: dict[tuple[str, str], int] = field(default_factory=dict)
    """(version, worker) → ms at which the lease lapses."""


_GOING = {"lost": 0, "leaving": 1}
"""States of what is evicted before all else, in that order."""


def _entry_id(text: str) -> tuple[int, int]:
    ms, _, n = text.partition("-")
    return int(ms), int(n)


class MemoryStore:
    """`adapters.store.Store` in memory; several workers of one test share one object.

    `clock`: ms. `away` = True makes every call fail as if the server could not be reached.
    """

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self.away = False
        self._clock = clock or (lambda: time.monotonic_ns() // 1_000_000)
        self._seq = 0
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._documents: dict[str, dict[str, str]] = {kind: {} for kind in (*DOCUMENT_KINDS, "placement")}
        self._engines: dict[str, _Engine] = {}
        self._where: dict[str, list[str]] = {}
        self._roles: dict[str, tuple[int, int, str]] = {}
        self._audit: list[tuple[tuple[int, int], str]] = []
        self._beats: dict[str, tuple[int, str]] = {}
        self._secrets: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore at event {self._seq}{', away' if self.away else ''}>"

    # -- documents and their feed ---------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        now = self._now()
        documents = {kind: dict(texts) for kind, texts in self._documents.items()}
        for name, engine in self._engines.items():
            for version, held in engine.held.items():
                if held.until:
                    id_ = f"{name}/{version}"
                    left = with_time_left(documents["placement"][id_], held.until - now)
                    documents["placement"][id_] = left
        return Snapshot(seq=self._seq, documents=documents)

    async def watch(self, after: int) -> AsyncGenerator[list[Event], None]:
        while True:
            events = self._after(after)
            if not events:
                await self._some_news()
                events = self._after(after)
            after += len(events)
            yield events

    def _after(self, seq: int) -> list[Event]:
        self._now()
        if self._seq < seq:
            raise GapError(f"the feed ends before event {seq}: the server has lost data")
        missing = self._seq - seq
        if missing > len(self._events):
            raise GapError(f"event {seq + 1} is gone")
        return self._events[len(self._events) - missing :]

    async def _some_news(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                await self._news.wait()

    async def commit(
        self, changes: Sequence[Change], *, audit: AuditNote | None = None, fence: Fence | None = None
    ) -> int:
        now = self._now()
        check_kinds(changes)
        self._check(fence)
        for change in changes:
            standing = self._documents[change.kind].get(change.id)
            if change.expect not in ("any", standing):
                raise ConflictError(f"{change.kind} {change.id} was changed by somebody else meanwhile.")
        for change in changes:
            self._emit(change.kind, change.id, change.data)
        if audit:
            last = self._audit[-1][0] if self._audit else (0, 0)
            self._audit.append((max((now, 0), (last[0], last[1] + 1)), dump_note(audit)))
        return self._seq

    async def audit(self, after: str = "", *, count: int = 1000) -> list[AuditEntry]:
        self._now()
        entries = [e for e in self._audit if not after or e[0] > _entry_id(after)]
        return [AuditEntry(f"{ms}-{n}", load_note(text)) for (ms, n), text in entries[:count]]

    async def trim_audit(self, through: str, *, keep: int) -> None:
        self._now()
        old = self._audit[: max(0, len(self._audit) - keep)]
        self._audit = [e for e in old if e[0] > _entry_id(through)] + self._audit[len(old) :]

    def _emit(self, kind: str, id_: str, data: str | None) -> None:
        if data is None:
            self._documents[kind].pop(id_, None)
        else:
            self._documents[kind][id_] = data
        self._seq += 1
        self._events.append(Event(self._seq, kind, id_, data))
        self._news.set()
        self._news = asyncio.Event()

    def trim(self, keep: int) -> None:
        """Drop all events but the last `keep` from the feed, as a server does in time."""
        self._events = self._events[-keep:] if keep else []

    # -- placement: placement.lua ---------------------------------------------------------------------

    def _now(self) -> int:
        if self.away:
            raise StoreUnavailableError("Redis cannot be reached: the test says so.")
        return self._clock()

    def _engine(self, name: str) -> _Engine:
        return self._engines.setdefault(name, _Engine())

    def _standing(self, on: str, version: str) -> tuple[SlotState | str | None, str, int]:
        held = self._engine(on).held.get(version)
        if held is None:
            return None, "", 0
        state: SlotState | str = held.state
        if held.until <= self._clock():
            state = {SlotState.LOADING: "lapsed", SlotState.LEAVING: SlotState.RESIDENT}.get(
                held.state, state
            )
        return state, held.owner, held.until

    def _place(self, engine: str, version: str, state: SlotState, owner: str, for_ms: int) -> None:
        held = self._engine(engine).held
        if version not in held:
            self._where.setdefault(version, []).append(engine)
        held[version] = _Held(state, owner, self._clock() + for_ms if for_ms else 0)
        placement = Placement(engine, version, state, owner, for_ms)
        self._emit("placement", placement.id, dump(placement))

    def _forget(self, on: str, version: str) -> None:
        engine = self._engine(on)
        if engine.held.pop(version, None) is None:
            return
        del engine.recency[version]
        engine.leases = {lease: until for lease, until in engine.leases.items() if lease[0] != version}
        self._where[version].remove(on)
        self._emit("placement", f"{on}/{version}", None)

    # -- placement: claim.lua -------------------------------------------------------------------------

    async def claim(
        self,
        version: str,
        engine: str,
        *,
        slots: int,
        owner: str,
        ttl_ms: int,
        ignore: Iterable[str] = (),
        reload: bool = False,
    ) -> Claim:
        now = self._now()
        ignored = set(ignore) - {engine}
        here, _, deadline = self._standing(engine, version)
        if here == "loading":
            return Claim(ClaimResult.LOADING, engine)
        holder, loader, overruled = self._elsewhere(version, engine, ignored)

        def take(victim: str | None = None) -> Claim:
            for name in overruled:
                self._forget(name, version)
            self._place(engine, version, SlotState.LOADING, owner, ttl_ms)
            self._engine(engine).recency[version] = now
            return Claim(ClaimResult.CLAIMED, engine, victim)

        # 1. It is here already.
        if reload and here in ("resident", "leaving", "lost"):
            return Claim(ClaimResult.LOADING, loader) if loader else take()
        if here == "resident" or (here == "leaving" and deadline - LEAVING_MS + ASKED_MS <= now):
            if self._engine(engine).held[version].until:
                self._place(engine, version, SlotState.RESIDENT, "", 0)
            return Claim(ClaimResult.RESIDENT, engine)

        # 2. It is elsewhere already.
        if holder:
            return Claim(ClaimResult.RESIDENT, holder)
        if loader:
            return Claim(ClaimResult.LOADING, loader)
        if here == "leaving":
            return Claim(ClaimResult.FULL, engine)

        # 3. A lapsed claim of it, the slot kept for it since its process went, or a free slot.
        over = len(self._engine(engine).held) + 1 - slots
        if here in ("lapsed", "lost") or over <= 0:
            return take()

        # 4. A victim. More than one only where the engine has fewer slots than it used to.
        idle, willing, leaving, unpinned = self._survey(engine)
        if len(idle) >= over:
            for victim in idle[:over]:
                self._forget(engine, victim)
            return take(idle[0])
        if unpinned < over:
            return Claim(ClaimResult.PINNED, engine)
        self._ask_to_leave(engine, willing, leaving)
        return Claim(ClaimResult.FULL, engine)

    def _elsewhere(
        self, version: str, engine: str, ignored: set[str]
    ) -> tuple[str | None, str | None, list[str]]:
        holder = loader = None
        overruled = []
        for name in self._where.get(version, ()):
            if name == engine:
                continue
            state, _, _ = self._standing(name, version)
            if name in ignored:
                if state == "loading":
                    overruled.append(name)
            elif state == "resident":
                holder = holder or name
            elif state == "loading":
                loader = loader or name
        return holder, loader, overruled

    def _survey(self, name: str) -> tuple[list[str], list[str], str | None, int]:
        engine = self._engine(name)
        now = self._clock()
        engine.leases = {lease: until for lease, until in engine.leases.items() if until > now}
        used = {version for version, _ in engine.leases}
        unpinned = [
            (version, self._standing(name, version)[0])
            for version in sorted(engine.recency, key=lambda v: (engine.recency[v], v))
            if version not in self._documents["pin"]
        ]
        may_go = [
            (v, state) for v, state in unpinned if state == "lost" or (state != "loading" and v not in used)
        ]
        leaving = [v for v, state in unpinned if state == "leaving"]
        return (
            [v for v, _ in sorted(may_go, key=lambda entry: _GOING.get(entry[1] or "", len(_GOING)))],
            [v for v, state in unpinned if state == "resident"],
            leaving[0] if leaving else None,
            len(unpinned),
        )

    def _ask_to_leave(self, engine: str, willing: list[str], leaving: str | None) -> None:
        if leaving is None:
            if willing:
                self._place(engine, willing[0], SlotState.LEAVING, "", LEAVING_MS)
        elif self._engine(engine).held[leaving].until - self._clock() <= LEAVING_MS - RENEW_MS:
            self._place(engine, leaving, SlotState.LEAVING, "", LEAVING_MS)

    # -- placement: the other scripts -----------------------------------------------------------------

    async def confirm(self, version: str, engine: str, *, owner: str, grace_ms: int) -> bool:
        now = self._now()
        state, holder, _ = self._standing(engine, version)
        if state != "loading" or holder != owner:
            return False
        self._place(engine, version, SlotState.RESIDENT, "", 0)
        self._engine(engine).recency[version] = now
        if grace_ms > 0:
            self._engine(engine).leases[version, ""] = now + grace_ms
        return True

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        self._now()
        state, holder, _ = self._standing(engine, version)
        if state != "loading" or holder != owner:
            return False
        self._forget(engine, version)
        return True

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        self._now()
        self._check(fence)
        recency = self._engine(engine).recency
        versions = sorted(recency, key=lambda v: (recency[v], v)) if version is None else [version]
        for each in versions:
            self._forget(engine, each)

    async def lose(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        self._now()
        self._check(fence)
        recency = self._engine(engine).recency
        if versions is None:
            versions = sorted(recency, key=lambda v: (recency[v], v))
        for version in versions:
            if self._standing(engine, version)[0] not in (None, "lost"):
                self._place(engine, version, SlotState.LOST, "", 0)

    async def touch(self, worker: str, touches: Sequence[Touch], *, ttl_ms: int) -> None:
        now = self._now()
        for use in touches:
            engine = self._engine(use.engine)
            last = engine.recency.get(use.version)
            if last is not None:
                engine.recency[use.version] = max(last, now - use.age_ms)
            if last is not None and use.in_flight > 0:
                engine.leases[use.version, worker] = now + ttl_ms
            else:
                engine.leases.pop((use.version, worker), None)

    async def recency(self, engine: str) -> dict[str, int]:
        now = self._now()
        recency = self._engine(engine).recency
        return {v: max(0, now - recency[v]) for v in sorted(recency, key=lambda v: (-recency[v], v))}

    async def leases(self, engine: str) -> dict[str, int]:
        now = self._now()
        live: dict[str, int] = {}
        for (version, _), until in self._engine(engine).leases.items():
            if until > now:
                live[version] = live.get(version, 0) + 1
        return live

    # -- agents ---------------------------------------------------------------------------------------

    async def beat(self, engine: str, text: str, *, ttl_ms: int) -> None:
        self._beats[engine] = (self._now() + ttl_ms, text)

    async def beats(self) -> dict[str, str]:
        now = self._now()
        self._beats = {engine: beat for engine, beat in self._beats.items() if beat[0] > now}
        return {engine: text for engine, (_, text) in self._beats.items()}

    # -- roles and secrets ----------------------------------------------------------------------------

    async def lead(self, role: str, owner: str, ttl_ms: int) -> int:
        now = self._now()
        until, token, holder = self._roles.get(role, (0, 0, ""))
        if holder != owner and (until > now or ttl_ms == 0):
            return 0
        if ttl_ms == 0:
            self._roles[role] = (0, token, "")
            return token
        token += holder != owner
        self._roles[role] = (now + ttl_ms, token, owner)
        return token

    def _check(self, fence: Fence | None) -> None:
        if fence is None:
            return
        _, token, holder = self._roles.get(fence.role, (0, 0, ""))
        if token != fence.token or not holder:
            raise FencedError(f"The role of {fence.role} has passed on: nothing was changed.")

    async def resign(self, role: str, owner: str) -> None:
        await self.lead(role, owner, 0)

    async def secret(self, name: str, fresh: str) -> str:
        self._now()
        return self._secrets.setdefault(name, fresh)

    async def facts(self) -> Facts:
        self._now()
        return Facts("memory", persistent=False)

    async def close(self) -> None:
        pass
