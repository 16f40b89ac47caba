"""Is what an engine has loaded what it was asked to load? A 200 is not believed, the answers are.

A version is probed once after each load, before anybody is sent there. Its answer is held against the base
model's on the same engine, which is asked for once per engine process, and against the version's own first
answer, wherever that was given. `adapters.placement.fingerprint` says what the comparison means; here is who
asks, what is kept, and what follows.

An engine can be at fault as well. If its base model is unlike itself, the engine is to blame. So it is when a
second version goes wrong in the same process though it was sound elsewhere: one bad engine must not put a
fleet's versions into quarantine, one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from adapters.errors import (
    ConflictError,
    EngineError,
    EngineSuspectError,
    EngineUnreachableError,
    QuarantinedError,
    StoreUnavailableError,
)
from adapters.model import Engine, Fingerprint, Version, dump
from adapters.placement.engine_client import EngineClient
from adapters.placement.fingerprint import (
    PROMPT_ID,
    Judgement,
    ProbeAnswer,
    Similarity,
    answer_of,
    distance,
    evidence,
    fingerprint,
    is_itself,
    judge,
)
from adapters.registry.catalog import Catalog
from adapters.registry.serving_status import ServingStatuses
from adapters.store.protocol import Change, Store

log = logging.getLogger(__name__)

HEAR_SECONDS = 5.0
"""For the feed to bring what another worker has just committed."""

REASONS = {
    Similarity.LIKE_BASE: "answers exactly like the base model: its weights have no effect.",
    Similarity.UNLIKE_ITSELF: "answered unlike it did when it was first loaded.",
}
"""What callers are told, after the version's name."""


class Verifier(Protocol):
    """What the loader asks between a load and its confirmation."""

    async def verify(self, engine: Engine, version: Version) -> None:
        """Returns when `version`, just loaded on `engine`, answers as it should. Raises QuarantinedError (the
        serving status is committed), EngineSuspectError and other EngineErrors (the load has failed there),
        StoreUnavailableError."""
        ...

    def shuns(self, engine: Engine) -> bool:
        """Whether nothing is to be loaded there now."""
        ...


