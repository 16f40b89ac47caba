"""Judges IP addresses, with the same answer on every Python.

The properties of `ipaddress` (`is_global`, `is_loopback`, `is_private`…) are not asked: what they say of
IPv4-mapped, 6to4 and documentation addresses has changed between patch releases. The networks are those of
IANA's registries of special-purpose addresses.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


_LOOPBACK: Final = _networks("127.0.0.0/8", "::1/128")
_UNICAST: Final = _networks("0.0.0.0/0", "2000::/3")
"""All public addresses are in these; of IPv6, nothing else is assigned."""
_NOT_PUBLIC: Final = _networks(
    "0.0.0.0/8",  # this host
    "10.0.0.0/8",  # private
    "100.64.0.0/10",  # shared with a provider's customers
    *("127.0.0.0/8", "169.254.0.0/16"),  # loopback, link-local
    "168.63.129.16/32",  # Azure platform services on a public address
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # protocol assignments; Oracle's metadata service
    *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),  # documentation
    "192.88.99.0/24",  # 6to4 relays
    "192.168.0.0/16",  # private
    "198.18.0.0/15",  # benchmarks
    *("224.0.0.0/4", "240.0.0.0/4"),  # multicast, reserved
    "2001::/23",  # protocol assignments, among them Teredo
    *("2001:db8::/32", "3fff::/20"),  # documentation
    "2002::/16",  # 6to4, which leads to whatever IPv4 address is written in it
)
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> Address | None:
    """The address, which may stand in brackets; of an IPv4-mapped one (`::ffff:10.0.0.7`), the IPv4 address.
    None: `text` is no address."""
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def untranslated(address: Address) -> Address:
    """The IPv4 address that a NAT64 gateway reaches for `address`; any other address as it is."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else address


def is_loopback(address: Address | None) -> bool:
    """Whether only this machine reaches `address`. False for None."""
    return address is not None and _in_any(address, _LOOPBACK)


def is_public(address: Address) -> bool:
    return _in_any(address, _UNICAST) and not _in_any(address, _NOT_PUBLIC)


def _in_any(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks)
