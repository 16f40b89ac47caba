"""What a URL with several servers says, and which primary their answers name."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import SSLConnection

from adapters.store.redis import RedisStore
from adapters.store.redis.discovery import Seeds, primary_of


def seeds(url: str) -> Seeds:
    found = Seeds.of(url)
    assert found is not None
    return found


@pytest.mark.parametrize("url", ["redis://h:1/2", "rediss://h", "unix:///run/x.sock", "http+sentinel://h/s"])
def test_a_single_server(url: str):
    assert Seeds.of(url) is None


def test_sentinels():
    found = seeds("redis+sentinel://u:p%40@a,b:1,[::1]:2/main/3?sentinel_username=s&sentinel_password=q")
    assert (found.kind, found.service) == ("sentinel", "main")
    assert found.servers == (("a", 26379), ("b", 1), ("::1", 2))
    assert (found.options["username"], found.options["password"], found.options["db"]) == ("u", "p@", 3)
    assert found.own == {"username": "s", "password": "q"}


def test_the_primarys_password_is_not_told_to_sentinels():
    assert seeds("redis+sentinel://u:p@a/main").own == {"username": None, "password": None}


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_cluster_by_tls(slash: str):
    found = seeds(f"rediss+cluster://u:p@a,b:1{slash}?ssl_ca_certs=/ca.pem")
    assert found.servers == (("a", 6379), ("b", 1))
    assert issubclass(found.options["connection_class"], SSLConnection)
    assert found.options["ssl_ca_certs"] == "/ca.pem"
    assert found.own == {"username": "u", "password": "p", "ssl_ca_certs": "/ca.pem"}
    assert found.tls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://a", "service's name"),
        ("redis+cluster://a/1", "database 0"),
        ("redis+cluster://a,,b", "no HOST"),
        ("redis+cluster://", "no HOST"),
        ("redis+cluster://a:x", "Port"),
    ],
)
def test_urls_that_name_nothing(url: str, why: str):
    with pytest.raises(ValueError, match=why):
        Seeds.of(url)


def test_the_primary_of_a_slot():
    slots = [
        [0, 99, ["a", 1, "id"], ["b", 2, "id"]],
        [100, 16383, ["?", 3, "id"]],
    ]
    assert primary_of(slots, 99) == ("a", 1)
    assert primary_of(slots, 100) == ("", 3)
    assert primary_of(slots[:1], 100) is None


def test_no_password_is_shown():
    shown = repr(RedisStore("redis+sentinel://u:secret@a,b/main?sentinel_password=secret"))
    assert "secret" not in shown
    assert "a,b/main" in shown
