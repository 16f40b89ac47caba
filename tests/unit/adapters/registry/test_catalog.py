"""What names mean: live versions, canaries, versions called directly, and what is no longer there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from adapters.model import (
    Adapter,
    BaseModel,
    Fingerprint,
    PendingDeletion,
    ServingStatus,
    Tombstone,
    Version,
    dump,
)
from adapters.registry.catalog import Catalog, Target
from adapters.store.protocol.registry import Event

SUPPORT = "acme/support"
USERS = [f"user-{i}" for i in range(200)]


def version(number: int, **fields) -> Version:
    made = Version(SUPPORT, number, "sha256:0", f"fl-{number}", "/files", "base", 8, 1, "/source", 0)
    return replace(made, **fields)


def serving_status(number: int, state: str = "quarantined") -> ServingStatus:
    return ServingStatus(
        state, f"{SUPPORT}@v{number}", "answers_like_base", "It answers like its base.", "e1", 1
    )


def canary(weight: int = 10) -> Adapter:
    return Adapter(SUPPORT, live=1, canary=2, weight=weight, latest=3)


class Registry:
    """A catalog fed by events, as a follower does."""

    def __init__(self, *documents: object) -> None:
        self.catalog = Catalog()
        for document in (BaseModel("base"), *documents):
            self.put(document)

    def put(self, document: object, key: str = "") -> None:
        match document:
            case Adapter() | BaseModel():
                key = document.name
            case Version():
                key = document.id
            case ServingStatus():
                key = "fl-" + document.version.partition("@v")[2]
        kind = (
            "base"
            if isinstance(document, BaseModel)
            else re.sub(r"(?<!^)(?=[A-Z])", "_", type(document).__name__).lower()
        )
        self.catalog.apply(Event(1, kind, key, dump(document)))

    def remove(self, kind: str, key: str) -> None:
        self.catalog.apply(Event(1, kind, key, None))

    def resolve(self, model: str, tenant: str = "acme") -> Target | None:
        return self.catalog.resolve(tenant, model, base_access=False)

    def answers(self, model: str = "support") -> set[str]:
        """Labels of what many end users get."""
        target = self.resolve(model)
        return {target.for_call("acme", user).label for user in USERS} if target else set()


@pytest.fixture
def registry() -> Registry:
    return Registry(Adapter(SUPPORT, live=1, latest=3), *(version(n) for n in (1, 2, 3)))


def test_a_bare_name_is_the_live_version_and_is_looked_up_once(registry):
    target = registry.resolve("support")
    assert (target.label, target.canary, target.weight) == (f"{SUPPORT}@v1", None, 0)
    assert registry.resolve("support") is target
    assert target.for_call("acme", "anybody") is target


def test_a_canary_gets_its_share_of_the_users_and_each_always_the_same(registry):
    registry.put(canary(weight=30))
    target = registry.resolve(SUPPORT)
    first = [target.for_call("acme", user).label for user in USERS]
    assert first == [registry.resolve(SUPPORT).for_call("acme", user).label for user in USERS]
    assert 30 <= sum(label == f"{SUPPORT}@v2" for label in first) <= 90
    assert target.for_call("acme", USERS[0]).canary is None or first[0] == f"{SUPPORT}@v1"


@pytest.mark.parametrize(
    ("model", "label"), [("support@v1", "v1"), ("support@v2", "v2"), ("support@v3", "v3")]
)
def test_a_version_is_called_directly_past_the_split(registry, model, label):
    registry.put(canary(weight=50))
    assert registry.answers(model) == {f"{SUPPORT}@{label}"}
    assert registry.resolve(model).canary is None


@pytest.mark.parametrize(
    "model", ["support@v4", "support@v0", "support@v02", "support@", "support@v", "other"]
)
def test_what_is_not_there_is_nothing(registry, model):
    assert registry.resolve(model) is None


@pytest.mark.parametrize("state", ["quarantined", "failed"])
def test_quarantined_canary_gets_no_calls(registry, state):
    registry.put(canary(weight=50))
    assert registry.answers() == {f"{SUPPORT}@v1", f"{SUPPORT}@v2"}
    registry.put(serving_status(2, state))
    assert registry.answers() == {f"{SUPPORT}@v1"}
    registry.remove("serving_status", "fl-2")
    assert registry.answers() == {f"{SUPPORT}@v1", f"{SUPPORT}@v2"}


def test_a_live_version_with_a_verdict_stays_what_the_name_means(registry):
    """Its callers are told the reason; nobody is sent to something else unasked."""
    registry.put(serving_status(1))
    assert registry.answers() == {f"{SUPPORT}@v1"}


def test_a_switch_is_one_event(registry):
    registry.put(canary(weight=50))
    registry.put(Adapter(SUPPORT, live=2, history=(1,), latest=3))
    assert registry.answers() == {f"{SUPPORT}@v2"}


def test_the_other_kinds_come_and_go(registry):
    documents = {
        "tombstone": Tombstone(4, 1),
        "pending_deletion": PendingDeletion(f"{SUPPORT}@v1", "sha256:0", "/files", 1),
        "fingerprint": Fingerprint("p1", "text", (-1.0,), "e1", "h100", 1),
    }
    for kind, document in documents.items():
        registry.put(document, "x")
        table = getattr(registry.catalog, f"{kind}s")
        assert table == {"x": document}
        loaded = Catalog()
        loaded.load({kind: {"x": dump(document)}})
        assert getattr(loaded, f"{kind}s") == table
        registry.remove(kind, "x")
        assert getattr(registry.catalog, f"{kind}s") == {}


def test_the_versions_of_an_adapter_are_found_however_wide_the_gaps_between_their_numbers():
    registry = Registry(
        version(999_999_999), version(2), version(1), Adapter(SUPPORT, live=1, latest=999_999_999)
    )
    catalog = registry.catalog
    assert [v.number for v in catalog.versions_of(SUPPORT)] == [1, 2, 999_999_999]
    registry.remove("version", f"{SUPPORT}@v2")
    registry.put(version(1, retired=1))
    assert [(v.number, v.retired) for v in catalog.versions_of(SUPPORT)] == [(1, 1), (999_999_999, None)]
    whole = Catalog()
    whole.load({"version": {v.id: dump(v) for v in catalog.versions.values()}})
    assert whole.versions_of(SUPPORT) == catalog.versions_of(SUPPORT)
    assert catalog.versions_of("acme/other") == []
