from __future__ import annotations

from gateway.routing.request_identity import RequestIdentity


def test_requests_are_told_apart_by_every_byte_and_by_whose_they_are():
    payload = bytes(range(256)) * 2_000
    changed = payload[:250_000] + b"?" + payload[250_001:]

    def fingerprint(group=("acme", "acme/a"), what="chat", payload=payload, key=b"k") -> str:
        identity = RequestIdentity(group, what=what, payload=payload, key=key)
        identity.begin()
        return identity.fingerprint

    others = (
        fingerprint(payload=changed),
        fingerprint(group=("bolt", "acme/a")),
        fingerprint(what="completions"),
        fingerprint(key=b"l"),
        fingerprint(payload=payload[:-1]),
    )
    assert fingerprint() == fingerprint()
    assert len({fingerprint(), *others}) == 1 + len(others)
