"""The verifier with the store's twin, a feed of its own, and engines that answer as they are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from adapters.errors import (
    EngineError,
    EngineSuspectError,
    EngineUnreachableError,
    QuarantinedError,
    StoreUnavailableError,
)
from adapters.model import Engine, Placement, SlotState, Version, dump
from adapters.placement.fingerprint import BASE_ANSWERS, CONTEXTS, TOP, ProbeAnswer
from adapters.placement.residency import Residency
from adapters.placement.verification import ProbeVerifier
from adapters.registry.catalog import Catalog
from adapters.registry.serving_status import FIRST_RETRY, ServingStatuses
from adapters.store.protocol.registry import Change, Event
from tests.doubles.memory_store import MemoryStore

E1 = Engine("e1", "http://e1", "base", "h100", slots=2, max_rank=8)
E2 = Engine("e2", "http://e2", "base", "l40s", slots=2, max_rank=8)
A = Version("t/a", 1, "sha256:0", "fl-a", "/x/a", "base", 8, 1, "/src", 0)
B = Version("t/b", 1, "sha256:1", "fl-b", "/x/b", "base", 8, 1, "/src", 0)


def answer(lp: float, word: str = "") -> ProbeAnswer:
    return ProbeAnswer((word or f" {lp}",) * len(CONTEXTS), (lp,) * (len(CONTEXTS) * TOP))


def base(engine: str) -> list[tuple[str, str]]:
    """What an engine is asked of its base model."""
    return [(engine, "base")] * BASE_ANSWERS


@dataclass
class FakeControl:
    """`says`: engine → model → its answer, or what it raises. Unasked for, an adapter differs from the base."""

    says: dict[tuple[str, str], ProbeAnswer | Exception] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def probe(self, engine: Engine, version: Version | None) -> ProbeAnswer:
        model = version.engine_name if version else engine.base_model
        self.asked.append((engine.name, model))
        said = self.says.get((engine.name, model), answer({"base": -1.0, "fl-a": -3.0}.get(model, -5.0)))
        if isinstance(said, Exception):
            raise said
        return said


@dataclass
class Seen:
    results: list[str] = field(default_factory=list)

    def verification(self, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.results.append(result)


class VerificationHarness:
    """Workers with one store; each hears of what is committed when it waits."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.control = FakeControl()
        self.seen = Seen()
        self.now = 1_000_000
        self.process = {"e1": "p1", "e2": "p2"}
        self.confirmed: list[Event] = []

    def worker(self) -> ProbeVerifier:
        catalog = Catalog()
        catalog.versions = {A.id: A, B.id: B}

        async def changed(_: float) -> None:
            await self.hear(probes)

        probes = ProbeVerifier(
            store=self.store,
            catalog=catalog,
            residency=Residency(),
            control=self.control,  # type: ignore[arg-type]
            serving_statuses=ServingStatuses(self.store, catalog, clock=lambda: self.now),
            observer=self.seen,
            process=lambda engine: self.process[engine.name],
            changed=changed,
        )
        return probes

    async def hear(self, probes: ProbeVerifier) -> None:
        documents = (await self.store.snapshot()).documents
        kept = probes.catalog.versions
        probes.catalog.load(documents)
        probes.catalog.versions = {**kept, **probes.catalog.versions}
        for event in self.confirmed:
            probes.residency.apply(event)
        await asyncio.sleep(0)

    async def verify(self, probes: ProbeVerifier, engine: Engine, version: Version) -> None:
        """A load with its confirmation, and the eviction that follows sooner or later."""
        try:
            verified = await probes.verify(engine, version)
            placement = Placement(engine.name, version.engine_name, SlotState.RESIDENT, verified=verified)
            for text in (dump(placement), None):
                self.confirmed.append(Event(len(self.confirmed), "placement", placement.id, text))
        finally:
            if not self.store.away:
                await self.hear(probes)


@pytest.fixture
def bench() -> VerificationHarness:
    return VerificationHarness()


async def audited(bench: VerificationHarness) -> list[tuple[str, str, str, str]]:
    return [(e.note.actor, e.note.action, e.note.subject, e.note.version) for e in await bench.store.audit()]


