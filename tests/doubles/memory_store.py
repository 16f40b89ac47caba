"""A store in one process: for tests that need no server, and as a model of the Lua scripts.

Placement is `gateway.planning.simulator.claim_rules`; the property tests run it against the scripts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from adapters.model import Placement
from adapters.store.protocol.coordination import Fence
from adapters.store.protocol.loads import NONE, Heard, Loads
from adapters.store.protocol.placement import KEPT_MOVES, Claim, Touch
from adapters.store.protocol.registry import Snapshot, with_time_left
from gateway.planning.simulator.claim_rules import PlacementRules
from tests.doubles.memory_limits import MemoryLimits
from tests.doubles.memory_registry import MemoryRegistry


class MemoryStore(MemoryRegistry, MemoryLimits):
    """`adapters.store.protocol.Store` in memory; several workers of one test share one object.

    `clock`: ms. `away` = True makes every call fail as if the server could not be reached.
    """

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock)
        self._rules = PlacementRules(
            self._clock, pins=self._documents["pin"], changed=self._placement_changed
        )
        self._moves: deque[str] = deque(maxlen=KEPT_MOVES)

    def __repr__(self) -> str:
        return f"<MemoryStore at event {self._seq}{', away' if self.away else ''}>"

    async def snapshot(self) -> Snapshot:
        self._now()
        documents = {kind: dict(texts) for kind, texts in self._documents.items()}
        for id_, text in documents["placement"].items():
            left = self._rules.time_left(*id_.split("/"))
            if left is not None:
                documents["placement"][id_] = with_time_left(text, left)
        return Snapshot(self._position, documents)

    async def close(self) -> None:
        pass

    def _placement_changed(self, engine: str, version: str, placement: Placement | None) -> None:
        text = None
        if placement is not None:  # as placement.lua writes it
            fields = asdict(placement)
            if not placement.verified:
                del fields["verified"]
            text = orjson.dumps(fields).decode()
        self._emit("placement", f"{engine}/{version}", text)

    async def claim(self, version: str, engine: str, **how: Any) -> Claim:
        self._now()
        return self._rules.claim(version, engine, **how)

    async def confirm(
        self, version: str, engine: str, *, owner: str, grace_ms: int, verified: str = ""
    ) -> bool:
        self._now()
        return self._rules.confirm(version, engine, owner=owner, grace_ms=grace_ms, verified=verified)

    async def abandon(self, version: str, engine: str, *, owner: str) -> bool:
        self._now()
        return self._rules.abandon(version, engine, owner=owner)

    async def unplace(self, engine: str, version: str | None = None, *, fence: Fence | None = None) -> None:
        self._now()
        self._check(fence)
        self._rules.unplace(engine, version)

    async def mark_lost(
        self, engine: str, versions: Iterable[str] | None = None, *, fence: Fence | None = None
    ) -> None:
        self._now()
        self._check(fence)
        self._rules.mark_lost(engine, versions)

    async def touch(
        self, worker: str, touches: Sequence[Touch], *, ttl_ms: int, loads: Loads = NONE, note: Any = None
    ) -> Heard:
        self._now()
        return self._rules.touch(worker, touches, ttl_ms=ttl_ms, loads=loads, note=note)

    async def record_move(self, record: str) -> None:
        self._now()
        self._moves.appendleft(record)

    async def moves(self) -> list[str]:
        self._now()
        return list(self._moves)

    async def use(self, engines: Sequence[str]) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        return {engine: (await self.recency(engine), await self.leases(engine)) for engine in engines}

    async def recency(self, engine: str) -> dict[str, int]:
        self._now()
        return self._rules.recency(engine)

    async def leases(self, engine: str) -> dict[str, int]:
        self._now()
        return self._rules.leases(engine)
