"""Changes that meet others: what is committed, what is planned again, and from which reading."""

from __future__ import annotations

import pytest

from adapters.errors import ConflictError, NotFoundError
from adapters.model import BaseModel, dump, load
from adapters.registry.catalog import Catalog
from adapters.registry.transaction import Proposal, Reading, transact
from adapters.store.protocol.registry import AuditNote, Change
from tests.doubles.memory_store import MemoryStore

LLAMA = BaseModel("llama")


class Operator:
    """Adds an alias to a base model; its view follows only when told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.view = Catalog()
        self.readings: list[Reading] = []

    async def follow(self) -> None:
        self.view.load((await self.store.snapshot()).documents)

    async def fresh(self) -> Reading:
        documents = (await self.store.snapshot()).documents
        catalog = Catalog()
        catalog.load(documents)
        return Reading(catalog, documents)

    def plan(self, reading: Reading, alias: str) -> Proposal[tuple[str, ...]]:
        self.readings.append(reading)
        old = reading.catalog.bases.get(LLAMA.name)
        if old is None:
            raise NotFoundError(LLAMA.name)
        if alias in old.aliases:
            return Proposal([], old.aliases, AuditNote("ops", "alias", LLAMA.name))
        new = BaseModel(LLAMA.name, (*old.aliases, alias))
        note = AuditNote("ops", "alias", LLAMA.name, details={"before": list(old.aliases)})
        return Proposal([reading.change("base", LLAMA.name, dump(new), dump(old))], new.aliases, note)

    async def add(self, alias: str) -> tuple[tuple[str, ...], int | None]:
        return await transact(
            self.store,
            lambda reading: self.plan(reading, alias),
            view=Reading(self.view, None),
            fresh=self.fresh,
        )


@pytest.fixture
async def store():
    store = MemoryStore()
    await store.commit([Change("base", LLAMA.name, dump(LLAMA))])
    return store


@pytest.fixture
async def operator(store):
    operator = Operator(store)
    await operator.follow()
    return operator


async def aliases(store: MemoryStore) -> tuple[str, ...]:
    return load(BaseModel, (await store.snapshot()).documents["base"][LLAMA.name]).aliases


async def test_a_view_that_holds_is_all_that_is_read(store, operator):
    answer, seq = await operator.add("a")
    assert (answer, seq) == (("a",), 2)
    assert [r.documents for r in operator.readings] == [None]
    assert await aliases(store) == ("a",)


async def test_a_conflict_is_planned_again_and_loses_neither_change(store, operator):
    other = Operator(store)
    await other.follow()
    await other.add("b")
    answer, _ = await operator.add("a")
    assert answer == await aliases(store) == ("b", "a")
    assert len(operator.readings) == 2
    assert [e.note.details for e in await store.audit()] == [{"before": []}, {"before": ["b"]}]


async def test_what_a_stale_view_refuses_is_planned_from_a_snapshot(store):
    stale = Operator(store)  # has heard of no base model
    assert (await stale.add("a"))[0] == ("a",)


async def test_what_a_snapshot_refuses_is_refused(store, operator):
    await store.commit([Change("base", LLAMA.name, None)])
    with pytest.raises(NotFoundError):
        await operator.add("a")
    assert len(operator.readings) == 2


async def test_without_a_change_nothing_is_committed_or_noted(store, operator):
    await operator.add("a")
    await operator.follow()
    assert await operator.add("a") == (("a",), None)
    assert len(await store.audit()) == 1


class LateOperator(Operator):
    """Somebody else is always quicker."""

    def plan(self, reading: Reading, alias: str) -> Proposal[tuple[str, ...]]:
        return Proposal([Change("base", LLAMA.name, "{}", expect=alias)], (), None)


async def test_endless_conflicts_end_in_an_error(store):
    with pytest.raises(ConflictError, match="try again"):
        await LateOperator(store).add("a")


async def test_documents_that_an_older_florin_wrote_are_expected_as_they_stand(store):
    text = '{ "name": "llama" }'
    await store.commit([Change("base", LLAMA.name, text)])
    operator = Operator(store)
    await operator.follow()
    assert (await operator.add("a"))[0] == ("a",)
    reading = operator.readings[-1]
    assert reading.documents is not None
    assert reading.proof("base", LLAMA.name, dump(LLAMA)) == Change("base", LLAMA.name, text, expect=text)
    assert reading.deletion("base", LLAMA.name, dump(LLAMA)) == Change("base", LLAMA.name, None, expect=text)
