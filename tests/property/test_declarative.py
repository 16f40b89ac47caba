"""Plans against a model of the registry that does what they say: one application is enough, an export is the
whole truth, and a file survives being written and read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from adapters.registry.catalog import Catalog
from gateway.costs.periods import iso
from gateway.costs.prices.schemas import NewPrice
from gateway.declarative.commands import fleet_file
from gateway.declarative.operations.actions import ApplyPlan, PlannedAction
from gateway.declarative.operations.current import Current, Snapshot, export, read
from gateway.declarative.operations.document import Document, parse
from gateway.declarative.operations.plan import plan
from gateway.declarative.operations.specs import AdapterSpec, BaseSpec, RemovedSpec
from gateway.errors import FlorinError
from gateway.tenants.directory import Directory
from tests.support.search import examples

NOW = 1_795_000_000_000_000
LATER = NOW + 1_000_000
"""When each plan is made: after all that was begun."""
EMPTY = read(Snapshot.take(Catalog(), Directory()), ())
SECTIONS = {"base": "bases", "engine": "engines", "tenant": "tenants", "key": "keys", "adapter": "adapters"}


def digest(of: str) -> str:
    return f"sha256:{hashlib.sha256(of.encode()).hexdigest()}"


# -- the model


def applied(current: Current, made: ApplyPlan) -> Current:
    """What the registry would be, were each action done as it says."""
    sections: dict[str, Any] = {
        n: dict(getattr(current.document, n)) for n in (*SECTIONS.values(), "removed")
    }
    retired = dict(current.retired)
    prices = list(current.document.prices)
    for action in made.actions:
        if action.verb == "refuse":
            continue
        if action.verb == "remove":
            remove(action, sections, retired)
        elif action.kind == "price":
            prices.append(begun(action.goal, prices))
        elif action.kind == "removed":
            sections["removed"][action.id] = action.goal
        else:
            put(action, sections, retired)
    prices.sort(key=lambda p: (p.gpu_type, p.region, p.purchase, p.valid_from))
    ordered = {name: dict(sorted(objects.items())) for name, objects in sections.items()}
    selling = {"rate_cards": (), "rate_card_assignments": ()}  # test_selling.py has their cases
    made = Document.model_construct(florin=1, prices=tuple(prices), **ordered, **selling)
    return Current(made, retired)


def begun(price: NewPrice, book: list[NewPrice]) -> NewPrice:
    """The first of its kind holds from the beginning, each later one from a moment of its own."""
    series = [
        p
        for p in book
        if (p.gpu_type, p.region, p.purchase) == (price.gpu_type, price.region, price.purchase)
    ]
    start = iso(NOW + len(series)) if series else "1970-01-01T00:00:00Z"
    return price.model_copy(update={"valid_from": price.valid_from or start})


def put(action: PlannedAction, sections: dict[str, Any], retired: dict[str, str]) -> None:
    goal = action.goal
    if action.kind == "engine":
        sections["bases"].setdefault(goal.base, BaseSpec(aliases=()))
        taken = {e.url for i, e in sections["engines"].items() if i != action.id}
        assume(goal.url not in taken)  # two that swap: the second is refused, and comes with the next apply
    if action.kind == "adapter":
        sections["removed"].pop(action.id, None)
        known = [
            v.model_copy(
                update={
                    "digest": v.digest or digest(v.source),
                    "base_model": v.base_model or "base",
                    "trusted": bool(v.trusted),
                }
            )
            for v in goal.versions
        ]
        assume(len({(v.digest, v.base_model) for v in known}) == len(known))
        for version in known:
            retired.pop(f"{action.id}@{version.version}", None)
        goal = goal.model_copy(update={"versions": tuple(known)})
    sections[SECTIONS[action.kind]][action.id] = goal


def remove(action: PlannedAction, sections: dict[str, Any], retired: dict[str, str]) -> None:
    objects = sections[SECTIONS[action.kind]]
    if action.kind == "key":
        objects[action.id] = objects[action.id].model_copy(update={"revoked": "2026-11-01T00:00:00Z"})
        return
    if action.kind == "tenant":
        for key in [i for i, k in sections["keys"].items() if k.tenant == action.id]:
            del sections["keys"][key]
    if isinstance(action.goal, AdapterSpec):
        gone = {v.version for v in action.goal.versions}
        there = objects[action.id]
        retired |= {f"{action.id}@{v.version}": v.digest for v in there.versions if v.version in gone}
        objects[action.id] = there.model_copy(
            update={
                "versions": tuple(v for v in there.versions if v.version not in gone),
                "history": tuple(v for v in there.history if v not in gone),
            }
        )
        return
    adapter = objects.pop(action.id)
    if action.kind == "adapter":
        if adapter.latest != "v0":  # it never had a number that could be given twice
            sections["removed"][action.id] = RemovedSpec(latest=adapter.latest)
        for version in [i for i in retired if i.startswith(f"{action.id}@")]:
            del retired[version]


# -- documents

TENANTS = ["acme", "bolt"]
BASES = ["base", "other"]


def some(values: list[str], each: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.dictionaries(st.sampled_from(values), each)


@st.composite
def adapters(draw: st.DrawFn) -> dict[str, Any]:
    numbers = draw(st.lists(st.integers(1, 5), unique=True, max_size=4))
    versions = []
    for number in numbers:
        source = f"/files/{draw(st.integers(1, 6))}"
        version: dict[str, Any] = {"version": f"v{number}", "source": source}
        if draw(st.booleans()):
            version["digest"] = digest(source)
        if draw(st.booleans()):
            version["base_model"] = draw(st.sampled_from(BASES))
        if draw(st.booleans()):
            version["trusted"] = draw(st.booleans())
        versions.append(version)
    spec: dict[str, Any] = {"versions": versions, "pinned": draw(st.booleans())}
    names = [v["version"] for v in versions]
    if names and draw(st.booleans()):
        spec["live"] = draw(st.sampled_from(names))
        others = [n for n in names if n != spec["live"]]
        if others and draw(st.booleans()):
            spec["canary"] = {"version": draw(st.sampled_from(others)), "weight": draw(st.integers(1, 99))}
    if names and draw(st.booleans()):
        spec["history"] = draw(st.lists(st.sampled_from(names), max_size=3))
    if draw(st.booleans()):
        spec["latest"] = f"v{draw(st.integers(1, 9))}"
    if draw(st.booleans()):
        spec |= draw(
            st.sampled_from(
                [{"min_replicas": 2}, {"max_replicas": 3}, {"min_replicas": 1, "max_replicas": 1}]
            )
        )
    if draw(st.booleans()):
        spec["shared_with"] = draw(st.lists(st.sampled_from(TENANTS), unique=True))
    return spec


LABELS = st.dictionaries(st.sampled_from(["pool", "tier"]), st.sampled_from(["a", "b"]))
ENGINES = st.fixed_dictionaries(
    {
        "url": st.sampled_from([f"http://10.0.0.{n}:8000" for n in range(4)]),
        "base": st.sampled_from(BASES),
        "gpu_type": st.sampled_from(["H200", "L40S"]),
        "slots": st.integers(1, 3),
        "max_rank": st.sampled_from([8, 16]),
    },
    optional={
        "gpu_count": st.integers(1, 8),
        "cpu_slots": st.integers(3, 8),
        "state": st.sampled_from(["active", "cordoned", "draining"]),
        "region": st.sampled_from(["", "eu-1"]),
        "purchase": st.sampled_from(["on_demand", "spot"]),
        "tasks": st.sampled_from([["generate"], ["embed"], ["score", "generate"]]),
        "labels": LABELS,
        "host": st.sampled_from(["", "rack7"]),
    },
)
KEYS = st.fixed_dictionaries(
    {"secret": st.integers(1, 9).map(lambda n: digest(str(n))), "tenant": st.sampled_from(TENANTS)},
    optional={"role": st.sampled_from(["tenant", "operator"]), "revoked": st.just("2026-10-01T00:00:00Z")},
)
BASE_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "aliases": st.lists(st.sampled_from(["/models/a", "/models/b", "org/a"]), unique=True),
        "config": st.fixed_dictionaries(
            {"hidden_size": st.just(16)}, optional={"rope": st.floats(0.0, 1e9), "pad": st.none()}
        ),
        "chat_template": st.just("a" * 64) | st.just(""),
    },
)
PRICES = st.fixed_dictionaries(
    {
        "gpu_type": st.sampled_from(["H200", "L40S"]),
        "rate_per_gpu_hour": st.sampled_from(["2.50", "2.5", "1.234567"]),
    },
    optional={
        "valid_from": st.sampled_from(["2026-07-01", "2026-08-01T00:00:00Z"]),
        "valid_to": st.just("2026-09-01"),
        "region": st.just("eu-1"),
    },
)
NAMES = ["acme/support", "acme/code", "bolt/support"]


@st.composite
def documents(draw: st.DrawFn) -> Document:
    body = {
        "florin": 1,
        "tenants": draw(some(TENANTS, st.fixed_dictionaries({}, optional={"base_access": st.booleans()}))),
        "keys": draw(some(["k1", "k2", "k3"], KEYS)),
        "bases": draw(some(BASES, BASE_SPECS)),
        "engines": draw(some(["a1", "a2"], ENGINES)),
        "adapters": draw(some(NAMES, adapters())),
        "removed": draw(some(NAMES, st.fixed_dictionaries({"latest": st.sampled_from(["v2", "v7"])}))),
        "prices": draw(st.none() | st.lists(PRICES, max_size=3)),
    }
    try:
        return parse(body)
    except FlorinError:
        assume(False)  # two of one URL, one digest or one name in two places: refused as it should be
        raise


EMPTY_ADAPTERS = parse({"florin": 1, "tenants": {"acme": {}}, "adapters": {"acme/support": {"versions": []}}})
NO_ADAPTERS = parse({"florin": 1, "adapters": {}})


SAME_FILES = parse(
    {
        "florin": 1,
        "tenants": {"acme": {}},
        "adapters": {
            "acme/support": {
                "versions": [
                    {"version": "v3", "source": "/files/3", "base_model": "other"},
                    {"version": "v4", "source": "/files/3", "digest": digest("/files/3")},
                ]
            }
        },
    }
)
"""For two base models: the second one's is the one that its files name."""


