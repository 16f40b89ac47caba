"""Which engine a host's own token enrols, and what it is pinned to. The signature is people's: see test_tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.config import Settings, SettingsError
from gateway.errors import FlorinError
from gateway.tenants.directory import Pins, Role
from gateway.tenants.host_tokens import HostTokens, pins_by_subject
from tests.support.oidc_issuer import OidcIssuer, answering

SUBJECT = "system:serviceaccount:serving:florin-h100"
POD = {"kubernetes.io": {"namespace": "serving", "pod": {"name": "florin-h100-0", "uid": "7"}}}
PINNED = {"gpu_type": "H100", "labels": {"pool": "chat"}, "address": "{engine}.florin-h100.serving.svc"}


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    cluster = OidcIssuer(person={"sub": SUBJECT, "aud": ["florin", "other"], **POD})
    with answering(cluster):
        yield cluster


async def identified(issuer: OidcIssuer, **claims: Any):
    settings = Settings(host_issuer=issuer.url, host_subjects=json.dumps({SUBJECT: PINNED}))
    tokens = HostTokens(settings, lambda: time.time_ns() // 1000)
    try:
        return await tokens.identify(issuer.token(**claims).encode())
    finally:
        await tokens.issuer.close()


async def test_a_pod_enrols_the_engine_of_its_name_pinned_to_what_its_service_account_is(issuer):
    token = await identified(issuer)
    assert (token.role, token.engine, token.label) == (Role.ENROLMENT, "florin-h100-0", SUBJECT)
    assert token.pins == Pins(
        gpu_type="H100", labels={"pool": "chat"}, address="florin-h100-0.florin-h100.serving.svc"
    )
    assert not token.is_stored


@pytest.mark.parametrize(
    ("claims", "code", "words"),
    [
        ({"sub": "system:serviceaccount:serving:default"}, "no_role", "may not enrol"),
        ({"aud": "https://kubernetes.default.svc"}, "invalid_token", "another audience"),
        ({"kubernetes.io": {"namespace": "serving"}}, "invalid_token", "names no engine"),
        ({"exp": 1_700_000_000}, "expired_token", "platform renews it"),
    ],
)
async def test_other_tokens_enrol_nothing(issuer, claims, code, words):
    with pytest.raises(FlorinError, match=words) as raised:
        await identified(issuer, **claims)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("pins", "words"), [({"gpu": "H100"}, "gpu is none of"), ({"gpu_count": "two"}, "gpu_count")]
)
def test_a_wrong_pin_is_named(pins, words):
    with pytest.raises(SettingsError, match=words):
        pins_by_subject(json.dumps({SUBJECT: pins}))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"sub": 1}'])
def test_subjects_are_an_object_of_objects(text):
    with pytest.raises(ValueError, match="host_subjects"):
        Settings(host_issuer="https://cluster.example", host_subjects=text)


async def test_only_the_subject_s_own_token_is_the_controller_s(issuer):
    """People may have the same issuer, and call the same routes."""
    settings = Settings(host_issuer=issuer.url, controller_subject="controller")
    tokens = HostTokens(settings, lambda: time.time_ns() // 1000)
    try:
        for claims, is_it in (({"sub": "controller"}, True), ({"sub": "jane"}, False), ({"iss": "x"}, False)):
            token = issuer.token(**{"sub": "controller"} | claims).encode()
            assert tokens.may_be_controller(token) is is_it
        assert not tokens.may_be_controller(b"no.to.ken")
    finally:
        await tokens.issuer.close()
