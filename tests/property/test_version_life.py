"""Whatever operators do to an adapter's versions, in whatever order and from views however old, the registry
stays one that callers can be served from, and no number ever means two things."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import AdaptersError
from adapters.model import AdapterName, ServingStatus, Version, dump
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.registry.changes.live_version import plan_promote, plan_rollback
from adapters.registry.changes.settings import plan_pin
from adapters.registry.changes.versions import plan_register, plan_remove, plan_retire
from adapters.registry.registration import Registrar
from adapters.sources.options import FetchOptions
from adapters.store.protocol.registry import Change
from tests.doubles.memory_store import MemoryStore
from tests.support.search import examples

NAME = AdapterName("acme", "support")
WORKERS = 3

numbers = st.sampled_from([1, 2, 2, 3, 3, 4, 5])
operations = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("promote"), numbers, st.sampled_from([1, 10, 50, 99, 100, 100])),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("retire"), numbers),
    st.tuples(st.just("pin"), st.booleans()),
    st.tuples(st.just("remove")),
    st.tuples(st.just("judge"), numbers, st.sampled_from(["quarantined", "failed", "well"])),
)
steps = st.lists(st.tuples(st.integers(0, WORKERS - 1), st.booleans(), operations), min_size=8, max_size=40)


class Registry:
    """Workers that hear of changes only when told to, and everything that was ever true."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.views = [Catalog() for _ in range(WORKERS)]
        self.tenants: dict[str, str] = {}
        self.given = 0
        """How many engine names."""
        self.meant: dict[str, tuple[str, str]] = {}
        """Version → its digest and engine name, for ever."""
        self.registrars = [
            Registrar(
                self.store, view, ArtifactStore(Path("/nowhere")),
                tenant_document=self.tenants.get, fetching=FetchOptions(max_bytes=1),
            )
            for view in self.views
        ]  # fmt: skip

    async def follow(self, worker: int) -> None:
        documents = (await self.store.snapshot()).documents
        self.views[worker].load(documents)
        self.tenants.update(documents["tenant"])

    async def do(self, worker: int, operation: tuple) -> None:
        match operation:
            case ("judge", number, state):
                await self.judge(f"{NAME}@v{number}", state)
                return
            case ("add", content):
                self.given += 1
                version = Version(
                    str(NAME),
                    0,
                    f"sha256:{content}",
                    f"fl-{self.given}",
                    "/x",
                    "base",
                    8,
                    1,
                    "/s",
                    self.given,
                )
                plan = lambda reading: plan_register(reading, NAME, version)  # noqa: E731
            case ("promote", number, weight):
                plan = lambda reading: plan_promote(reading, NAME, number, weight)  # noqa: E731
            case ("rollback",):
                plan = lambda reading: plan_rollback(reading, NAME)  # noqa: E731
            case ("retire", number):
                plan = lambda reading: plan_retire(reading, NAME, number, 1)  # noqa: E731
            case ("pin", pinned):
                plan = lambda reading: plan_pin(reading, NAME, pinned=pinned)  # noqa: E731
            case ("remove",):
                plan = lambda reading: plan_remove(reading, NAME, 1)  # noqa: E731
        try:
            await self.registrars[worker].change(NAME, "key:k", plan)
        except AdaptersError:
            return

    async def judge(self, id_: str, state: str) -> None:
        """As the loader does, wherever it runs."""
        catalog = Catalog()
        catalog.load((await self.store.snapshot()).documents)
        version = catalog.versions.get(id_)
        if version and version.retired is None:
            data = None if state == "well" else dump(ServingStatus(state, id_, "load_failed", "No.", "e1", 1))
            await self.store.commit([Change("serving_status", version.engine_name, data)])

    async def check(self) -> None:
        documents = (await self.store.snapshot()).documents
        catalog = Catalog()
        catalog.load(documents)
        adapter = catalog.adapters.get(str(NAME))
        alive = {v.number: v for v in catalog.versions.values() if v.retired is None}
        for version in catalog.versions.values():
            meaning = (version.digest, version.engine_name)
            assert self.meant.setdefault(version.id, meaning) == meaning
        retired = {v.engine_name for v in catalog.versions.values() if v.retired is not None}
        assert retired <= set(catalog.pending_deletions)
        assert not set(catalog.pending_deletions) & {v.engine_name for v in alive.values()}
        if adapter is None:
            assert documents["version"] == documents["pin"] == {}
            assert catalog.resolve("acme", "support", base_access=False) is None
            return
        assert str(NAME) not in catalog.tombstones
        assert adapter.latest == max(int(id_.partition("@v")[2]) for id_ in self.meant)
        assert adapter.live in alive
        assert adapter.canary is None or (adapter.canary in alive and adapter.canary != adapter.live)
        assert (adapter.canary is None) == (adapter.weight == 0)
        assert set(adapter.history) <= set(alive)
        pinned = {adapter.live, adapter.canary} - {None} if adapter.pinned else set()
        pins = {key: json.loads(text)["version"] for key, text in documents["pin"].items()}
        assert pins == {alive[n].engine_name: alive[n].id for n in pinned}
        digests = [v.digest for v in alive.values()]
        assert len(digests) == len(set(digests))
        target = catalog.resolve("acme", "support", base_access=False)
        assert target.version == alive[adapter.live]
        for number, version in catalog.versions.items():
            direct = catalog.resolve("acme", number, base_access=False)
            assert (direct is None) == (version.retired is not None)


@given(steps)
@examples(60)
def test_the_registry_stays_whole(story):
    async def tell() -> None:
        registry = Registry()
        await registry.store.commit([Change("tenant", "acme", '{"name":"acme"}')])
        for content in range(3):
            await registry.do(0, ("add", content))
        await registry.follow(1)
        for worker, follow, operation in story:
            if follow:
                await registry.follow(worker)
            await registry.do(worker, operation)
            await registry.check()

    asyncio.run(tell())
