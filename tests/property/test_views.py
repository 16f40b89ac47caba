"""Whatever happened before, the views that follow the feed equal those that are made from the documents anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.model import Adapter, BaseModel, Fingerprint, ServingStatus, Version, dump
from adapters.registry.catalog import Catalog
from adapters.store.protocol.registry import Event
from gateway.tenants import directory
from gateway.tenants.directory import Directory, Key, Role, Tenant
from tests.support.search import examples

TENANTS = ("acme", "bolt")
BASES = ("base", "acme/a")  # the second one looks like an adapter's name
NAMES = [f"{tenant}/{bare}" for tenant in TENANTS for bare in ("a", "b")]
NUMBERS = (1, 2, 12)
IDS = [f"{name}@v{number}" for name in NAMES for number in NUMBERS]
CALLED = [
    *BASES, *NAMES, *IDS, *(f"{bare}{at}" for bare in ("a", "b", "nothing") for at in ("", "@v1", "@v12", "@v01")),
]  # fmt: skip

numbers = st.none() | st.sampled_from(NUMBERS)
weights = st.sampled_from((1, 99))
sharing = st.lists(st.sampled_from(TENANTS), max_size=2, unique=True).map(tuple)


def engine_name(id_: str, generation: int = 0) -> str:
    return f"fl-{IDS.index(id_)}-{generation}"


def version(id_: str, generation: int, retired: int | None) -> str:
    name, _, number = id_.partition("@v")
    engine = engine_name(id_, generation)
    return dump(
        Version(name, int(number), "sha256:0", engine, "/files", "base", 8, 1, "/source", 0, retired=retired)
    )


def adapter(name: str, live: int | None, canary: int | None, weight: int, shared: tuple[str, ...]) -> str:
    return dump(Adapter(name, live, canary, weight if canary else 0, shared_with=shared))


BEGINNING = {
    "adapter": {name: adapter(name, 1, None, 0, ("bolt",) if name == "acme/a" else ()) for name in NAMES},
    "version": {id_: version(id_, 0, None) for id_ in IDS},
    "base": {"base": dump(BaseModel("base"))},
}


def event(kind: str, id_: st.SearchStrategy[str], document) -> st.SearchStrategy[tuple[str, str, str | None]]:
    """A document of a kind comes, changes or goes."""
    return id_.flatmap(lambda id_: st.tuples(st.just(kind), st.just(id_), st.none() | document(id_)))


engine_names = st.builds(engine_name, st.sampled_from(IDS), st.integers(0, 1))
events = st.one_of(
    event(
        "adapter",
        st.sampled_from(NAMES),
        lambda name: st.builds(adapter, st.just(name), numbers, numbers, weights, sharing),
    ),
    event(
        "version",
        st.sampled_from(IDS),
        lambda id_: st.builds(version, st.just(id_), st.integers(0, 1), st.sampled_from((None, None, 7))),
    ),
    event("base", st.sampled_from(BASES), lambda name: st.just(dump(BaseModel(name)))),
    event("pin", engine_names, lambda _: st.just("{}")),
    event(
        "serving_status",
        st.just("e1") | engine_names,
        lambda _: st.just(dump(ServingStatus("failed", "", "load_failed", "It failed.", "e1", 1))),
    ),
    event("fingerprint", engine_names, lambda _: st.just(dump(Fingerprint("p", "t", (-1.0,), "e1", "h100", 1)))),
    event(
        "tenant", st.sampled_from(TENANTS), lambda name: st.builds(Tenant, st.just(name), st.booleans(), st.just(1)).map(directory.dump)
    ),
    event(
        "key",
        st.sampled_from(("k1", "k2")),
        lambda id_: st.builds(
            Key, st.just(id_), st.sampled_from(TENANTS), st.just(Role.TENANT),
            st.sampled_from(("d1", "d2")).map(lambda text: directory.digest(f"{id_} {text}")), st.just(1),
            revoked=st.none() | st.just(2),
        ).map(directory.dump),
    ),
)  # fmt: skip


def resolutions(catalog: Catalog) -> dict:
    return {
        (tenant, name, base): catalog.resolve(tenant, name, base_access=base)
        for tenant in TENANTS for name in CALLED for base in (False, True)
    }  # fmt: skip


def shown(catalog: Catalog) -> dict:
    return {
        "tables": (catalog.adapters, dict(catalog.versions), catalog.bases, catalog.pins),
        "by engine name": dict(catalog.by_engine_name),
        "judged": (catalog.serving_statuses, dict(catalog.fingerprints)),
        "versions": {name: catalog.versions_of(name) for name in NAMES},
        "visible": {tenant: catalog.visible(tenant) for tenant in TENANTS},
        "resolutions": resolutions(catalog),
    }


def found(view: Directory) -> dict:
    texts = [f"{id_} {text}".encode() for id_ in ("k1", "k2") for text in ("d1", "d2")]
    return {"tenants": view.tenants, "keys": view.keys, "found": [view.find(text) for text in texts]}


@examples(60)
@given(st.lists(events, max_size=25))
def test_views_that_follow_equal_views_made_anew(history):
    catalog, known = Catalog(), Directory()
    documents = {kind: dict(texts) for kind, texts in BEGINNING.items()}
    for view in (catalog, known):
        view.load(documents)
    for seq, (kind, id_, data) in enumerate(history, 1):
        resolutions(catalog)  # so that stale resolutions would be remembered
        before = catalog.generation, resolutions(catalog)
        for view in (catalog, known):
            view.apply(Event(seq, kind, id_, data))
        texts = documents.setdefault(kind, {})
        texts.pop(id_, None)
        if data is not None:
            texts[id_] = data
        assert catalog.generation != before[0] or resolutions(catalog) == before[1]
    whole, anew = Catalog(), Directory()
    whole.load(documents)
    anew.load(documents)
    assert shown(catalog) == shown(whole)
    assert found(known) == found(anew)
