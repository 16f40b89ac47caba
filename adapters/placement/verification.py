"""Verifies that an engine serves the version it was asked to load. Trusts the model's answers, not the 200.

A version is probed after its first load in each engine process, before it receives requests. Its answer is
compared with those of the base model on the same engine (asked BASE_ANSWERS times per engine process) and
with the version's own first answer on any engine. `adapters.placement.fingerprint` defines the comparison;
this module runs the probes, stores the fingerprints and acts on the result.

Later loads in the same process are not probed, whichever worker did the first: its confirmation tells the
others (`Placement.verified`). They are probed if the process is unknown, the fingerprint has been replaced,
the engine is suspect, or another version has failed in that process after being sound elsewhere.

An engine into whose weights a version is merged is compared with the version's answer elsewhere, so it is
served only after another engine has loaded the version; if the answers differ, that engine is suspect.

The engine itself can be at fault. It is marked suspect if its base model's answer has changed, or if a second
version that was sound elsewhere fails in the same process; on an engine on trial, the first one is enough.
Otherwise one bad engine could put a whole fleet's versions into quarantine, one after another.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from adapters.drivers import driver_of
from adapters.errors import (
    ConflictError,
    EngineError,
    EngineSuspectError,
    EngineUnreachableError,
    QuarantinedError,
    StoreUnavailableError,
)
from adapters.model import Engine, Fingerprint, Version, dump, fingerprint_id
from adapters.placement.engine_client import EngineClient
from adapters.placement.fingerprint import (
    BASE_ANSWERS,
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
from adapters.placement.residency import Residency
from adapters.registry.catalog import Catalog
from adapters.registry.serving_status import ServingStatuses
from adapters.store.protocol.registry import Change, RegistryStore

log = logging.getLogger(__name__)

FEED_WAIT_SECONDS = 5.0
"""How long to wait for the feed to deliver another worker's commit."""

REASONS = {
    Similarity.LIKE_BASE: "answers exactly like the base model, so its weights have no effect.",
    Similarity.UNLIKE_ITSELF: "no longer answers as it did when it was first loaded.",
}
"""Shown to callers, after the version's name."""


class Verifier(Protocol):
    """Called by the loader between a load and its confirmation."""

    async def verify(self, engine: Engine, version: Version) -> str:
        """Return if `version`, just loaded on `engine`, answers correctly, with the `Placement.verified` to
        confirm the load with. Raises QuarantinedError (after committing the serving status),
        EngineSuspectError and other EngineErrors (the load failed there), StoreUnavailableError."""
        ...

    def is_suspect(self, engine: Engine) -> bool:
        """Whether the engine is suspect, so that nothing may be loaded there now."""
        ...