def priced(**fields: Any) -> Document:
    return parse({"florin": 1, "prices": [{"gpu_type": "H200", "rate_per_gpu_hour": "2.50", **fields}]})


ENDED = priced(valid_to="2026-09-01")
"""Before NOW: as the second price of its series, it would end before it begins."""

STEPS = st.lists(st.tuples(documents(), st.booleans()), max_size=4)


def history(steps: list[tuple[Document, bool]]) -> Current:
    """A registry that has seen some applications."""
    current = EMPTY
    for wanted, prune in steps:
        current = applied(current, plan(current, wanted, prune=prune, clock=LATER))
    return current


# -- the properties


@examples(25)
@given(STEPS, documents(), st.booleans())
@example([(EMPTY_ADAPTERS, False)], NO_ADAPTERS, True)
@example([(priced(), False)], ENDED, False)
@example([], SAME_FILES, False)
def test_one_application_is_enough(steps, wanted, prune):
    current = history(steps)
    first = plan(current, wanted, prune=prune, clock=LATER)
    assert plan(current, wanted, prune=prune, clock=LATER).digest == first.digest
    second = plan(applied(current, first), wanted, prune=prune, clock=LATER)
    refused = {a.ref for a in first.actions if a.verb == "refuse"}
    assert {a.ref for a in second.actions} <= refused, [a.json() for a in second.actions]


