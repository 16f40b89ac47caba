"""What is done about a resource, and what its status says."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.declarative.schemas import Action
from gateway.fleet.adapters.schemas.adapters import Adapter, Place
from gateway.kubernetes.inventory import Inventory, retry_delay
from gateway.kubernetes.operations.decisions import (
    Apply,
    Claim,
    Release,
    Remove,
    Show,
    after_asking,
    before_asking,
    owners,
)
from gateway.kubernetes.operations.definitions import shown
from gateway.kubernetes.operations.observation import Fleet, status
from gateway.kubernetes.resource import FINALIZER, Finding, Resource, conditions
from tests.support.samples import sample

VERSIONS = [{"version": "v1", "source": "s3://a/1"}]
SERVED = Finding("Applied", "v1 is loaded when it is called.")


def resource(name: str = "support", created: str = "2026-01-01T00:00:00Z", **changes: Any) -> Resource:
    metadata = {
        "name": name,
        "uid": name,
        "generation": 1,
        "creationTimestamp": created,
        "finalizers": [FINALIZER],
    }
    spec = {"tenant": "acme", "versions": VERSIONS} | changes.pop("spec", {})
    return Resource(
        "LoraAdapter",
        {
            "metadata": metadata | changes.pop("metadata", {}),
            "spec": spec,
            "status": changes.pop("status", {}),
        },
    )


DELETED = {"deletionTimestamp": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    ("subject", "step"),
    [
        (resource(), None),
        (resource(metadata={"finalizers": []}), Claim()),
        (resource(metadata={"finalizers": []}, spec={"management": "Observe"}), None),
        (resource(metadata=DELETED), Remove()),
        (resource(metadata=DELETED, spec={"management": "Retain"}), Release()),
        (resource(metadata=DELETED, spec={"management": "Observe"}), Release()),
    ],
)
def test_before_the_gateway_is_asked(subject, step):
    assert before_asking(subject, subject) == step


def test_the_oldest_of_several_resources_has_the_object():
    first, second = resource(), resource("other", "2026-01-03T00:00:00Z", spec={"name": "support"})
    assert [r.name for r in owners([second, first]).values()] == [first.name]
    step = before_asking(second, first)
    assert isinstance(step, Show)
    assert (step.finding.reason, step.finding.phase) == ("Duplicate", "stalled")
    deleted = resource("other", "2026-01-03T00:00:00Z", metadata=DELETED, spec={"name": "support"})
    assert before_asking(deleted, first) == Release(), "what is the other's stays"


def test_an_object_outlives_a_resource_that_is_deleted_beside_another_for_it():
    old = resource(metadata=DELETED)
    for changes, heir, step in (({}, "other", Release()), ({"metadata": DELETED}, "support", Remove())):
        other = resource("other", "2026-01-03T00:00:00Z", spec={"name": "support"}, **changes)
        (owner,) = owners([old, other]).values()
        assert owner.name == heir
        assert before_asking(old, owner) == step


def test_what_the_models_refuse_is_not_sent():
    step = before_asking(wrong := resource(spec={"live": "v7"}), wrong)
    assert isinstance(step, Show)
    assert step.finding.reason == "InvalidSpec"
    assert "live is v7, which is not one of its versions" in step.finding.message


def action(**changes: Any) -> Action:
    fields = ({"field": "live", "old": "v2", "new": "v1"},)
    body = {"action": "change", "kind": "adapter", "id": "acme/support", "fields": fields, "reason": ""}
    return Action.model_validate(body | {"outcome": "planned", "error": None} | changes)


def refused(code: str, type_: str = "conflict_error", findings: tuple[Any, ...] = ()) -> Action:
    error = {"message": "No.", "type": type_, "param": None, "code": code, "findings": findings}
    return action(action="refuse", outcome="failed", error=error)


SYNCED = {
    "observedGeneration": 1,
    "conditions": [{"type": "Synced", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
}


def test_after_the_gateway_was_asked():
    assert after_asking(resource(), [action()], SERVED) == Apply(())
    assert after_asking(resource(status=SYNCED), [action()], SERVED) == Apply(("live: v2 → v1",))
    assert after_asking(resource(status=SYNCED), [], SERVED) == Show(SERVED)
    newer = resource(status=SYNCED, metadata={"generation": 2})
    assert after_asking(newer, [action()], SERVED) == Apply(()), "what its author changed is no drift"
    observed = after_asking(resource(spec={"management": "Observe"}), [action()], SERVED)
    assert isinstance(observed, Show)
    assert (observed.finding.reason, observed.drift) == ("Drifted", ("live: v2 → v1",))
    waiting = Finding("TooFewReplicas", "v1 is on 0 engines.", "reconciling")
    assert after_asking(resource(), [], waiting) == Show(waiting), "nothing is to be tried again"
    quarantined = Finding("Quarantined", "v1: it answers like the base model.", "stalled")
    assert after_asking(resource(), [], quarantined) == Show(quarantined, retry=True)


FINDING = {
    "code": "rank_too_high", "message": "Rank 64.", "found": "64", "expected": "32", "remedy": "", "severity": "error",
}  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "reason", "phase"),
    [
        (refused("conflict"), "Conflict", "stalled"),
        (refused("adapter_rejected", "invalid_request_error", (FINDING,)), "RankTooHigh", "stalled"),
        (refused("store_unavailable", "server_error"), "StoreUnavailable", "reconciling"),
    ],
)
def test_a_refusal_is_shown_and_tried_again(failed, reason, phase):
    step = after_asking(resource(), [failed], SERVED)
    assert isinstance(step, Show)
    assert (step.finding.reason, step.finding.phase, step.retry) == (reason, phase, True)


@pytest.mark.parametrize(
    ("fewest", "ready", "reason"),
    [(0, "True", "Applied"), (1, "True", "Applied"), (2, "False", "TooFewReplicas")],
)
def test_an_adapter_on_fewer_engines_than_its_spec_says_is_not_ready(fewest, ready, reason):
    place = sample(Place, engine="e1", version="v1", state="resident")
    adapter = Adapter.model_validate(
        sample(Adapter, adapter="acme/support", live="v1", placed=[place], min_replicas=fewest)
    )
    finding = Fleet(adapters={"acme/support": adapter}).finding(resource())
    assert (conditions([], finding, 1, "now")[0]["status"], finding.reason) == (ready, reason)
    assert finding.synced


def test_conditions_keep_the_time_of_their_last_change():
    old = [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]
    new = conditions(old, Finding("Conflict", "No.", "stalled", synced=False), 3, "now")
    assert {c["type"]: (c["status"], c["last_transition_time"]) for c in new} == {
        "Ready": ("False", "now"),
        "Synced": ("False", "now"),
        "Stalled": ("True", "now"),
    }
    assert conditions(old, SERVED, 3, "now")[0]["last_transition_time"] == "then"


def test_drift_is_shown_until_the_next():
    first = status(resource(), SERVED, Fleet(), now="t1", drift=("live: v2 → v1",), corrected=True)
    assert first.drift.corrected
    later = status(resource(status=shown(first)), SERVED, Fleet(), now="t2")
    assert later == first


def test_each_failure_in_a_row_doubles_the_wait_and_a_change_ends_it():
    assert [retry_delay(n) for n in (1, 2, 3, 9)] == [5, 10, 20, 300]
    now = 0.0
    inventory = Inventory(lambda: now, resync=60)
    inventory.remember(resource())
    assert len(inventory.due()) == 1
    inventory.retry(("LoraAdapter", "support"))
    assert inventory.due() == []
    inventory.remember(resource(status=SYNCED))
    assert inventory.due() == [], "a change of its status alone is none"
    inventory.remember(resource(metadata={"generation": 2}))
    assert len(inventory.due()) == 1
