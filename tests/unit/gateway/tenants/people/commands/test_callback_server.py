"""Who may come back with a code: the browser that was sent, once."""

from __future__ import annotations

import threading

import httpx2
import pytest

from gateway.commands.client import UsageError
from gateway.tenants.people.commands.callback_server import listening
from gateway.tenants.people.commands.issuer_client import IssuerRefusalError

ISSUER = "https://id.example.com"


def visit(url: str, *queries: str) -> list[int]:
    with httpx2.Client(trust_env=False) as http:
        return [http.get(f"{url}{query}").status_code for query in queries]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?state=s&error=access_denied", "access_denied"),
        ("?state=s&code=c&iss=https://evil.example.com", "another issuer"),
        ("?state=s", "no code"),
    ],
)
def test_a_refusal_is_told(query, words):
    with listening(0) as callback:
        callback.state = "s"
        browser = threading.Thread(target=visit, args=(callback.url, query))
        browser.start()
        with pytest.raises(IssuerRefusalError, match=words):
            callback.wait(ISSUER, 20)
        browser.join()


def test_strangers_are_not_listened_to():
    statuses: list[int] = []
    with listening(0) as callback:
        callback.state = "right"
        ways = (
            "?code=theirs",
            "?code=theirs&state=wrong",
            "/x?code=theirs&state=right",
            "?code=c&state=right",
        )
        browser = threading.Thread(target=lambda: statuses.extend(visit(callback.url, *ways)))
        browser.start()
        assert callback.wait(ISSUER, 20) == "c"
        browser.join()
        with (
            pytest.raises(UsageError, match="cannot be used"),
            listening(int(callback.url.split(":")[2].split("/")[0])),
        ):
            pass
    assert statuses == [404, 404, 404, 200]


def test_nobody_comes():
    with listening(0) as callback, pytest.raises(UsageError, match="No one signed in"):
        callback.wait(ISSUER, 0.01)
