"""Who the client is behind proxies: what they append counts, what clients write does not."""

from __future__ import annotations

import pytest

from gateway.config import Settings
from gateway.config.trusted_proxies import ForwardedClient, TrustedProxies
from gateway.transport.connection_limits import Connections, connection_limits

PEER = "10.0.0.1"
NETWORKS = ("10.0.0.0/8", "fd00::/8", "192.0.2.7")


def client(*lines: str, header="x-forwarded-for", peer: str = PEER, proto: str = "") -> tuple[str, str]:
    headers = [(header.encode(), line.encode("latin-1")) for line in lines]
    headers += [(b"x-forwarded-proto", proto.encode())] if proto else []
    found = TrustedProxies.parse((*NETWORKS, "unix"), header).client(peer, headers)
    return found.address, found.scheme


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ((), PEER),
        (("",), PEER),
        (("203.0.113.9",), "203.0.113.9"),
        (("6.6.6.6, 203.0.113.9",), "203.0.113.9"),  # the client wrote the first
        (("6.6.6.6", "203.0.113.9"), "203.0.113.9"),  # in a line of its own
        (("203.0.113.9, 10.1.1.1, 192.0.2.7",), "203.0.113.9"),
        (("6.6.6.6, 203.0.113.9, 10.1.1.1",), "203.0.113.9"),
        (("10.2.2.2, 10.1.1.1",), "10.2.2.2"),  # a client inside
        (("203.0.113.9:4711",), "203.0.113.9"),
        (("2001:db8::9",), "2001:db8::9"),
        (("[2001:db8::9]:4711",), "2001:db8::9"),
        (("fe80::1%eth0",), "fe80::1"),
        (("::ffff:203.0.113.9",), "203.0.113.9"),
        (("6.6.6.6, ::ffff:10.1.1.1",), "6.6.6.6"),
        (("6.6.6.6, unknown, 10.1.1.1",), "10.1.1.1"),
        (("6.6.6.6, ' OR 1=1, 10.1.1.1",), "10.1.1.1"),
        (("6.6.6.6,,10.1.1.1",), "10.1.1.1"),
        (("6.6.6.6, rubbish",), PEER),
        (("\xff\x00",), PEER),
        (("999.1.1.1",), PEER),
        (("1.2.3.4.5",), PEER),
        (("0x7f000001",), PEER),
        (("2130706433",), PEER),
    ],
)
def test_x_forwarded_for(lines, found):
    assert client(*lines)[0] == found


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (("for=203.0.113.9;proto=https;by=10.0.0.1",), ("203.0.113.9", "https")),
        (('For="[2001:db8::9]:4711"; Proto=HTTP',), ("2001:db8::9", "http")),
        (("for=6.6.6.6;proto=https, for=203.0.113.9",), ("203.0.113.9", "")),
        (("for=203.0.113.9;proto=https, for=10.1.1.1;proto=http",), ("203.0.113.9", "http")),
        (("for=6.6.6.6, for=unknown",), (PEER, "")),
        (("for=_hidden",), (PEER, "")),
        (("proto=https",), (PEER, "https")),
        (("for=203.0.113.9;proto=javascript",), ("203.0.113.9", "")),
        # A quotation mark that the client leaves open does not swallow what the proxy appends.
        (('for="6.6.6.6, for=203.0.113.9',), ("203.0.113.9", "")),
        (('for="6.6.6.6, for="203.0.113.9"',), ("203.0.113.9", "")),
        (
            (r'for=6.6.6.6;host="a\", for=7.7.7.7", for="203.0.113.9";host="b\", for=8.8.8.8"',),
            ("203.0.113.9", ""),
        ),
        ((r'for="\\", for=203.0.113.9;host="\\\\"',), ("203.0.113.9", "")),
        (('for="x, for=6.6.6.6;a=", for="203.0.113.9"',), ("203.0.113.9", "")),
        (('for="6.6.6.6', 'for="203.0.113.9"'), ("203.0.113.9", "")),
        (("for",), (PEER, "")),
        (("=;=,;;,",), (PEER, "")),
    ],
)
def test_forwarded(lines, found):
    assert client(*lines, header="forwarded") == found


def test_only_the_header_that_the_proxies_set_is_read():
    proxies = TrustedProxies.parse(NETWORKS)
    spoofed = [(b"forwarded", b"for=6.6.6.6;proto=http"), (b"x-forwarded-for", b"203.0.113.9")]
    assert proxies.client(PEER, spoofed) == ForwardedClient("203.0.113.9", "")
    proxies = TrustedProxies.parse(NETWORKS, "forwarded")
    spoofed = [(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-proto", b"http")]
    assert proxies.client(PEER, spoofed) == ForwardedClient(PEER, "")


def test_the_nearest_proxy_says_how_it_was_called():
    assert client("203.0.113.9", proto="https") == ("203.0.113.9", "https")
    assert client("203.0.113.9", proto="https, http") == ("203.0.113.9", "http")
    assert client("203.0.113.9", proto="ftp") == ("203.0.113.9", "")
    assert client(proto="https") == (PEER, "https")


def test_who_is_trusted():
    proxies = TrustedProxies.parse((*NETWORKS, "unix"))
    assert all(map(proxies.trusts, ("10.9.9.9", "::ffff:10.9.9.9", "fd00::1", "192.0.2.7", "")))
    assert not any(map(proxies.trusts, ("192.0.2.8", "2001:db8::1", "rubbish")))
    assert not TrustedProxies.parse(NETWORKS).trusts("")
    assert client("203.0.113.9", peer="") == ("203.0.113.9", "")


@pytest.mark.parametrize("entries", ["0.0.0.0/0", "::/0", "10.0.0.1/8", "proxy.internal", "10.0.0.0/33", "*"])
def test_a_setting_that_trusts_everybody_or_nobody_is_refused(entries):
    with pytest.raises(ValueError, match="trusted_proxies"):
        Settings(trusted_proxies=entries)


def test_of_a_long_header_only_the_last_hops_are_read():
    for hops, found in ((31, "203.0.113.9"), (32, "10.1.1.1"), (7000, "10.1.1.1")):
        assert client("203.0.113.9," + "10.1.1.1," * (hops - 1) + "10.1.1.1")[0] == found


def test_a_proxys_connections_are_those_of_many_clients():
    class Connection:
        mark = None

        def __init__(self, address: str) -> None:
            self.address = address

    settings = Settings(max_connections=50, max_connections_per_address=2, trusted_proxies="10.0.0.0/8")
    closed: list[str] = []
    connections = Connections(connection_limits(settings), on_close=closed.append)
    connections._timer = object()  # no sweep in this test
    assert all(connections.admit(Connection("10.0.0.1")) for _ in range(9))
    assert [connections.admit(Connection("203.0.113.9")) for _ in range(3)] == [True, True, False]
    assert [connections.set_up("10.0.0.1", capped=True), connections.set_up("203.0.113.9", capped=True)] == [
        True,
        False,
    ]
    assert closed == ["too_many_from_address"] * 2
    assert not [connections.admit(Connection("10.0.0.1")) for _ in range(60)][-1]
    assert closed[-1] == "too_many"
