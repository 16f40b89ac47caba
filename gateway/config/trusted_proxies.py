"""Finds the client behind trusted proxies. Pure.

Only what a trusted proxy says counts. Each proxy appends the address that it was called from, so the entries
are read from the right: the first address that is no trusted proxy's is the client's. What stands further
left came from the client, who may write anything.

One header is read, the one that the proxies set: they pass on the other one as the client wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final, Literal, Self

from adapters.security.ip_addresses import Address, Network, parse_address

UNIX: Final = "unix"
_MOST_HOPS: Final = 32
"""Entries that are read, so that a long header costs little, whatever it holds."""
_MOST_CHARACTERS: Final = 4096
"""Likewise of one header."""
_ELEMENT: Final = re.compile(r'(?:[^,"]|"(?:[^"]|"\\(?:\\\\)*+(?!\\))*+")*+')
"""An element of a header that is read backwards, where an odd number of backslashes *follows* an escaped
quote."""
_PAIR: Final = re.compile(r'\s*+([A-Za-z]++)=(?:"((?:[^"\\]|\\.)*+)"|([^\s;,"]*+))\s*+(?:;|$)')

Headers = list[tuple[bytes, bytes]]
HeaderName = Literal["x-forwarded-for", "forwarded"]


@dataclass(frozen=True, slots=True)
class ForwardedClient:
    address: str
    scheme: str
    """`http`, `https`, or empty if unknown."""


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    networks: tuple[Network, ...]
    unix: bool
    """Whether peers on the Unix socket are trusted."""
    header: HeaderName = "x-forwarded-for"

    @classmethod
    def parse(cls, entries: Iterable[str], header: HeaderName = "x-forwarded-for") -> Self:
        """`10.0.0.0/8`, `192.0.2.7`, `unix`. Raises ValueError."""
        names = list(entries)
        networks = tuple(ip_network(name) for name in names if name != UNIX)
        if any(network.prefixlen == 0 for network in networks):
            raise ValueError("a network of all addresses would let every client forge its address")
        return cls(networks, UNIX in names, header)

    def trusts(self, address: str) -> bool:
        """`address`: of a peer; empty for a Unix socket."""
        if not address:
            return self.unix
        ip = _address(address)
        return ip is not None and self._trusts(ip)

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def client(self, peer: str, headers: Headers) -> ForwardedClient:
        """The client of a request that came from the trusted `peer`. An entry that is not an address ends the
        search: the client is then the hop that passed it on."""
        address, scheme = peer, ""
        hops = _forwarded(headers) if self.header == "forwarded" else _x_forwarded(headers)
        for index, (hop, proto) in enumerate(hops):
            if index == 0:
                scheme = proto  # as the proxy next to us was called
            ip = _address(hop)
            if ip is None or index >= _MOST_HOPS:
                break
            address = str(ip)
            if not self._trusts(ip):
                break
        return ForwardedClient(address, scheme)


def _x_forwarded(headers: Headers) -> Iterator[tuple[str, str]]:
    """(address, scheme) of each hop, nearest first. Only the nearest scheme is known."""
    proto = _last(headers, b"x-forwarded-proto").rpartition(",")[2].strip().lower()
    scheme = proto if proto in {"http", "https"} else ""
    lines = [value for name, value in headers if name == b"x-forwarded-for"]
    for line in reversed(lines):
        for hop in reversed(line.decode("latin-1").rsplit(",", _MOST_HOPS)):
            yield hop.strip(), scheme
    if not lines:
        yield "", scheme


def _forwarded(headers: Headers) -> Iterator[tuple[str, str]]:
    """The same of RFC 7239."""
    for line in reversed([value for name, value in headers if name == b"forwarded"]):
        for element in _elements(line[-_MOST_CHARACTERS:].decode("latin-1")):
            pairs = _pairs(element)
            proto = pairs.get("proto", "").lower()
            yield pairs.get("for", ""), proto if proto in {"http", "https"} else ""


def _elements(line: str) -> Iterator[str]:
    """What stands between commas outside of quotes, from the right, so that nothing that a client wrote
    decides how a proxy's element is read."""
    backwards, place = line[::-1], 0
    while place <= len(backwards):
        element = _ELEMENT.match(backwards, place)
        end = element.end() if element else place
        if backwards[end : end + 1] == '"':  # it ends a text that does not begin
            end = len(backwards)
        yield backwards[place:end][::-1]
        place = end + 1


def _pairs(element: str) -> dict[str, str]:
    """Names and values; empty if it is not made of pairs."""
    pairs: dict[str, str] = {}
    place = 0
    while place < len(element):
        pair = _PAIR.match(element, place)
        if pair is None:
            return {}
        pairs[pair[1].lower()] = pair[2] or pair[3] or ""
        place = pair.end()
    return pairs


def _last(headers: Headers, header_name: bytes) -> str:
    return next((value.decode("latin-1") for name, value in reversed(headers) if name == header_name), "")


def _address(text: str) -> Address | None:
    """An address, also with a port (`1.2.3.4:80`, `[::1]:80`) or of IPv4 in IPv6; None: it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return parse_address(text.partition("%")[0])