@examples(25)
@given(STEPS, documents())
@example([(EMPTY_ADAPTERS, False)], NO_ADAPTERS)
def test_afterwards_it_is_as_the_file_says(steps, wanted):
    current = history(steps)
    made = plan(current, wanted, prune=True, clock=LATER)
    refused = {a.ref for a in made.actions if a.verb == "refuse"}
    after = applied(current, made).document
    for name, tenant in (wanted.tenants or {}).items():
        said = {field: value for field, value in tenant if value is not None}
        assert {field: getattr(after.tenants[name], field) for field in said} == said
    for name, adapter in (wanted.adapters or {}).items():
        if ("adapter", name) in refused:
            continue
        there = after.adapters[name]
        assert {v.version for v in adapter.versions} <= {v.version for v in there.versions}
        if adapter.live is not None:
            assert (there.live, there.canary) == (adapter.live, adapter.canary)
            assert {v.version for v in adapter.versions} == {v.version for v in there.versions}
        assert (there.pinned, set(there.shared_with)) == (adapter.pinned, set(adapter.shared_with))
    if wanted.adapters is not None:
        assert (
            after.adapters.keys() - {i for kind, i in refused if kind == "adapter"} <= wanted.adapters.keys()
        )
    for kind, section in SECTIONS.items():
        if getattr(wanted, section) is None:  # not this file's business
            before, now = getattr(current.document, section), getattr(after, section)
            learnt = {e.base for e in after.engines.values()} if kind == "base" else set()
            orphans = (
                {i for i, k in before.items() if k.tenant not in after.tenants} if kind == "key" else set()
            )
            assert {i: s for i, s in now.items() if i not in learnt} == {
                i: s for i, s in before.items() if i not in learnt | orphans
            }


@examples(25)
@given(STEPS)
@example([(EMPTY_ADAPTERS, False), (NO_ADAPTERS, True)])
@example([(priced(), False), (ENDED, False)])
def test_an_export_is_the_whole_truth(steps):
    current = history(steps)
    text = fleet_file.write(export(current))
    wanted = parse(fleet_file.load(text))
    assert plan(current, wanted, prune=True, clock=LATER).actions == ()
    made = plan(EMPTY, wanted, clock=LATER)
    assert {a.verb for a in made.actions} <= {"create"}
    assert fleet_file.write(export(applied(EMPTY, made))) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@examples(30)
@given(
    st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), st.fixed_dictionaries({"region": st.text()}))
)
def test_what_is_written_is_what_is_read(config, engines):
    document: dict[str, Any] = {name: {} for name in fleet_file.SECTIONS}
    document |= {"florin": 1, "bases": {"base": {"config": config}}, "engines": engines}
    assert fleet_file.load(fleet_file.write(document)) == json.loads(json.dumps(document))
