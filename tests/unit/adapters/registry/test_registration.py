"""Adding adapters and versions: alone, at once, and with a stale view."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.errors import ConflictError, NotFoundError, RejectedError
from adapters.model import Adapter, AdapterName, BaseModel, Engine, Version, dump, load
from adapters.progress import Progress
from adapters.registry import bounded_checks
from adapters.store.protocol.registry import Change
from tests.support.lora import LLAMA, lora_config, lora_tensors
from tests.unit.adapters.installation import NAME, NOW, Installation


def names(directory: Path | str) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


async def test_the_first_version_goes_live_and_is_stored_apart_from_its_source(site, worker):
    source = site.source()
    added = await worker.registrar.register(NAME, source)
    version = added.version
    assert (added.created, added.live, version.id) == (True, 1, "acme/support@v1")
    assert (version.rank, version.base_model, version.source, version.created) == (
        4,
        "tiny/base",
        source,
        NOW,
    )
    assert version.engine_name.startswith("fl-")
    assert version.path.startswith("/")
    assert names(version.path) == ["adapter_config.json", "adapter_model.safetensors"]
    assert version.digest == f"sha256:{Path(version.path).name}"
    assert load(Version, (await site.documents("version"))[version.id]) == version
    assert await site.adapter() == Adapter("acme/support", live=1, latest=1)


@pytest.mark.parametrize("fresh_view", [True, False])
async def test_the_same_content_again_is_the_same_version(site, worker, fresh_view):
    first = await worker.registrar.register(NAME, site.source())
    if fresh_view:
        await worker.follow()
    again = await worker.registrar.register(NAME, site.source())
    assert (again.version, again.live, again.created) == (first.version, 1, False)
    assert len(await site.documents("version")) == 1


async def test_new_content_is_the_next_version_and_waits_for_its_promotion(site, worker):
    first = await worker.registrar.register(NAME, site.source(0))
    await worker.follow()
    second = await worker.registrar.register(NAME, site.source(1))
    assert (second.version.number, second.live, second.created) == (2, 1, True)
    assert second.version.path != first.version.path
    assert second.version.engine_name != first.version.engine_name


async def test_the_same_content_under_two_names_is_two_versions_in_one_place(site, worker):
    one = await worker.registrar.register(NAME, site.source())
    two = await worker.registrar.register(AdapterName("acme", "sales"), site.source())
    assert one.version.path == two.version.path
    assert one.version.engine_name != two.version.engine_name


@pytest.mark.parametrize("following", [True, False])
async def test_adds_at_once_lose_none_and_double_none(site, following):
    workers = [site.worker() for _ in range(8)]
    if following:
        for worker in workers:
            await worker.follow()
    sources = [site.source(fill) for fill in range(4)]
    added = await asyncio.gather(
        *(worker.registrar.register(NAME, sources[i % 4]) for i, worker in enumerate(workers))
    )
    assert sorted(r.version.number for r in added if r.created) == [1, 2, 3, 4]
    for i in range(4):
        assert added[i].version == added[i + 4].version
    assert (await site.adapter()).latest == 4
    assert len(await site.documents("version")) == 4


async def test_a_stale_view_is_not_believed(site, worker):
    elsewhere = site.worker()
    first = await elsewhere.registrar.register(NAME, site.source(0))
    second = await worker.registrar.register(NAME, site.source(1))
    assert second.version.number == 2
    await worker.follow()
    await elsewhere.registrar.remove(NAME)
    # The view still holds the version; its adapter is gone, so this is a first version again.
    again = await worker.registrar.register(NAME, site.source(0))
    assert again.created
    assert again.version.engine_name != first.version.engine_name


async def test_a_tenant_must_exist_when_the_version_is_committed(site, worker):
    with pytest.raises(NotFoundError, match="Tenant"):
        await worker.registrar.register(AdapterName("bolt", "support"), site.source())
    await site.store.commit([Change("tenant", "acme", None)])  # the worker has not heard of it
    with pytest.raises(NotFoundError, match="Tenant"):
        await worker.registrar.register(NAME, site.source())
    assert await site.documents("adapter") == {}
    assert await site.documents("version") == {}


async def test_an_adapter_that_fails_its_checks_leaves_nothing(site, worker):
    with pytest.raises(RejectedError, match="acme/support was refused") as caught:
        await worker.registrar.register(NAME, site.source(config=lora_config(lora_alpha=-1)))
    assert [finding.code for finding in caught.value.findings] == ["alpha_invalid"]
    assert await site.documents("adapter") == {}
    assert names(site.tmp_path / "artifacts") == [".staging"]
    assert names(site.tmp_path / "artifacts" / ".staging") == []


def large() -> dict[str, Any]:
    """An adapter that is not checked in the worker's own process."""
    return {"config": lora_config(comment="x" * 20_000)}


