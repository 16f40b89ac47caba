import pytest
from sqlalchemy import make_url

from gateway.config import Settings
from gateway.config.storage import sqlalchemy_url


def connected(url):
    """What the driver is told."""
    parsed = make_url(sqlalchemy_url(url))
    return parsed.get_dialect()().create_connect_args(parsed)[1]


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("postgresql+psycopg://florin:a%2Cb@one:5433,two:5434/ledger", "one,two", "5433,5434"),
        ("postgresql+psycopg://florin:a%2Cb@one,[::1]:5/ledger", "one,::1", ",5"),
        ("postgresql+psycopg://florin:a%2Cb@/ledger?host=one:1&host=two:2", "one,two", "1,2"),
        ("postgresql+psycopg://florin:a%2Cb@/ledger?host=one,two&port=1,2", "one,two", "1,2"),
    ],
)
def test_several_servers(url, host, port):
    told = {"host": host, "port": port, "target_session_attrs": "read-write"}
    assert connected(url) == told | {"user": "florin", "password": "a,b", "dbname": "ledger"}


def test_options_are_kept():
    url = "postgresql+psycopg://u@a,b/db?sslmode=verify-full&target_session_attrs=primary"
    told = connected(url)
    assert (told["sslmode"], told["target_session_attrs"]) == ("verify-full", "primary")


@pytest.mark.parametrize("url", ["postgresql+psycopg://u@a:1/db?sslmode=require", "sqlite:////var/a,b.db"])
def test_one_server_is_left_as_it_is(url):
    assert sqlalchemy_url(url) == url


@pytest.mark.parametrize(
    "hosts", ["a:1,:2", "a:x,b", "a:123456,b", "a,,b", "a,b/db?host=c", "[::1,b", "a b,c"]
)
def test_wrong_servers_are_told_by_the_settings_name(hosts, tmp_path):
    with pytest.raises(ValueError, match=r"(?s)ledger_url.*HOST:PORT,HOST:PORT"):
        Settings(state_dir=tmp_path, ledger_url=f"postgresql+psycopg://u@{hosts}/db")
