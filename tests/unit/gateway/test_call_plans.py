"""Plans are kept while nothing changes, and never outlive what they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from adapters.model import Adapter, BaseModel, Engine, Version
from adapters.model import dump as dump_document
from adapters.registry.catalog import Catalog, Target
from adapters.store.protocol.registry import Event
from gateway.call_plans import CallPlans
from gateway.dataplane.request import CHAT
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory, Key, Role, Tenant
from gateway.tenants.directory import dump as dump_account
from gateway.tenants.terms import Scopes

SUPPORT = "acme/support"
ADAPTER = Adapter(SUPPORT, live=1, latest=2)
TENANT = Tenant("acme", base_access=False, created=0)
KEY = Key("k1", "acme", Role.TENANT, "digest", 0)
ENGINE = Engine("e", "http://127.0.0.1:1", "base", "mock", 1, 4, 8, 8)


class Fleets:
    """As much of a router as plans need."""

    def context(self, _target: Target) -> int:
        return 0

    def require_task(
        self, _target: Target, requires: Mapping[str, str], _task: object, _path: str
    ) -> Mapping[str, str]:
        return requires


class Registry:
    def __init__(self) -> None:
        self.directory, self.catalog = Directory(), Catalog()
        self.plans = CallPlans(self.directory, self.catalog, Fleets())  # type: ignore[arg-type]  # see there
        for number in (1, 2):
            version = Version(
                SUPPORT, number, "sha256:0", f"fl-{number}", "/files", "base", 8, 1, "/source", 0
            )
            self.put("version", f"{SUPPORT}@v{number}", version)
        self.put("base", "base", BaseModel("base"))
        self.put("adapter", SUPPORT, ADAPTER)
        self.put("tenant", "acme", TENANT)
        self.put("key", "k1", KEY)

    def put(self, kind: str, id_: str, document: Any) -> None:
        text = dump_account(document) if kind in {"tenant", "key"} else dump_document(document)
        for view in (self.directory, self.catalog):
            view.apply(Event(1, kind, id_, text))

    def plan(self, model: str = "support"):
        return self.plans.of(self.directory.keys["k1"], CHAT, model)


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_plan_is_kept(registry: Registry):
    plan = registry.plan()
    assert (plan.label, plan.engine_name, plan.cache_owner) == ("acme/support@v1", "fl-1", "acme fl-1")
    assert registry.plan() is plan
    second = registry.plan("support@v2")
    assert (second.label, second.cache_owner) == ("acme/support@v2", "acme fl-2")


def test_each_change_makes_it_new(registry: Registry):
    for kind, id_, document, shows in (
        ("adapter", SUPPORT, replace(ADAPTER, live=2), lambda plan: plan.label == "acme/support@v2"),
        ("tenant", "acme", replace(TENANT, requires={"a": "b"}), lambda plan: plan.requires == {"a": "b"}),
        ("tenant", "acme", replace(TENANT, cache_group="g"), lambda plan: plan.cache_owner == "group/g fl-2"),
        ("tenant", "acme", replace(TENANT, weight=3.0), lambda plan: plan.tenant.weight == 3.0),
        ("key", "k1", replace(KEY, cost_centre="c"), lambda plan: plan.cost_centre == "c"),
        ("engine", "e", ENGINE, lambda _: True),
    ):
        before = registry.plan()
        registry.put(kind, id_, document)
        after = registry.plan()
        assert after is not before, kind
        assert shows(after), kind


def test_what_is_not_there_any_more_is_not_found(registry: Registry):
    registry.plan()
    registry.put("key", "k1", replace(KEY, scopes=Scopes(adapters=("other",))))
    with pytest.raises(FlorinError, match="does not exist"):
        registry.plan()


def test_another_key_of_the_same_id_has_its_own(registry: Registry):
    """Those of people who signed in are in no directory, and may change without its knowledge."""
    person = replace(KEY, id="oidc@acme:ann")
    plan = registry.plans.of(person, CHAT, "support")
    demoted = replace(person, scopes=Scopes(adapters=("other",)))
    assert registry.plans.of(person, CHAT, "support") is plan
    with pytest.raises(FlorinError, match="does not exist"):
        registry.plans.of(demoted, CHAT, "support")


def test_the_arm_of_a_canary_is_drawn_for_each_request(registry: Registry):
    registry.put("adapter", SUPPORT, replace(ADAPTER, canary=2, weight=50))
    plan = registry.plan()
    drawn = {plan.for_call(f"user-{number}").label for number in range(100)}
    assert drawn == {"acme/support@v1", "acme/support@v2"}
    assert plan.for_call("user-1") is plan.for_call("user-1"), "a user keeps its arm"