async def test_a_large_adapter_is_checked_in_a_process_of_its_own(site, worker):
    steps = []
    added = await worker.registrar.register(
        NAME, site.source(**large()), progress=lambda *step: steps.append(step)
    )
    assert (added.version.rank, added.version.warnings) == (4, ())
    weights = sum(4 * math.prod(shape) for _, shape in lora_tensors().values())
    assert ("check", weights, weights) in steps
    config = large()["config"] | {"lora_alpha": -1}
    with pytest.raises(RejectedError) as caught:
        await worker.registrar.register(NAME, site.source(1, config=config))
    assert [finding.code for finding in caught.value.findings] == ["alpha_invalid"]


def never_ends(directory: Path, *, progress: Progress, **more: Any) -> None:
    while True:
        pass


async def test_checks_that_do_not_end_give_their_places_to_others(site, worker, monkeypatch):
    sources = [site.source(fill, **large()) for fill in range(6)]
    with monkeypatch.context() as patch:
        patch.setattr(bounded_checks, "validate", never_ends)
        patch.setattr(bounded_checks, "_SECONDS", 0.2)
        results = await asyncio.gather(
            *(worker.registrar.register(NAME, source) for source in sources), return_exceptions=True
        )
    for refusal in results:
        assert isinstance(refusal, RejectedError)
        assert [finding.code for finding in refusal.findings] == ["checks_unfinished"]
    assert (await worker.registrar.register(NAME, sources[0])).created
    assert names(site.tmp_path / "artifacts" / ".staging") == []


async def test_checks_end_when_nobody_waits_any_more(site, worker, monkeypatch):
    class LeftError(Exception):
        pass

    steps = []

    def leave(step: str, done: int, total: int | None) -> None:
        steps.append(step)
        if steps.count("check") == 3:  # the first comes before there is a process
            raise LeftError

    monkeypatch.setattr(bounded_checks, "validate", never_ends)
    with pytest.raises(LeftError):
        await worker.registrar.register(NAME, site.source(**large()), progress=leave)


async def test_the_rank_must_fit_one_engine_of_the_fleet(site, worker):
    rank8 = {"config": lora_config(rank=8), "tensors": lora_tensors(rank=8)}
    assert (await worker.registrar.register(NAME, site.source(0, **rank8))).version.rank == 8
    rank9 = {"config": lora_config(rank=9), "tensors": lora_tensors(rank=9)}
    with pytest.raises(RejectedError) as caught:
        await worker.registrar.register(NAME, site.source(1, **rank9))
    (finding,) = caught.value.findings
    assert finding.code == "rank_too_high"
    assert "4, 8" in finding.expected


async def test_an_engine_that_this_worker_has_not_heard_of_counts(site, worker):
    await site.store.commit(
        [Change("engine", "e16", dump(Engine("e16", "http://e", "tiny/base", "h100", 2, 16)))]
    )
    source = site.source(config=lora_config(rank=16), tensors=lora_tensors(rank=16))
    assert (await worker.registrar.register(NAME, source)).version.rank == 16


async def test_a_source_is_judged_where_it_lies(site, worker):
    source = Path(site.source())
    (source / "adapter_model.safetensors").rename(source / "adapter_model.bin")
    with pytest.raises(RejectedError) as caught:
        await worker.registrar.register(NAME, str(source))
    assert [finding.code for finding in caught.value.findings] == ["unsafe_file", "file_missing"]