class VerificationObserver(Protocol):
    """Told of verifications, for the metrics."""

    def verification(self, result: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Base:
    """The base's answer in one process of an engine; None: it cannot be asked there."""

    process: str
    answer: ProbeAnswer | None


@dataclass(slots=True)
class ProbeObserver:
    """The Verifier."""

    store: Store
    catalog: Catalog
    control: EngineClient
    serving_statuses: ServingStatuses
    observer: VerificationObserver
    process: Callable[[Engine], str]
    """What tells an engine's process from the one before, as far as known."""
    changed: Callable[[float], Awaitable[None]]
    """Returns at the next change of the registry, or after so many seconds."""
    spent: Callable[[Engine, ProbeAnswer], None] = lambda *_: None
    """Told of each probe that was answered, for the books."""
    clock: Callable[[], float] = time.monotonic
    _bases: dict[str, _Base] = field(default_factory=dict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    def shuns(self, engine: Engine) -> bool:
        doubt = self.serving_statuses.of_engine(engine)
        if doubt is None or self.serving_statuses.clock() >= doubt.retry:
            return False
        return (doubt.evidence or {}).get("process") == self.process(engine)

    async def verify(self, engine: Engine, version: Version) -> None:
        started, result = self.clock(), "failed"
        try:
            result = await self._verify(engine, version)
        except QuarantinedError:
            result = "quarantined"
            raise
        except EngineSuspectError:
            result = "engine_suspect"
            raise
        finally:
            self.observer.verification(result, self.clock() - started)

    async def _verify(self, engine: Engine, version: Version) -> str:
        base = await self._base(engine)
        try:
            answer = await self._ask(engine, version.engine_name)
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if base is None and error.status and error.status < 500:
                return "skipped"  # an engine that completes no text, of whatever model
            raise
        name = version.engine_name
        known = self.catalog.fingerprints.get(name)
        judgement = self._judge(engine, version, answer, base, known)
        if judgement.result is Similarity.SOUND and answer_of(known) is None:
            first = fingerprint(answer, engine=engine.name, gpu_type=engine.gpu_type, taken=self._now())
            known = await self._first(name, first, known)
            if known is first:
                return "first"
            judgement = self._judge(engine, version, answer, base, known)
        if judgement.result is not Similarity.SOUND:
            await self._sentence(engine, version, judgement, answer, base, known)
        return "sound" if base is not None else "no_base"

    def _judge(
        self,
        engine: Engine,
        version: Version,
        answer: ProbeAnswer,
        base: ProbeAnswer | None,
        known: Fingerprint | None,
    ) -> Judgement:
        current = self.catalog.versions.get(version.id, version)  # released meanwhile?
        return judge(
            answer,
            base=base,
            first=answer_of(known),
            first_base=answer_of(self.catalog.fingerprints.get(engine.base_model)),
            trusted=version.trusted or current.trusted,
        )

    async def _sentence(
        self,
        engine: Engine,
        version: Version,
        judgement: Judgement,
        answer: ProbeAnswer,
        base: ProbeAnswer | None,
        known: Fingerprint | None,
    ) -> None:
        """Always raises."""
        found = evidence(judgement, answer, engine=engine.name, base=base, first=known)
        found["process"] = self.process(engine)
        if judgement.result is Similarity.SUSPECT:
            await self._doubt(engine, "its base model answers unlike itself", found)
        if known is not None and (other := self._also_wrong(engine, version)):
            reason = f"{version.id}, sound elsewhere, answers wrongly there, as {other} did before"
            await self._doubt(engine, reason, found)
        reason = f"{version.id} {REASONS[judgement.result]}"
        await self.serving_statuses.quarantine(version, judgement.result.value, reason, engine.name, found)
        raise QuarantinedError(reason)

    async def _doubt(self, engine: Engine, reason: str, found: dict[str, object]) -> None:
        await self.serving_statuses.suspect(engine, reason, found)
        self._bases.pop(engine.name, None)
        raise EngineSuspectError(f"{engine.name} is not trusted: {reason}")

    def _also_wrong(self, engine: Engine, version: Version) -> str | None:
        """Another version that went wrong in this process, though it had been sound before."""
        process = self.process(engine)
        for name, serving_status in self.catalog.serving_statuses.items():
            seen = serving_status.evidence or {}
            mine = serving_status.engine == engine.name and seen.get("process") == process
            if mine and seen.get("first") and serving_status.version and name != version.engine_name:
                return serving_status.version
        return None

    # -- the base model

    async def _base(self, engine: Engine) -> ProbeAnswer | None:
        """Its answer in this process of the engine: asked once, and again while the engine is not trusted."""
        async with self._locks.setdefault(engine.name, asyncio.Lock()):
            doubted = self.serving_statuses.of_engine(engine) is not None
            process = self.process(engine)
            known = self._bases.get(engine.name)
            if known and known.process == process and not doubted:
                return known.answer
            answer = await self._ask_base(engine)
            if answer is not None:
                await self._hold_base(engine, answer, doubted=doubted)
            self._bases[engine.name] = _Base(process, answer)
            return answer

    async def _ask_base(self, engine: Engine) -> ProbeAnswer | None:
        try:
            return await self._ask(engine, engine.base_model)
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if error.status and error.status < 500:
                log.warning("%s: its base model cannot be probed: %s", engine.name, error)
                return None
            raise

    async def _hold_base(self, engine: Engine, answer: ProbeAnswer, *, doubted: bool) -> None:
        """Against its own first answer: the first one becomes that. A drift accuses the engine only together
        with a version's, or once it is doubted already."""
        known = self.catalog.fingerprints.get(engine.base_model)
        if answer_of(known) is None:
            first = fingerprint(answer, engine=engine.name, gpu_type=engine.gpu_type, taken=self._now())
            known = await self._first(engine.base_model, first, known)
        if not doubted:
            return
        drift = distance(answer, answer_of(known))
        if is_itself(drift):
            await self.serving_statuses.trust(engine)
            return
        found: dict[str, object] = {"process": self.process(engine), "base_drift": drift}
        await self._doubt(engine, "its base model answers unlike itself", found)

    # -- asking and keeping

    async def _ask(self, engine: Engine, model: str) -> ProbeAnswer:
        answer = await self.control.probe(engine, model)
        self.spent(engine, answer)
        return answer

    async def _first(self, name: str, first: Fingerprint, old: Fingerprint | None) -> Fingerprint:
        """`first`, if it is; otherwise the one that another worker has committed meanwhile."""
        change = Change("fingerprint", name, dump(first), expect=None if old is None else dump(old))
        try:
            await self.store.commit([change])
        except ConflictError:
            return await self._heard(name)
        return first

    async def _heard(self, name: str) -> Fingerprint:
        deadline = self.clock() + HEAR_SECONDS
        while self.clock() < deadline:
            known = self.catalog.fingerprints.get(name)
            if known is not None and known.prompt == PROMPT_ID:
                return known
            await self.changed(0.1)
        raise StoreUnavailableError("The registry has a fingerprint that this worker has not heard of yet.")

    def _now(self) -> int:
        return self.serving_statuses.clock()
