"""What a guard decides is carried out once, about the comparison that was judged; a hold binds people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.errors import CanaryHeldError
from adapters.model import Adapter, CanaryOutcome, Guard, dump, load
from adapters.registry.changes.live_version import CanaryTerms, plan_verdict
from tests.unit.adapters.installation import NAME, NOW

GUARD = Guard("rollback", then=(50, 100))
HOLD = CanaryOutcome("hold", 2, "Slow.", NOW + 1)
ROLLBACK = CanaryOutcome("rollback", 2, "It fails.", NOW + 1)
PROMOTE = CanaryOutcome("promote", 2, "No worse.", NOW + 1)


@pytest.fixture
async def canary(site, worker):
    """v2 beside v1, guarded."""
    for fill in range(3):
        await worker.registrar.register(NAME, site.source(fill))
    await worker.follow()
    return await worker.registrar.promote(NAME, 2, weight=10, terms=CanaryTerms(GUARD))


async def decide(worker, since: int, outcome: CanaryOutcome, weight: int = 100) -> Adapter:
    plan = lambda reading: plan_verdict(reading, NAME, since, outcome, weight)  # noqa: E731
    return await worker.registrar.change(NAME, "guard", plan)


async def test_documents_of_before_and_of_now_are_read():
    old = load(Adapter, '{"name":"acme/support","live":1,"canary":2,"weight":10}')
    assert (old.guard, old.canary_since, old.outcome, old.held) == (None, 0, None, False)
    new = replace(old, guard=GUARD, canary_since=NOW, outcome=HOLD)
    assert load(Adapter, dump(new)) == new
    assert new.held


async def test_what_changes_of_a_canary_begins_another_comparison(worker, canary: Adapter):
    assert (canary.guard, canary.canary_since > 0) == (GUARD, True)
    again = await worker.registrar.promote(NAME, 2, weight=10)
    assert again == canary  # idempotent, and the guard stays
    raised = await worker.registrar.promote(NAME, 2, weight=20)
    assert (raised.guard, raised.canary_since > canary.canary_since) == (GUARD, True)
    bare = await worker.registrar.promote(NAME, 2, weight=20, terms=CanaryTerms(None))
    assert bare.guard is None
    other = await worker.registrar.promote(NAME, 3, weight=20)
    assert (other.canary, other.guard) == (3, None)
    live = await worker.registrar.promote(NAME, 3)
    assert (live.live, live.canary, live.guard, live.canary_since) == (3, None, None, 0)


async def test_a_rollback_is_done_once_by_however_many_leaders(site, worker, canary: Adapter):
    first = await decide(worker, canary.canary_since, ROLLBACK)
    assert (first.live, first.canary, first.weight, first.guard, first.outcome) == (
        1,
        None,
        0,
        None,
        ROLLBACK,
    )
    await worker.follow()
    assert await decide(worker, canary.canary_since, ROLLBACK) == first
    entries = [e.note for e in await site.store.audit() if e.note.actor == "guard"]
    assert [(n.action, n.version, n.details) for n in entries] == [
        ("adapter.rollback", "v1", {"canary": "v2", "weight": 10, "reason": "It fails."})
    ]
    # It does not step back from the live version, nor end the next canary.
    tried = await worker.registrar.promote(NAME, 3, weight=10)
    await worker.follow()
    assert tried.outcome is None
    assert await decide(worker, canary.canary_since, ROLLBACK) == tried


async def test_a_decision_about_a_comparison_that_has_ended_changes_nothing(worker, canary: Adapter):
    raised = await worker.registrar.promote(NAME, 2, weight=20)  # and this worker's view does not know yet
    for outcome in (ROLLBACK, HOLD, PROMOTE):
        assert await decide(worker, canary.canary_since, outcome) == raised


async def test_a_hold_ends_by_force_or_rollback_only(site, worker, canary: Adapter):
    held = await decide(worker, canary.canary_since, HOLD)
    assert (held.held, held.weight, held.canary_since) == (True, 10, canary.canary_since)
    assert await decide(worker, canary.canary_since, replace(ROLLBACK, at=NOW + 2)) == held
    for weight in (11, 99, 100):
        with pytest.raises(CanaryHeldError, match=r"holds acme/support@v2 at 10 %: Slow\."):
            await worker.registrar.promote(NAME, 2, weight=weight)
    assert (await worker.registrar.promote(NAME, 2, weight=5)).held
    forced = await worker.registrar.promote(NAME, 2, weight=30, terms=CanaryTerms(force=True))
    assert (forced.held, forced.weight, forced.guard) == (False, 30, GUARD)
    held = await decide(worker, forced.canary_since, HOLD)
    assert held.held
    assert (await worker.registrar.rollback(NAME)).outcome is None
    said = [e.note.action for e in await site.store.audit() if e.note.actor == "guard"]
    assert said == ["adapter.hold", "adapter.hold"]


async def test_weights_follow_until_it_is_live(worker, canary: Adapter):
    half = await decide(worker, canary.canary_since, PROMOTE, 50)
    assert (half.weight, half.guard, half.canary_since, half.outcome) == (50, GUARD, PROMOTE.at, None)
    done = await decide(worker, half.canary_since, PROMOTE, 100)
    assert (done.live, done.canary, done.guard, done.history, done.outcome) == (2, None, None, (1,), PROMOTE)
    assert (await worker.registrar.rollback(NAME)).live == 1
