"""Keys as they are stored."""

from __future__ import annotations

from gateway.tenants.directory import Directory, Key, Pins, Role, dump, load, mint

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
