"""The memory store's last uses and errors, counts of canaries, and sessions of the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from adapters.store.protocol.activity import KEPT_ERRORS, KEPT_USES
from tests.doubles.memory_coordination import MemoryCoordination


class MemoryActivity(MemoryCoordination):
    def __init__(self, clock: Callable[[], int] | None) -> None:
        super().__init__(clock)
        self._uses: dict[str, int] = {}
        self._errors: dict[str, deque[str]] = {}
        self._canaries: dict[str, dict[str, int]] = {}
        self._sessions: dict[str, tuple[str, int]] = {}

    async def report_activity(self, uses: Mapping[str, int], errors: Mapping[str, Sequence[str]]) -> None:
        self._now()
        together = {i: max(at, self._uses.get(i, 0)) for i, at in (self._uses | dict(uses)).items()}
        latest = sorted(together.items(), key=lambda item: (item[1], item[0]))[-KEPT_USES:]
        self._uses = dict(latest)
        for owner, texts in errors.items():
            kept = self._errors.setdefault(owner, deque(maxlen=KEPT_ERRORS))
            kept.extend(texts)

    async def last_uses(self, ids: Sequence[str]) -> dict[str, int]:
        self._now()
        return {i: self._uses[i] for i in ids if i in self._uses}

    async def last_errors(self, owner: str) -> list[str]:
        self._now()
        return list(reversed(self._errors.get(owner, ())))

    async def last_errors_of(self, owners: Sequence[str]) -> list[list[str]]:
        return [await self.last_errors(owner) for owner in owners]

    async def count_canaries(self, counts: Mapping[str, tuple[int, Mapping[str, int]]]) -> None:
        self._now()
        for comparison, (_, fields) in counts.items():
            kept = self._canaries.setdefault(comparison, {})
            for field, count in fields.items():
                kept[field] = kept.get(field, 0) + count

    async def canary_counts(self, comparison: str) -> dict[str, int]:
        self._now()
        return dict(self._canaries.get(comparison, {}))

    async def put_session(self, digest: str, text: str, *, ttl_ms: int) -> None:
        self._sessions[digest] = (text, self._now() + ttl_ms)

    async def session(self, digest: str) -> str | None:
        text, until = self._sessions.get(digest, ("", 0))
        return text if self._now() < until else None

    async def take_session(self, digest: str) -> str | None:
        found = await self.session(digest)
        self._sessions.pop(digest, None)
        return found