class VerificationObserver(Protocol):
    """Receives the results of probed loads, for metrics."""

    def verification(self, result: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Base:
    """The base model's answer in one engine process; None if it cannot be probed there."""

    process: str
    answer: ProbeAnswer | None


@dataclass(slots=True)
class ProbeVerifier:
    """The `Verifier` that probes engines.

    Invariants: a version's first sound answer becomes its fingerprint and never changes; the base model is
    probed at most once per engine process unless the engine is suspect. Called by `LoadSteps` only.
    """

    store: RegistryStore
    catalog: Catalog
    residency: Residency
    control: EngineClient
    serving_statuses: ServingStatuses
    observer: VerificationObserver
    process: Callable[[Engine], str]
    """Identifies the engine's current process; empty if unknown."""
    changed: Callable[[float], Awaitable[None]]
    """Returns at the next registry change, or after that many seconds."""
    on_probe: Callable[[Engine, ProbeAnswer], None] = lambda *_: None
    """Receives each answered probe, for metering."""
    every: bool = True
    """False: only versions with unverified shapes are probed, and no engine counts as suspect."""
    clock: Callable[[], float] = time.monotonic
    _bases: dict[str, _Base] = field(default_factory=dict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    def is_suspect(self, engine: Engine) -> bool:
        status = self.serving_statuses.of_engine(engine)
        if status is None or not self.every or self.serving_statuses.clock() >= status.retry:
            return False
        return (status.evidence or {}).get("process") == self.process(engine)

    async def verify(self, engine: Engine, version: Version) -> str:
        process = self.process(engine)
        if not (self.every or version.unverified_shapes):
            return ""
        verified = _verified(process, self._known(engine, version.engine_name))
        if verified and self._is_known(engine, version, verified):
            return verified
        started, result = self.clock(), "failed"
        try:
            result, reference = await self._verify(engine, version)
        except QuarantinedError:
            result = "quarantined"
            raise
        except EngineSuspectError:
            result = "engine_suspect"
            raise
        finally:
            self.observer.verification(result, self.clock() - started)
        return _verified(process, reference)

    def _is_known(self, engine: Engine, version: Version, verified: str) -> bool:
        """Whether an earlier load of the version was sound in this process, and nothing casts doubt on it."""
        return (
            self.residency.verified(engine.name, version.engine_name) == verified
            and self.serving_statuses.of_engine(engine) is None
            and self._also_wrong(engine, version) is None
        )

    async def _verify(self, engine: Engine, version: Version) -> tuple[str, Fingerprint | None]:
        """Return the result and the fingerprint that the version's answer agrees with."""
        base = None if engine.serves else await self._base(engine)
        if base is None and version.unverified_shapes and not engine.serves:
            raise EngineError(
                f"{engine.name} does not answer probes of its base model, and {version.id}, whose shapes are "
                "unverified, is served only where it was compared with the base model"
            )
        try:
            answer = await self._ask(engine, version)
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if base is None and not engine.serves and error.status and error.status < 500:
                return "skipped", None  # the engine does not answer probes of any model
            raise
        name = fingerprint_id(version.engine_name, engine.tasks[0])
        known = self.catalog.fingerprints.get(name)
        if engine.serves and answer_of(known) is None:
            raise EngineError(
                f"{engine.name} has weights into which {version.id} is said to be merged, and no engine that "
                "loads it has answered yet, with which to compare them"
            )
        judgement = self._judge(engine, version, answer, base, known)
        if judgement.result is Similarity.SOUND and answer_of(known) is None:
            first = fingerprint(answer, engine=engine.name, gpu_type=engine.gpu_type, taken=self._now())
            known = await self._commit_first(name, first, known)
            if known is first:
                return "first", first
            judgement = self._judge(engine, version, answer, base, known)
        if judgement.result is not Similarity.SOUND:
            await self._reject(engine, version, judgement, answer, base, known)
        if engine.serves:
            await self.serving_statuses.trust(engine)
        return "sound" if base is not None else "no_base", known

    def _judge(
        self,
        engine: Engine,
        version: Version,
        answer: ProbeAnswer,
        base: ProbeAnswer | None,
        known: Fingerprint | None,
    ) -> Judgement:
        current = self.catalog.versions.get(version.id, version)  # may have been released meanwhile
        return judge(
            answer,
            base=base,
            first=answer_of(known),
            first_base=answer_of(self._known(engine, engine.base_model)),
            trusted=version.trusted or current.trusted,
        )

    async def _reject(
        self,
        engine: Engine,
        version: Version,
        judgement: Judgement,
        answer: ProbeAnswer,
        base: ProbeAnswer | None,
        known: Fingerprint | None,
    ) -> None:
        """Blame the engine or the version. Always raises."""
        if judgement.result is Similarity.LIKE_BASE and driver_of(engine).capabilities.base_for_unknown:
            raise EngineError(
                f"{engine.name} answers as its base model, so it was not started with {version.id}"
            )
        figures = evidence(judgement, answer, engine=engine.name, base=base, first=known)
        figures["process"] = self.process(engine)
        if engine.serves:
            await self._mark_suspect(engine, f"it does not answer as {version.id} does elsewhere", figures)
        if judgement.result is Similarity.SUSPECT:
            await self._mark_suspect(engine, "its base model no longer answers as before", figures)
        if known is not None and (other := self._also_wrong(engine, version)):
            reason = f"{version.id} and {other} fail verification there but were sound elsewhere"
            await self._mark_suspect(engine, reason, figures)
        reason = f"{version.id} {REASONS[judgement.result]}"
        if known is not None and engine.on_trial:
            await self._mark_suspect(engine, f"{reason} Other engines of its fleet serve it.", figures)
        await self.serving_statuses.quarantine(version, judgement.result.value, reason, engine.name, figures)
        raise QuarantinedError(reason)

    async def _mark_suspect(self, engine: Engine, reason: str, figures: dict[str, object]) -> None:
        await self.serving_statuses.suspect(engine, reason, figures)
        self._bases.pop(engine.name, None)
        raise EngineSuspectError(f"{engine.name} is suspect: {reason}")

    def _also_wrong(self, engine: Engine, version: Version) -> str | None:
        """Another version that failed in this engine process after being sound before."""
        process = self.process(engine)
        for name, serving_status in self.catalog.serving_statuses.items():
            seen = serving_status.evidence or {}
            mine = serving_status.engine == engine.name and seen.get("process") == process
            if mine and seen.get("first") and serving_status.version and name != version.engine_name:
                return serving_status.version
        return None

    # -- the base model

    async def _base(self, engine: Engine) -> ProbeAnswer | None:
        """The base model's answer in this engine process: probed once, and again while the engine is
        suspect."""
        async with self._locks.setdefault(engine.name, asyncio.Lock()):
            was_suspect = self.serving_statuses.of_engine(engine) is not None
            process = f"{engine.url} {self.process(engine)}"
            known = self._bases.get(engine.name)
            if known and known.process == process and not was_suspect:
                return known.answer
            answer = await self._ask_base(engine)
            if answer is not None:
                await self._compare_base(engine, answer, was_suspect=was_suspect)
            self._bases[engine.name] = _Base(process, answer)
            return answer

    async def _ask_base(self, engine: Engine) -> ProbeAnswer | None:
        try:
            answer = await self._ask(engine, None)
            others = [await self._ask(engine, None) for _ in range(BASE_ANSWERS - 1)]
            return replace(answer, noise=max(distance(answer, other) or 0.0 for other in others))
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if error.status and error.status < 500:
                log.warning("Engine %s: base model cannot be probed: %s", engine.name, error)
                return None
            raise

    async def _compare_base(self, engine: Engine, answer: ProbeAnswer, *, was_suspect: bool) -> None:
        """Compare the base model with its own first answer, or store this answer as the first. Drift alone
        does not make an engine suspect; it needs a failing version, or an engine that is already suspect."""
        known = self._known(engine, engine.base_model)
        if answer_of(known) is None:
            name = fingerprint_id(engine.base_model, engine.tasks[0])
            first = fingerprint(answer, engine=engine.name, gpu_type=engine.gpu_type, taken=self._now())
            known = await self._commit_first(name, first, known)
        if not was_suspect:
            return
        drift = distance(answer, answer_of(known))
        if is_itself(drift):
            await self.serving_statuses.trust(engine)
            return
        figures: dict[str, object] = {"process": self.process(engine), "base_drift": drift}
        await self._mark_suspect(engine, "its base model no longer answers as before", figures)

    # -- probes and fingerprints

    def _known(self, engine: Engine, model: str) -> Fingerprint | None:
        """The first answer of a model to what this engine is asked."""
        return self.catalog.fingerprints.get(fingerprint_id(model, engine.tasks[0]))

    async def _ask(self, engine: Engine, version: Version | None) -> ProbeAnswer:
        answer = await self.control.probe(engine, version)
        self.on_probe(engine, answer)
        return answer

    async def _commit_first(self, name: str, first: Fingerprint, old: Fingerprint | None) -> Fingerprint:
        """Commit `first`; return it, or the fingerprint that another worker committed meanwhile."""
        change = Change("fingerprint", name, dump(first), expect=None if old is None else dump(old))
        try:
            await self.store.commit([change])
        except ConflictError:
            return await self._wait_for_fingerprint(name)
        return first

    async def _wait_for_fingerprint(self, name: str) -> Fingerprint:
        deadline = self.clock() + FEED_WAIT_SECONDS
        while self.clock() < deadline:
            known = self.catalog.fingerprints.get(name)
            if known is not None and answer_of(known) is not None:
                return known
            await self.changed(0.1)
        raise StoreUnavailableError("The registry has a fingerprint that this worker has not received yet.")

    def _now(self) -> int:
        return self.serving_statuses.clock()


def _verified(process: str, reference: Fingerprint | None) -> str:
    """`Placement.verified` for a version that agreed with `reference` in this engine process; empty if either
    is unknown."""
    if not process or reference is None or answer_of(reference) is None:
        return ""
    return f"{process} {reference.taken}"
