"""What plans say in cases worth naming; tests/property holds them in general."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.registry.catalog import Catalog
from gateway.declarative.operations.actions import ApplyPlan
from gateway.declarative.operations.current import Current, Snapshot, read
from gateway.declarative.operations.document import Document, parse
from gateway.declarative.operations.plan import plan
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory

NOW = 1_795_000_000_000_000
EMPTY = read(Snapshot.take(Catalog(), Directory()), ()).document
SHA = [f"sha256:{n:064x}" for n in range(10)]


def engine(url: str, **fields: Any) -> dict[str, Any]:
    return {"url": url, "base": "base", "gpu_type": "H200", "slots": 2, "max_rank": 8} | fields


def version(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "version": f"v{number}",
        "source": f"/v{number}",
        "digest": SHA[number],
        "base_model": "base",
    } | fields


def there(**sections: Any) -> Document:
    """A registry that holds this."""
    filled = parse({"florin": 1} | sections)
    return EMPTY.model_copy(update={s: v for s in sections if (v := getattr(filled, s)) is not None})


def planned(
    now: Document, prune: bool = False, retired: dict[str, str] | None = None, **wanted: Any
) -> ApplyPlan:
    return plan(Current(now, retired or {}), parse({"florin": 1} | wanted), prune=prune, clock=NOW)


def said(made: ApplyPlan) -> list[str]:
    return [f"{a.verb} {a.kind} {a.id}" for a in made.actions]


def reason(made: ApplyPlan) -> str:
    (action,) = made.actions
    assert action.verb == "refuse"
    return action.reason


def test_what_needs_another_comes_after_it_and_goes_before_it():
    wanted = {
        "adapters": {"acme/x": {"versions": [version(1)]}},
        "keys": {"k1": {"tenant": "acme", "secret": SHA[0]}},
        "tenants": {"acme": {}},
        "engines": {"a1": engine("http://a")},
        "bases": {"base": {}},
    }
    assert said(planned(EMPTY, **wanted)) == [
        "create base base", "create engine a1", "create tenant acme", "create key k1", "create adapter acme/x",
    ]  # fmt: skip
    empty: dict[str, Any] = {section: {} for section in wanted}
    assert said(planned(there(**wanted), prune=True, **empty)) == [
        "remove adapter acme/x", "remove key k1", "remove tenant acme", "remove engine a1", "remove base base",
    ]  # fmt: skip


def test_an_engine_takes_the_url_of_one_that_goes():
    now = there(engines={"a1": engine("http://a")}, bases={"base": {}})
    wanted = {"engines": {"b1": engine("http://a")}}
    assert said(planned(now, prune=True, **wanted)) == ["remove engine a1", "create engine b1"]
    assert "a1 is registered at http://a" in reason(planned(now, **wanted))


def test_an_engines_state_is_the_operators_unless_the_file_says_it():
    now = there(engines={"a1": engine("http://a", state="draining", cpu_slots=2)})
    assert said(planned(now, engines={"a1": engine("http://a")})) == []
    assert said(planned(now, engines={"a1": engine("http://a", state="active")})) == ["change engine a1"]


ADAPTER = {"versions": [version(1), version(2)], "live": "v1", "latest": "v2", "history": []}


@pytest.mark.parametrize(
    ("now", "wanted", "history"),
    [
        ({}, {"live": "v2"}, ("v1",)),
        ({"live": "v2", "history": ["v1"]}, {"live": "v1"}, ("v1", "v2")),
        ({"live": "v2", "history": ["v1"]}, {"live": "v1", "history": ["v2"]}, ("v1", "v2")),
        ({}, {"live": "v2", "history": ["v2", "v1"]}, ("v2", "v1")),
        ({"history": ["v2"]}, {"live": None}, ("v2",)),
    ],
)
def test_history_goes_on_or_is_restored(now, wanted, history):
    made = planned(
        there(adapters={"acme/x": ADAPTER | now}, tenants={"acme": {}}), adapters={"acme/x": ADAPTER | wanted}
    )
    goals = [a.goal for a in made.actions]
    assert [g.history for g in goals] == ([history] if goals else [])
    assert goals or wanted["live"] is None


def test_a_canary_ends_when_the_file_no_longer_names_it_beside_live():
    with_canary = ADAPTER | {"canary": {"version": "v2", "weight": 10}}
    now = there(adapters={"acme/x": with_canary}, tenants={"acme": {}})
    (action,) = planned(now, adapters={"acme/x": ADAPTER}).actions
    assert [(f.field, f.old, f.new) for f in action.fields] == [("canary", "v2 at 10 %", None)]
    assert said(planned(now, adapters={"acme/x": ADAPTER | {"live": None}})) == []


def test_pruning_keeps_what_callers_get():
    now = there(adapters={"acme/x": ADAPTER}, tenants={"acme": {}})
    only = {"versions": [version(2)]}
    assert said(planned(now, prune=True, adapters={"acme/x": only})) == []
    made = planned(now, prune=True, adapters={"acme/x": only | {"live": "v2"}})
    assert said(made) == ["change adapter acme/x", "remove adapter acme/x"]
    assert [f.field for f in made.actions[1].fields] == ["versions.v1"]


@pytest.mark.parametrize(
    ("wanted", "said_why"),
    [
        (version(1, digest=SHA[9]), "other files"),
        (version(1, digest=None, source="/new"), "came from /v1"),
        (version(1, base_model="other"), "is for base"),
        (version(9, base_model="other"), "v9 is for base model other, and v1 for base"),
        (version(3, digest=SHA[1]), "v3 has the files of v1"),
        (version(2, digest=None), "is retired"),
        (version(2, digest=SHA[9]), "is retired"),
        (version(4, digest=None), "was used before and can be restored only"),
    ],
)
def test_a_number_means_one_content_for_ever(wanted, said_why):
    now = there(
        adapters={"acme/x": {"versions": [version(1)], "live": "v1", "latest": "v5"}}, tenants={"acme": {}}
    )
    made = planned(now, retired={"acme/x@v2": SHA[2]}, adapters={"acme/x": {"versions": [wanted]}})
    assert said_why in reason(made)


@pytest.mark.parametrize("digest", [None, SHA[1]])
def test_a_revision_that_was_followed_to_its_commit_is_no_change(digest):
    found = f"hf://acme/x@{'0123456789' * 4}"
    now = there(
        adapters={"acme/x": {"versions": [version(1, source=found)], "live": "v1", "latest": "v1"}},
        tenants={"acme": {}},
    )
    said_so = {"versions": [version(1, source="hf://acme/x@main", digest=digest)]}
    made = planned(now, adapters={"acme/x": said_so})
    assert [f for a in made.actions for f in a.fields if f.field.startswith("versions")] == []
    assert not [a for a in made.actions if a.verb == "refuse"]
    moved = {"versions": [version(1, source="hf://other/x@main", digest=digest)]}
    (action,) = planned(now, adapters={"acme/x": moved}).actions
    assert action.verb == ("refuse" if digest is None else "change")


def test_a_key_does_not_take_anothers_secret():
    keys = {f"k{n}": {"tenant": "acme", "secret": SHA[n]} for n in (1, 2)}
    now = there(tenants={"acme": {}}, keys=keys)
    assert "Key k2 has the same secret" in reason(planned(now, keys={"k1": keys["k2"]}))
    assert said(planned(now, keys={"k1": {**keys["k1"], "secret": SHA[3]}})) == ["change key k1"]


@pytest.mark.parametrize("value", [float("nan"), 1 << 70, "\ud800"])
def test_a_config_that_no_json_holds_is_refused(value):
    with pytest.raises(FlorinError, match=r"bases\.base\.config"):
        parse({"florin": 1, "bases": {"base": {"config": {"x": value}}}})


def test_a_removed_adapter_comes_back_only_as_it_was():
    now = there(removed={"acme/x": {"latest": "v2"}}, tenants={"acme": {}})
    assert "was used before and can be restored only" in reason(
        planned(now, adapters={"acme/x": {"versions": [version(2, digest=None)]}})
    )
    for listed, latest in (([version(1)], "v2"), ([version(3, digest=None)], "v3")):
        (action,) = planned(now, adapters={"acme/x": {"versions": listed}}).actions
        assert action.goal.latest == latest


def test_a_tenant_stays_while_something_needs_it():
    now = there(tenants={"acme": {}, "bolt": {}}, adapters={"acme/x": ADAPTER | {"shared_with": ["bolt"]}})
    made = planned(now, prune=True, tenants={"acme": {}})
    assert "while there is adapter acme/x" in reason(made)
    key = {"k1": {"tenant": "acme", "secret": SHA[0]}}
    assert "while there is key k1" in reason(
        planned(there(tenants={"acme": {}}, keys=key), prune=True, tenants={})
    )


def test_the_price_that_holds_now_is_not_added_again():
    book = [
        {"gpu_type": "H200", "rate_per_gpu_hour": rate, "valid_from": start}
        for rate, start in (("2.00", "2026-01-01"), ("2.50", "2026-06-01"), ("3.00", "2030-01-01"))
    ]
    now = there(prices=book)
    for rate, count in (("2.5", 0), ("3.00", 1), ("2.00", 1)):
        made = planned(now, prices=[{"gpu_type": "H200", "rate_per_gpu_hour": rate}])
        assert len(made.actions) == count
    changed = [{**book[0], "rate_per_gpu_hour": "2.10"}]
    assert "never edited" in reason(planned(now, prices=changed))
    other = [{"gpu_type": "L40S", "rate_per_gpu_hour": "1.00", "valid_from": "2026-01-01", "currency": "EUR"}]
    assert "a price in EUR cannot be added" in reason(planned(now, prices=other))