async def test_the_first_answers_are_kept_and_the_base_is_asked_once(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    await bench.verify(worker, E1, B)
    await bench.verify(worker, E2, A)
    assert bench.control.asked == [
        *base("e1"), ("e1", "fl-a"), ("e1", "fl-b"), *base("e2"), ("e2", "fl-a")
    ]  # fmt: skip
    assert bench.seen.results == ["first", "first", "sound"]
    assert {n: f.engine for n, f in worker.catalog.fingerprints.items()} == dict.fromkeys(
        ("base", "fl-a", "fl-b"), "e1"
    )
    assert worker.catalog.serving_statuses == {}


async def test_a_version_is_probed_once_per_process_whichever_worker_loads_it(bench: VerificationHarness):
    first, second = bench.worker(), bench.worker()
    for _ in range(2):
        for worker in (first, second):
            await bench.hear(worker)
            await bench.verify(worker, E1, A)
    assert bench.control.asked == [*base("e1"), ("e1", "fl-a")]
    assert bench.seen.results == ["first"]


async def test_another_process_of_the_engine_is_probed_again_with_its_base(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    bench.process["e1"] = "p1 restarted"
    for _ in range(2):
        await bench.verify(worker, E1, A)
    assert bench.control.asked == 2 * [*base("e1"), ("e1", "fl-a")]
    bench.control.says["e1", "fl-a"] = answer(-9.0)
    bench.process["e1"] = "p1 restarted again"
    with pytest.raises(QuarantinedError):
        await bench.verify(worker, E1, A)


async def test_without_a_known_process_every_load_is_probed(bench: VerificationHarness):
    worker = bench.worker()
    bench.process["e1"] = ""
    for _ in range(2):
        await bench.verify(worker, E1, A)
    assert bench.control.asked == [*base("e1"), ("e1", "fl-a"), ("e1", "fl-a")]


async def test_a_version_whose_fingerprint_is_replaced_is_probed_again(bench: VerificationHarness):
    """As after `florin adapter release` and `florin engine trust`."""
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    for change in (None, dump(replace(worker.catalog.fingerprints["fl-a"], taken=77))):
        await bench.store.commit([Change("fingerprint", "fl-a", change)])
        await bench.hear(worker)
        bench.now += 1
        await bench.verify(worker, E1, A)
    assert bench.seen.results == ["first", "first", "sound"]


async def test_where_one_version_fails_the_others_are_probed_again(bench: VerificationHarness):
    """Its engine may be at fault: the next version that fails there proves it."""
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    await bench.verify(worker, E2, A)
    await bench.verify(worker, E1, B)
    bench.control.says = {("e2", name): answer(-9.0) for name in ("fl-a", "fl-b")}
    with pytest.raises(QuarantinedError):
        await bench.verify(worker, E2, B)
    with pytest.raises(EngineSuspectError, match="t/a@v1 and t/b@v1 fail verification there"):
        await bench.verify(worker, E2, A)
    assert bench.seen.results == ["first", "sound", "first", "quarantined", "engine_suspect"]

    bench.control.says.clear()
    bench.now += FIRST_RETRY * 1_000_000  # no loads until then
    await bench.verify(worker, E2, A)
    assert bench.control.asked[-2:] == [("e2", "base"), ("e2", "fl-a")]


async def test_who_answers_like_the_base_is_quarantined_with_the_evidence(bench: VerificationHarness):
    worker = bench.worker()
    bench.control.says["e1", "fl-a"] = answer(-1.0)
    with pytest.raises(QuarantinedError, match=r"t/a@v1 answers exactly like the base model"):
        await bench.verify(worker, E1, A)
    serving_status = worker.catalog.serving_statuses["fl-a"]
    assert (serving_status.state, serving_status.code, serving_status.engine) == (
        "quarantined",
        "answers_like_base",
        "e1",
    )
    assert (serving_status.since, serving_status.retry, serving_status.version) == (bench.now, 0, "t/a@v1")
    assert serving_status.evidence
    assert serving_status.evidence["distance_to_base"] == 0.0
    assert "e1" not in serving_status.reason
    assert "fl-a" not in worker.catalog.fingerprints
    assert await audited(bench) == [("verification", "version.quarantine", "t/a", "v1")]
    assert bench.seen.results == ["quarantined"]


async def test_a_trusted_version_may_answer_like_the_base(bench: VerificationHarness):
    worker = bench.worker()
    bench.control.says["e1", "fl-a"] = answer(-1.0)
    await bench.verify(worker, E1, replace(A, trusted=True))
    assert bench.seen.results == ["first"]


async def test_one_released_while_it_loads_is_trusted(bench: VerificationHarness):
    worker = bench.worker()
    worker.catalog.versions[A.id] = replace(A, trusted=True)
    bench.control.says["e1", "fl-a"] = answer(-1.0)
    await bench.verify(worker, E1, A)
    assert bench.seen.results == ["first"]


async def test_who_answers_unlike_itself_on_another_engine_is_quarantined(bench: VerificationHarness):
    first, second = bench.worker(), bench.worker()
    await bench.verify(first, E1, A)
    await bench.hear(second)
    bench.control.says["e2", "fl-a"] = answer(-9.0)
    with pytest.raises(QuarantinedError, match="no longer answers as it did when it was first loaded"):
        await bench.verify(second, E2, A)
    await bench.hear(first)
    serving_status = first.catalog.serving_statuses["fl-a"]
    assert (serving_status.code, serving_status.engine) == ("unlike_itself", "e2")
    assert serving_status.evidence
    assert serving_status.evidence["first"]["engine"] == "e1"


async def test_of_two_first_answers_the_loser_is_held_against_the_winners(bench: VerificationHarness):
    first, second = bench.worker(), bench.worker()
    await bench.verify(first, E1, A)  # the second has not heard of it
    bench.control.says["e2", "fl-a"] = answer(-9.0)
    with pytest.raises(QuarantinedError):
        await bench.verify(second, E2, A)
    bench.control.says["e2", "fl-a"] = answer(-3.0)
    third = bench.worker()
    await bench.verify(third, E2, A)
    assert bench.seen.results == ["first", "quarantined", "sound"]


async def test_a_base_unlike_itself_accuses_the_engine_not_the_version(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    bench.control.says = {("e2", "base"): answer(-4.0), ("e2", "fl-a"): answer(-9.0)}
    with pytest.raises(EngineSuspectError, match="e2 is suspect: its base model"):
        await bench.verify(worker, E2, A)
    assert "fl-a" not in worker.catalog.serving_statuses
    assert worker.catalog.serving_statuses["e2"].code == "engine_suspect"
    assert (worker.is_suspect(E2), worker.is_suspect(E1)) == (True, False)
    assert bench.seen.results == ["first", "engine_suspect"]


async def test_a_suspect_is_asked_again_later_and_trusted_when_its_base_agrees(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    bench.control.says = {("e2", "base"): answer(-4.0), ("e2", "fl-a"): answer(-9.0)}
    with pytest.raises(EngineSuspectError):
        await bench.verify(worker, E2, A)
    bench.now += FIRST_RETRY * 1_000_000
    assert not worker.is_suspect(E2)
    with pytest.raises(EngineSuspectError):  # before any version is looked at
        await bench.verify(worker, E2, A)
    assert bench.control.asked[-1] == ("e2", "base")
    assert worker.is_suspect(E2)
    assert worker.catalog.serving_statuses["e2"].attempts == 2
    bench.now += FIRST_RETRY * 1_000_000
    bench.control.says.clear()
    await bench.verify(worker, E2, A)
    assert worker.catalog.serving_statuses == {}
    assert bench.seen.results[-1] == "sound"


async def test_a_suspects_next_process_gets_loads_at_once(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    bench.control.says = {("e2", "base"): answer(-4.0), ("e2", "fl-a"): answer(-9.0)}
    with pytest.raises(EngineSuspectError):
        await bench.verify(worker, E2, A)
    bench.process["e2"] = "p3"
    assert not worker.is_suspect(E2)


async def test_a_second_version_that_goes_wrong_on_one_engine_accuses_it(bench: VerificationHarness):
    """One engine that computes adapters wrongly, and its base well, must not take every version down."""
    worker = bench.worker()
    for version in (A, B):
        await bench.verify(worker, E1, version)
    bench.control.says = {("e2", name): answer(-1.0) for name in ("fl-a", "fl-b")}
    with pytest.raises(QuarantinedError):
        await bench.verify(worker, E2, A)
    with pytest.raises(EngineSuspectError, match="t/b@v1 and t/a@v1 fail verification there"):
        await bench.verify(worker, E2, B)
    assert "fl-b" not in worker.catalog.serving_statuses
    assert worker.is_suspect(E2)


async def test_two_adapters_without_any_effect_accuse_no_engine(bench: VerificationHarness):
    worker = bench.worker()
    bench.control.says = {("e1", name): answer(-1.0) for name in ("fl-a", "fl-b")}
    for version in (A, B):
        with pytest.raises(QuarantinedError):
            await bench.verify(worker, E1, version)
    assert not worker.is_suspect(E1)


async def test_a_base_that_cannot_be_asked_leaves_the_versions_own_answers(bench: VerificationHarness):
    worker = bench.worker()
    for engine in ("e1", "e2"):
        bench.control.says[engine, "base"] = EngineError("no such model", 404)
    await bench.verify(worker, E1, A)
    await bench.verify(worker, E1, B)
    await bench.verify(worker, E2, B)
    assert bench.seen.results == ["first", "first", "no_base"]
    assert bench.control.asked.count(("e1", "base")) == 1
    bench.control.says["e2", "fl-a"] = answer(-9.0)
    with pytest.raises(QuarantinedError):
        await bench.verify(worker, E2, A)


UNVERIFIED = replace(A, unverified_shapes=True)


async def test_only_unverified_shapes_are_probed_where_loads_are_trusted(bench: VerificationHarness):
    worker = replace(bench.worker(), every=False)
    bench.control.says["e1", "fl-a"] = answer(-1.0)  # like the base
    assert await worker.verify(E1, A) == ""
    assert bench.control.asked == []
    with pytest.raises(QuarantinedError, match="no effect"):
        await worker.verify(E1, UNVERIFIED)


@pytest.mark.parametrize("answers", [("base", "fl-a"), ("base",)])
async def test_unverified_shapes_are_not_served_where_the_base_cannot_be_asked(
    bench: VerificationHarness, answers: tuple[str, ...]
):
    worker = bench.worker()
    for model in answers:
        bench.control.says["e1", model] = EngineError("Not Found", 404)
    with pytest.raises(EngineError, match="e1 does not answer probes of its base model, and t/a@v1"):
        await worker.verify(E1, UNVERIFIED)
    await bench.verify(worker, E2, UNVERIFIED)
    assert bench.seen.results == ["failed", "first"]


async def test_an_engine_that_completes_no_text_is_passed_over(bench: VerificationHarness):
    worker = bench.worker()
    for model in ("base", "fl-a"):
        bench.control.says["e1", model] = EngineError("Not Found", 404)
    await bench.verify(worker, E1, A)
    assert bench.seen.results == ["skipped"]
    await bench.verify(worker, E2, A)
    await bench.verify(worker, E1, A)
    assert bench.seen.results == ["skipped", "first", "skipped"]  # passed over, but not verified


async def test_a_merged_engine_that_answers_no_probes_is_not_passed_over(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    bench.control.says["e2", "fl-a"] = EngineError("logprobs are disabled", 400)
    with pytest.raises(EngineError, match="logprobs are disabled"):
        await bench.verify(worker, replace(E2, serves=A.id, merged_as=A.engine_name), A)


@pytest.mark.parametrize("model", ["base", "fl-a"])
@pytest.mark.parametrize("error", [EngineError("boom", 500), EngineUnreachableError("gone")])
async def test_a_probe_that_fails_is_a_load_that_failed(
    bench: VerificationHarness, model: str, error: EngineError
):
    worker = bench.worker()
    bench.control.says["e1", model] = error
    with pytest.raises(type(error)):
        await bench.verify(worker, E1, A)
    assert worker.catalog.serving_statuses == {}
    assert bench.seen.results == ["failed"]
    bench.control.says.clear()
    await bench.verify(worker, E1, A)
    assert bench.seen.results == ["failed", "first"]


async def test_a_version_the_engine_does_not_know_is_no_reason_to_skip(bench: VerificationHarness):
    worker = bench.worker()
    bench.control.says["e1", "fl-a"] = EngineError("no such model", 404)
    with pytest.raises(EngineError):
        await bench.verify(worker, E1, A)


async def test_without_redis_nothing_is_believed(bench: VerificationHarness):
    worker = bench.worker()
    bench.store.away = True
    with pytest.raises(StoreUnavailableError):
        await bench.verify(worker, E1, A)
    bench.store.away = False
    await bench.verify(worker, E1, A)
    bench.store.away = True
    bench.process["e1"] = "p1 restarted"
    bench.control.says["e1", "fl-a"] = answer(-1.0)
    with pytest.raises(StoreUnavailableError):  # a quarantine that nobody hears of is none
        await bench.verify(worker, E1, A)
    bench.store.away = False
    with pytest.raises(QuarantinedError):
        await bench.verify(worker, E1, A)


async def test_fingerprints_of_other_prompts_are_taken_anew(bench: VerificationHarness):
    worker = bench.worker()
    await bench.verify(worker, E1, A)
    old = replace(worker.catalog.fingerprints["fl-a"], prompt="older", logprobs=(1.0,))
    await bench.store.commit([Change("fingerprint", "fl-a", dump(old))])
    await bench.hear(worker)
    await bench.verify(worker, E1, A)
    assert bench.seen.results == ["first", "first"]
    assert worker.catalog.fingerprints["fl-a"].logprobs != (1.0,)


async def test_two_who_find_one_version_wrong_agree_on_one_verdict(bench: VerificationHarness):
    first, second = bench.worker(), bench.worker()
    bench.control.says = {(engine, "fl-a"): answer(-1.0) for engine in ("e1", "e2")}
    with pytest.raises(QuarantinedError):
        await bench.verify(first, E1, A)
    with pytest.raises(QuarantinedError):  # has not heard of it
        await bench.verify(second, E2, A)
    assert second.catalog.serving_statuses["fl-a"].engine == "e1"
    assert len(await bench.store.audit()) == 1
