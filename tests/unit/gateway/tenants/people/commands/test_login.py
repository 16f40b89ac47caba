"""florin login: what it asks of the issuer, and what it does not take from it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gateway.commands.client import UsageError
from gateway.tenants.people.commands import login, sign_ins
from gateway.tenants.people.commands.issuer_client import IssuerRefusalError, discover, payload
from gateway.tenants.people.commands.sign_ins import SignIn
from gateway.tenants.people.schemas import Issuer
from tests.support.oidc_issuer import CLIENT, OidcIssuer, answering

GATEWAY = "https://florin.example.com"


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    found = OidcIssuer()
    with answering(found):
        yield found


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def offer(issuer: OidcIssuer, audience: str = "") -> Issuer:
    return Issuer(
        issuer=issuer.url, client_id=CLIENT, scopes=("openid",), audience=audience, token="id_token"
    )


def test_the_device_flow_waits_as_long_as_the_issuer_says(issuer, monkeypatch):
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        issuer.device_entered = len(slept) == 3

    answer = login._with_device(offer(issuer, "api"), discover(issuer.url), sleep)
    assert slept == [1.0] * 3
    assert payload(answer["access_token"])["aud"] == "api"
    monkeypatch.setattr(
        OidcIssuer,
        "_token",
        lambda self, *_: (400, {"error": "slow_down" if len(slept) < 5 else "access_denied"}),
    )
    with pytest.raises(IssuerRefusalError, match="access_denied"):
        login._with_device(offer(issuer), discover(issuer.url), sleep)
    assert slept[3:] == [6.0, 11.0]


@pytest.mark.parametrize("where", ["http://id.example.com", "file:///etc", "https://u:p@id.example.com", "x"])
def test_nothing_is_sent_to_what_is_no_issuer(where):
    with pytest.raises(IssuerRefusalError, match="must begin with https"):
        discover(where)


def test_another_issuers_document_is_refused(issuer):
    with pytest.raises(IssuerRefusalError, match="names itself"):
        discover(issuer.url.replace("127.0.0.1", "localhost"))


@pytest.mark.parametrize(
    "answer", [{}, {"id_token": 5}, {"id_token": "a\nb"}, {"id_token": "é"}, {"access_token": "good"}]
)
def test_an_answer_without_the_token_is_refused(answer):
    with pytest.raises(IssuerRefusalError, match="sent no id token"):
        sign_ins.of_answer(answer, gateway=GATEWAY, issuer="i", client_id="c", kind="id_token", now=0)


def test_opaque_tokens_last_as_long_as_the_issuer_says():
    made = sign_ins.of_answer(
        {"access_token": "opaque", "expires_in": 60, "refresh_token": "r"},
        gateway=GATEWAY, issuer="i", client_id="c", kind="access_token", now=1000,
    )  # fmt: skip
    assert (made.expires, made.refresh_token) == (1060, "r")
    assert [payload(text) for text in ("opaque", "a.b.c", "a.W10.c", "")] == [{}] * 4


def test_each_gateway_has_its_own_and_a_refresh_is_made_once(home, issuer):
    code = issuer._grant({"client_id": CLIENT}, "refresh")
    sign_ins.write(SignIn(GATEWAY, issuer.url, CLIENT, "id_token", "old", time.time() - 1, code))
    assert sign_ins.token("https://other.example.com") == ""
    first = sign_ins.token(f"{GATEWAY}/")
    assert payload(first)["sub"] == "u-1"
    assert sign_ins.token(GATEWAY) == first
    assert issuer.asked.count("/token") == 1


def test_while_the_issuer_is_away_a_token_is_used_to_its_end(home, issuer):
    gone = OidcIssuer()
    with answering(gone):
        pass
    soon = SignIn(GATEWAY, gone.url, CLIENT, "id_token", "still-good", time.time() + 30, "r")
    sign_ins.write(soon)
    assert sign_ins.token(GATEWAY) == "still-good"
    sign_ins.write(SignIn(GATEWAY, gone.url, CLIENT, "id_token", "over", time.time() - 1))
    with pytest.raises(UsageError, match="has expired"):
        sign_ins.token(GATEWAY)


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"gateway": 1}', '{"gateway":"g","issuer":"i","client_id":"c","kind":"k","token":"t","expires":"x"}'])  # fmt: skip
def test_a_damaged_file_is_told_in_words(home, content):
    path = sign_ins.path_of(GATEWAY)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="sign in again"):
        sign_ins.token(GATEWAY)
