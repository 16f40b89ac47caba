"""Keys as they are stored."""

from __future__ import annotations

from gateway.tenants.directory import Directory, Key, Pins, Role, Tenant, dump, load, mint

OLD = '{"id":"k1","tenant":"acme","role":"tenant","digest":"d","created":1,"revoked":null}'


def test_a_key_of_an_older_florin_is_read_as_before():
    assert load(Key, OLD) == Key("k1", "acme", Role.TENANT, "d", 1, None, "", Pins(), None)


def test_a_key_is_read_as_it_was_written():
    pins = Pins(base="llama", gpu_count=2, region="")
    key, text = mint("", Role.ENGINE, 5, engine="gpu1", pins=pins, expires=9)
    assert load(Key, dump(key)) == key
    directory = Directory("bootstrap")
    directory.load({"key": {key.id: dump(key)}})
    assert directory.find(text.encode()) == key
    assert directory.knows(key.digest)
    assert not directory.knows("0" * 64)


def test_a_token_does_not_look_like_a_key():
    assert mint("", Role.ENROLMENT, 1)[1].startswith("flt_")
    assert mint("", Role.ENGINE, 1)[1].startswith("fl_")


def test_requirements_of_caller_and_owner_both_hold():
    directory = Directory()
    tenants = [
        Tenant("acme", False, 1, {"region": "eu"}),
        Tenant("bolt", False, 1, {"pool": "b"}),
        Tenant("c", False, 1),
    ]
    directory.load({"tenant": {t.name: dump(t) for t in tenants}})
    assert directory.tenants == {t.name: t for t in tenants}
    assert "requires" not in dump(tenants[2])
    assert directory.requires("acme") == directory.requires("acme", "acme") == {"region": "eu"}
    assert directory.requires("bolt", "acme") == {"region": "eu", "pool": "b"}
    assert directory.requires("c", "acme") == {"region": "eu"}
    assert directory.requires("c") == directory.requires("gone", "c") == {}