async def test_the_base_model_is_named_when_there_are_several(site, worker):
    await site.store.commit([Change("base", "other", dump(BaseModel("other", (), LLAMA.config)))])
    await worker.follow()
    with pytest.raises(RejectedError) as caught:
        await worker.registrar.register(NAME, site.source())
    assert [finding.code for finding in caught.value.findings] == ["base_ambiguous"]
    assert "other, tiny/base" in caught.value.findings[0].expected
    added = await worker.registrar.register(NAME, site.source(), base_model="tiny/base")
    assert added.version.base_model == "tiny/base"
    with pytest.raises(NotFoundError, match="'missing'"):
        await worker.registrar.register(NAME, site.source(), base_model="missing")
    with pytest.raises(NotFoundError, match="No engine"):
        await worker.registrar.register(NAME, site.source(), base_model="other")


async def test_an_adapters_name_means_one_base_model(site, worker):
    other = BaseModel("other", (), LLAMA.config)
    engine = Engine("e2", "http://e2", "other", "h100", 2, 8)
    await worker.registrar.register(NAME, site.source(0))
    await site.store.commit([Change("base", "other", dump(other)), Change("engine", "e2", dump(engine))])
    await worker.follow()
    for source in (site.source(0), site.source(1)):
        with pytest.raises(ConflictError, match="acme/support@v1 is for base model tiny/base"):
            await worker.registrar.register(NAME, source, base_model="other", assume_base=True)
    # Nor is the base model asked for again, although there are several now.
    second = await worker.registrar.register(NAME, site.source(1))
    assert (second.version.number, second.version.base_model) == (2, "tiny/base")
    # Under another name, the same files serve the other fleet.
    sales = AdapterName("acme", "sales")
    elsewhere = await worker.registrar.register(sales, site.source(0), base_model="other", assume_base=True)
    assert elsewhere.version.base_model == "other"
    # What can no longer be called binds nobody: a removed name is free.
    await worker.follow()
    await worker.registrar.remove(NAME)
    await worker.follow()
    moved = await worker.registrar.register(NAME, site.source(0), base_model="other", assume_base=True)
    assert (moved.version.number, moved.version.base_model) == (3, "other")


async def test_a_retired_version_for_another_base_model_binds_nobody(site, worker):
    """As old registries may have them."""
    await worker.registrar.register(NAME, site.source(0))
    first = load(Version, (await site.documents("version"))["acme/support@v1"])
    old = replace(first, number=7, engine_name="fl-old", base_model="other", digest="sha256:0", retired=1)
    adapter = replace(await site.adapter(), latest=7)
    await site.store.commit(
        [Change("version", old.id, dump(old)), Change("adapter", str(NAME), dump(adapter))]
    )
    await worker.follow()
    assert (await worker.registrar.register(NAME, site.source(1))).version.id == "acme/support@v8"


async def test_unverified_shapes_are_recorded_where_nothing_was_checked(site, worker):
    tomorrow = BaseModel("tiny/base", (), LLAMA.config | {"architectures": ["TomorrowForCausalLM"]})
    known = await worker.registrar.register(NAME, site.source(0), unverified_shapes=True)
    assert not known.version.unverified_shapes
    await site.store.commit([Change("base", "tiny/base", dump(tomorrow))])
    await worker.follow()
    with pytest.raises(RejectedError, match="cannot check"):
        await worker.registrar.register(NAME, site.source(1))
    added = await worker.registrar.register(NAME, site.source(1), unverified_shapes=True)
    assert added.version.unverified_shapes
    assert [warning.code for warning in added.warnings] == ["shapes_unverified"]
    assert load(Version, (await site.documents("version"))[added.version.id]) == added.version
    details = [entry.note.details for entry in await site.store.audit()]
    assert [d.get("unverified_shapes", False) for d in details] == [False, True]


async def test_without_any_base_model_the_cure_is_told(tmp_path):
    site = Installation(tmp_path)
    await site.store.commit([Change("tenant", "acme", "{}")])
    with pytest.raises(NotFoundError, match="register an engine"):
        await site.worker().registrar.register(NAME, site.source())
