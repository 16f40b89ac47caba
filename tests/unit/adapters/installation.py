"""A registry and its workers, for tests of what changes it."""

from __future__ import annotations

import json
from pathlib import Path

from adapters.model import Adapter, AdapterName, Engine, Version, dump, load
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.catalog import Catalog
from adapters.registry.registration import Registrar
from adapters.sources.options import FetchOptions
from adapters.store.protocol import Store
from adapters.store.protocol.registry import AuditNote, Change
from tests.doubles.memory_store import MemoryStore
from tests.support.lora import LLAMA, write_adapter

NAME = AdapterName("acme", "support")
NOW = 1_790_000_000_000_000
LIMIT = 10_000_000


class Worker:
    """One worker: a view that follows only when told to, and a registrar over it."""

    def __init__(self, store: Store, artifacts: Path) -> None:
        self.store = store
        self.catalog = Catalog()
        self.tenants: dict[str, str] = {}
        self.registrar = Registrar(
            store,
            self.catalog,
            ArtifactStore(artifacts),
            tenant_document=self._tenant,
            fetching=FetchOptions(max_bytes=LIMIT),
            now=lambda: NOW,
        )

    def _tenant(self, name: str) -> str | None:
        return self.tenants.get(name)

    async def follow(self) -> None:
        documents = (await self.store.snapshot()).documents
        self.catalog.load(documents)
        self.tenants = dict(documents["tenant"])


class Installation:
    def __init__(self, tmp_path: Path, store: Store | None = None) -> None:
        self.tmp_path = tmp_path
        self.store = store or MemoryStore()

    async def seed(self) -> None:
        """A tenant, a base model, and two engines of ranks 4 and 8."""
        engines = [Engine(f"e{rank}", "http://e", LLAMA.base.name, "h100", 2, rank) for rank in (4, 8)]
        await self.store.commit(
            [
                Change("tenant", "acme", '{"name":"acme"}'),
                Change("base", LLAMA.base.name, dump(LLAMA.base)),
                *(Change("engine", engine.name, dump(engine)) for engine in engines),
            ]
        )

    def worker(self) -> Worker:
        return Worker(self.store, self.tmp_path / "artifacts")

    async def documents(self, kind: str) -> dict[str, str]:
        return (await self.store.snapshot()).documents[kind]

    async def adapter(self) -> Adapter:
        return load(Adapter, (await self.documents("adapter"))[str(NAME)])

    async def pins(self) -> set[str]:
        return {json.loads(text)["version"] for text in (await self.documents("pin")).values()}

    def source(self, fill: int = 0, **parts) -> str:
        return str(write_adapter(self.tmp_path / f"source-{fill}", fill=fill, **parts))

    def holds_files_of(self, version: Version) -> bool:
        return len(list(Path(version.path).iterdir())) == 2

    async def audit(self) -> list[AuditNote]:
        return [entry.note for entry in await self.store.audit()]
