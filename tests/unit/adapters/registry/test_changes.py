"""The life of versions after they were added: promoted, rolled back, retired, pinned, removed, added again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from adapters.errors import (
    ConflictError,
    InUseError,
    LoadFailedError,
    NotFoundError,
    QuarantinedError,
    RejectedError,
)
from adapters.model import (
    Adapter,
    AdapterName,
    PendingDeletion,
    ServingStatus,
    Tombstone,
    Version,
    dump,
    load,
)
from adapters.registry.changes.live_version import HISTORY
from adapters.registry.changes.settings import plan_scale
from adapters.registry.changes.versions import LAST
from adapters.store.protocol.registry import Change
from tests.unit.adapters.installation import NAME, NOW

V2 = "acme/support@v2"


def live(number: int, *history: int, latest: int = 3, **fields) -> Adapter:
    return Adapter("acme/support", number, history=history, latest=latest, **fields)


@pytest.fixture
async def three(site, worker):
    """Versions 1 (live), 2 and 3 of one adapter."""
    for fill in range(3):
        await worker.registrar.register(NAME, site.source(fill))
    await worker.follow()
    return worker.registrar


async def version(site, number: int) -> Version:
    return load(Version, (await site.documents("version"))[f"acme/support@v{number}"])


async def judge(site, number: int, state: str) -> None:
    judged = await version(site, number)
    serving_status = ServingStatus(
        state, judged.id, "answers_like_base", f"{judged.id} is unwell.", "e1", NOW
    )
    await site.store.commit([Change("serving_status", judged.engine_name, dump(serving_status))])


# -- promote and roll back


async def test_rollback_goes_back_step_by_step(site, three):
    assert await three.promote(NAME, 2) == await site.adapter() == live(2, 1)
    assert await three.promote(NAME, 3) == live(3, 1, 2)
    assert await three.promote(NAME, 3) == await site.adapter() == live(3, 1, 2)
    assert await three.rollback(NAME) == live(2, 1)
    assert await three.rollback(NAME) == await site.adapter() == live(1)
    with pytest.raises(NotFoundError, match="no previous"):
        await three.rollback(NAME)


async def test_history_has_an_end(site, three):
    for number in range(HISTORY + 5):
        await three.promote(NAME, 1 + (number + 1) % 2)
    assert len((await site.adapter()).history) == HISTORY


async def test_a_canary_runs_beside_what_is_live_until_it_is_promoted(site, three):
    canary = live(1, canary=2, weight=10, canary_since=NOW)
    assert await three.promote(NAME, 2, weight=10) == await site.adapter() == canary
    assert await three.promote(NAME, 2, weight=50) == replace(canary, weight=50, canary_since=NOW + 1)
    assert await three.promote(NAME, 2) == await site.adapter() == live(2, 1)


async def test_rollback_ends_a_canary_first(site, three):
    await three.promote(NAME, 2)
    await three.promote(NAME, 3, weight=10)
    assert await three.rollback(NAME) == live(2, 1)
    assert await three.rollback(NAME) == live(1)


async def test_a_canary_takes_the_place_of_another(site, three):
    await three.promote(NAME, 2, weight=10)
    assert await three.promote(NAME, 3, weight=20) == live(1, canary=3, weight=20, canary_since=NOW + 1)
    assert (await site.audit())[-1].details == {"weight": 20, "live": "v1", "instead_of": "v2"}


async def test_promoting_what_is_live_ends_the_canary(three):
    await three.promote(NAME, 2, weight=10)
    assert await three.promote(NAME, 1) == live(1)


async def test_what_is_live_is_no_canary_of_itself(site, three):
    with pytest.raises(InUseError, match="v1 is already live"):
        await three.promote(NAME, 1, weight=10)
    assert await site.adapter() == live(1)


@pytest.mark.parametrize(("state", "error"), [("quarantined", QuarantinedError), ("failed", LoadFailedError)])
@pytest.mark.parametrize("weight", [10, 100])
async def test_a_version_with_a_verdict_gets_no_callers(site, three, state, error, weight):
    await judge(site, 2, state)  # of which this worker has not heard
    with pytest.raises(error, match="is unwell"):
        await three.promote(NAME, 2, weight=weight)
    assert await site.adapter() == live(1)


async def test_there_is_no_way_back_to_a_version_with_a_verdict(site, three):
    await three.promote(NAME, 2)
    await judge(site, 1, "quarantined")
    with pytest.raises(QuarantinedError, match="v1 is unwell"):
        await three.rollback(NAME)
    assert await site.adapter() == live(2, 1)


async def test_what_is_not_there_is_not_changed(site, three):
    for number in (0, 4):
        for change in (three.promote(NAME, number), three.retire(NAME, number)):
            with pytest.raises(NotFoundError, match=f"version {number}"):
                await change
    missing = AdapterName("acme", "missing")
    for change in (
        three.promote(missing, 1),
        three.rollback(missing),
        three.retire(missing, 1),
        three.pin(missing, True),
        three.remove(missing),
    ):
        with pytest.raises(NotFoundError, match="acme/missing"):
            await change


# -- retire


async def test_a_retired_version_is_gone_for_callers_and_leaves_a_grave(site, three):
    await judge(site, 2, "failed")
    buried = await version(site, 2)
    await three.retire(NAME, 2)
    assert await version(site, 2) == replace(buried, retired=NOW)
    assert await site.documents("serving_status") == {}
    pending_deletion = PendingDeletion(V2, buried.digest, buried.path, NOW)
    assert {k: load(PendingDeletion, v) for k, v in (await site.documents("pending_deletion")).items()} == {
        buried.engine_name: pending_deletion
    }
    assert site.holds_files_of(buried)
    with pytest.raises(NotFoundError, match="is retired"):
        await three.promote(NAME, 2)


async def test_what_callers_are_sent_to_is_not_retired(site, three):
    await three.promote(NAME, 2, weight=10)
    for number, role in ((1, "live"), (2, "the canary")):
        with pytest.raises(InUseError, match=f"is {role}"):
            await three.retire(NAME, number)
    assert await site.documents("pending_deletion") == {}


async def test_there_is_no_way_back_to_a_retired_version(site, three):
    for number in (2, 3, 2, 1, 3):
        await three.promote(NAME, number)
    assert (await site.adapter()).history == (1, 2, 3, 2, 1)
    await three.retire(NAME, 1)
    assert (await site.adapter()).history == (2, 3, 2)
    await three.retire(NAME, 2)
    assert await site.adapter() == live(3)  # what stood between was no change


async def test_the_files_of_a_retired_version_are_a_new_version(site, three):
    old = await three.retire(NAME, 2)
    again = await three.register(NAME, site.source(1))
    assert (again.created, again.version.number, again.version.digest) == (True, 4, old.digest)
    assert again.version.engine_name != old.engine_name


# -- pins


# -- remove and add again


async def test_the_bounds_of_replicas_change_one_by_one_and_never_cross(site, three):
    def scale(**bounds):
        return three.change(NAME, "op", lambda reading: plan_scale(reading, NAME, bounds))

    before = len(await site.audit())
    assert await scale(min_replicas=2, max_replicas=3) == live(1, min_replicas=2, max_replicas=3)
    with pytest.raises(ConflictError, match="At least 2 and at most 1"):
        await scale(max_replicas=1)
    await scale(min_replicas=2)
    assert await scale(max_replicas=None) == live(1, min_replicas=2)
    assert [(note.action, note.details) for note in (await site.audit())[before:]] == [
        ("adapter.scale", {"min_replicas": {"old": 0, "new": 2}, "max_replicas": {"old": None, "new": 3}}),
        ("adapter.scale", {"max_replicas": {"old": 3, "new": None}}),
    ]


async def test_removal_takes_all_and_leaves_graves_and_a_tombstone(site, three):
    await three.pin(NAME, True)
    await three.retire(NAME, 2)
    removed = await three.remove(NAME)
    assert [v.number for v in removed] == [1, 2, 3]
    for kind in ("adapter", "version", "pin"):
        assert await site.documents(kind) == {}
    assert set(await site.documents("pending_deletion")) == {v.engine_name for v in removed}
    assert load(Tombstone, (await site.documents("tombstone"))[str(NAME)]) == Tombstone(3, NOW)
    assert all(site.holds_files_of(v) for v in removed)


@pytest.mark.parametrize("fresh_view", [True, False])
async def test_numbers_go_on_after_a_removal(site, worker, three, fresh_view):
    await three.remove(NAME)
    if fresh_view:
        await worker.follow()
    again = await three.register(NAME, site.source(0))
    assert (again.version.number, again.live, again.created) == (4, 4, True)
    assert await site.adapter() == Adapter("acme/support", live=4, latest=4)
    assert await site.documents("tombstone") == {}


# -- restoring


async def test_a_version_is_restored_under_its_number(site, worker):
    digests = {}
    for fill, number in ((0, 3), (1, 7)):
        added = await worker.registrar.register(NAME, site.source(fill), number=number)
        digests[number] = added.version.digest
    assert await site.adapter() == live(3, latest=7)
    again = await worker.registrar.register(NAME, site.source(1), number=7, digest=digests[7])
    assert (again.version.number, again.created) == (7, False)
    assert (await worker.registrar.register(NAME, site.source(2))).version.number == 8


async def test_a_number_that_was_given_away_comes_back_only_with_its_digest(site, three):
    digest = (await version(site, 2)).digest
    await three.remove(NAME)
    with pytest.raises(ConflictError, match="used before"):
        await three.register(NAME, site.source(1), number=2)
    restored = await three.register(NAME, site.source(1), number=2, digest=digest)
    assert (restored.version.number, (await site.adapter()).latest) == (2, 3)


async def test_a_number_is_one_version(site, three):
    with pytest.raises(ConflictError, match="v2 exists with different files"):
        await three.register(NAME, site.source(9), number=2)
    with pytest.raises(ConflictError, match="v2 already has these files"):
        await three.register(NAME, site.source(1), number=5)


async def test_a_retired_version_comes_back_with_its_own_files(site, three):
    old = await three.retire(NAME, 2)
    with pytest.raises(ConflictError, match="used before"):
        await three.register(NAME, site.source(1), number=2)
    back = await three.register(NAME, site.source(1), number=2, digest=old.digest)
    assert (back.created, back.version.number, back.version.retired) == (True, 2, None)
    assert back.version.engine_name != old.engine_name
    assert await version(site, 2) == back.version
    assert (await three.promote(NAME, 2)).live == 2
    await three.promote(NAME, 1)
    await three.retire(NAME, 2)
    digest = (await version(site, 3)).digest
    await three.retire(NAME, 3)
    with pytest.raises(ConflictError, match="v2 exists with different files"):
        await three.register(NAME, site.source(2), number=2, digest=digest)


async def test_files_of_another_digest_are_refused(site, worker):
    with pytest.raises(RejectedError) as caught:
        await worker.registrar.register(NAME, site.source(), digest="sha256:" + "0" * 64)
    assert [finding.code for finding in caught.value.findings] == ["digest_mismatch"]
    assert await site.documents("version") == {}


# -- the audit, and many at once


async def test_every_change_has_its_note_and_what_changes_nothing_has_none(site, three):
    before = len(await site.audit())
    for change in (
        three.promote(NAME, 2, weight=10, actor="key:k1"),
        three.promote(NAME, 2, weight=10, actor="key:k1"),
        three.rollback(NAME, actor="key:k1"),
        three.promote(NAME, 2, actor="key:k1"),
        three.pin(NAME, True, actor="key:k1"),
        three.pin(NAME, True, actor="key:k1"),
        three.pin(NAME, False, actor="key:k1"),
        three.retire(NAME, 3, actor="key:k1"),
        three.retire(NAME, 3, actor="key:k1"),
        three.register(NAME, site.source(0), actor="key:k1"),
        three.remove(NAME, actor="key:k1"),
    ):
        await change
    notes = (await site.audit())[before:]
    assert [(note.action, note.version) for note in notes] == [
        ("adapter.canary", "v2"),
        ("adapter.rollback", "v1"),
        ("adapter.promote", "v2"),
        ("adapter.pin", "v2"),
        ("adapter.unpin", "v2"),
        ("adapter.retire", "v3"),
        ("adapter.remove", ""),
    ]
    assert {(note.actor, note.subject) for note in notes} == {("key:k1", "acme/support")}


async def test_changes_at_once_all_happen(site, three):
    await asyncio.gather(*(three.pin(NAME, True) for _ in range(8)), three.promote(NAME, 2))
    assert await site.adapter() == live(2, 1, pinned=True)
    assert await site.pins() == {V2}


async def test_after_the_last_number_there_is_none(site, worker):
    await worker.registrar.register(NAME, site.source(0))
    await site.store.commit([Change("adapter", str(NAME), dump(live(1, latest=LAST)))])
    with pytest.raises(ConflictError, match="last version number, v999999999"):
        await worker.registrar.register(NAME, site.source(1))
    assert await site.adapter() == live(1, latest=LAST)
