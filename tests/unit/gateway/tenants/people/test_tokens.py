"""Which of an issuer's keys verify tokens."""

from __future__ import annotations

import json

import pytest

from gateway.errors import FlorinError
from gateway.tenants.people.issuer import IssuerError, endpoints_of
from gateway.tenants.people.tokens import Header, header_of, key_for, keys_of, usable, verified
from tests.support.oidc_issuer import OidcIssuer, SigningKey, ec_key, rsa_key

ISSUER = "https://id.example.com"


@pytest.mark.parametrize(
    "change",
    [
        {"use": "enc"}, {"kty": "oct", "k": "AAAA"}, {"kty": None}, {"kty": []}, {"alg": "HS256"}, {"alg": []}, {"alg": "none"},
        {"key_ops": ["encrypt"]}, {"d": "private"},
    ],
)  # fmt: skip
def test_keys_for_something_else_are_left_out(change):
    good = rsa_key().jwk
    assert usable(good)
    assert not usable(good | change)
    assert keys_of(json.dumps({"keys": [good | change, 5, None, good]}).encode()) == (good,)


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [{}]}', b"\xff"]
)
def test_a_set_without_a_key_is_none(document):
    with pytest.raises(ValueError, match=r"."):
        keys_of(document)


def test_a_token_names_its_key_unless_there_is_only_one():
    one, two = rsa_key().jwk, ec_key("two").jwk
    assert key_for(Header("ES256", "two"), [one, two]) == two
    assert key_for(Header("RS256", "rsa"), [one, two]) == one
    assert key_for(Header("RS256", ""), [one]) == one
    assert key_for(Header("RS256", ""), [one, two]) is None
    assert key_for(Header("RS256", "other"), [one]) is None
    assert key_for(Header("RS256", "rsa"), [one, {**two, "kid": "rsa"}]) is None


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_a_set_that_names_no_algorithm_leaves_it_to_the_token(algorithm):
    issuer = OidcIssuer(url=ISSUER, keys=[SigningKey("k", rsa_key().private, algorithm)])
    key = {name: value for name, value in issuer.keys[0].jwk.items() if name != "alg"}
    token = issuer.token()
    assert verified(token, header_of(token), key, issuer=ISSUER, audience=["florin"])["sub"] == "u-1"
    with pytest.raises(FlorinError, match="its key is not one for"):
        verified(token, Header("ES256", "k"), key, issuer=ISSUER, audience=["florin"])


def test_short_keys_are_refused():
    issuer = OidcIssuer(url=ISSUER, keys=[rsa_key("short", 1024)])
    with pytest.warns(match="1024"):
        token = issuer.token()
    with pytest.raises(FlorinError, match="malformed"):
        verified(token, header_of(token), issuer.keys[0].jwk, issuer=ISSUER, audience=["florin"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"issuer": "https://id.example.com/"}, "they must be equal"),
        ({"issuer": None}, "they must be equal"),
        ({"jwks_uri": "http://id.example.com/keys"}, "jwks_uri is not an https"),
        ({"jwks_uri": None}, "jwks_uri is not an https"),
        ({"token_endpoint": "file:///etc/passwd"}, "token_endpoint is not an https"),
        ({"authorization_endpoint": ["x"]}, "authorization_endpoint is not an https"),
    ],
)
def test_a_document_that_leads_elsewhere_is_refused(change, words):
    whole = OidcIssuer(url=ISSUER).document()
    assert endpoints_of(json.dumps(whole).encode(), ISSUER).keys == f"{ISSUER}/keys"
    with pytest.raises(IssuerError, match=words):
        endpoints_of(json.dumps(whole | change).encode(), ISSUER)
    with pytest.raises(IssuerError):
        endpoints_of(b"[1]", ISSUER)
