"""Which pages may call the data plane from a browser."""

from __future__ import annotations

import pytest

from gateway.api.cors import Cors, preflight
from gateway.config import SettingsError, load_settings

DEFAULT = b"authorization, content-type, x-api-key, anthropic-version"
APP = b"https://app.example.com"
VARY = (b"vary", b"origin")


def shown(cors: Cors, origin: bytes) -> dict[bytes, bytes]:
    return dict(cors.headers([(b"origin", origin)]))


def test_only_listed_origins_are_allowed():
    cors = Cors((APP.decode(), "https://b.example.com:8443"))
    assert shown(cors, APP)[b"access-control-allow-origin"] == APP
    assert shown(cors, APP)[b"vary"] == b"origin"
    for other in (b"https://evil.example.com", APP + b".evil.com", b"http://app.example.com", b"null", b""):
        assert shown(cors, other) == {b"vary": b"origin"}
    assert cors.headers([]) == [VARY]


def test_a_star_allows_all_and_never_credentials():
    found = shown(Cors(("*",)), b"https://anyone.example.com")
    assert found[b"access-control-allow-origin"] == b"*"
    for cors in (Cors(("*",)), Cors((APP.decode(),))):
        assert b"access-control-allow-credentials" not in shown(cors, APP)


def test_a_preflight_is_told_from_other_requests():
    asked = [(b"origin", APP), (b"access-control-request-method", b"POST")]
    assert preflight("GET", asked) is None
    assert preflight("OPTIONS", asked[:1]) is None
    found = dict(preflight("OPTIONS", asked) or [])
    assert found[b"access-control-allow-methods"] == b"GET, POST, DELETE"
    assert found[b"access-control-allow-headers"] == DEFAULT


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (b"authorization,x-stainless-os", b"authorization,x-stainless-os"),
        (b"a\r\nset-cookie: x", DEFAULT),
        (b"a" * 1001, DEFAULT),
    ],
)
def test_asked_headers_are_allowed_if_they_are_names(wanted: bytes, allowed: bytes):
    asked = [
        (b"origin", APP),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", wanted),
    ]
    assert dict(preflight("OPTIONS", asked) or [])[b"access-control-allow-headers"] == allowed


@pytest.mark.parametrize(
    "entry", ["app.example.com", "https://app.example.com/", "https://*.example.com", "HTTPS://a.com", "null"]
)
def test_a_wrong_origin_is_named(entry: str):
    with pytest.raises(SettingsError, match="FLORIN_CORS_ORIGINS"):
        load_settings(cors_origins=f"https://a.example.com, {entry}")
