"""Restricts URLs to public addresses and to those that the operator allows (SSRF protection).

A gateway that fetches arbitrary URLs exposes its own networks: databases without passwords, and cloud
metadata services, which hand out credentials. The address is therefore checked when the socket is created,
whatever name, redirect or DNS answer led to it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from adapters.sources.staging_area import SourceRefusedError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure platform services on a public address
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata service
        "192.88.99.0/24",  # 6to4 relays
        "64:ff9b:1::/48",  # local-use IPv4/IPv6 translation
        "fec0::/10",  # site-local (deprecated)
    )
)
"""Networks that `is_global` does not exclude in every Python version."""

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Private destinations that the operator allows."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Each entry is a network (`10.0.0.0/8`), an address or a host name. Raises ValueError."""
        hosts, networks = set(), []
        for entry in entries:
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                if not entry or set(entry) & set("/:@?#[] \t"):
                    raise ValueError(f"{entry!r} is neither a network, nor an address, nor a host") from None
                hosts.add(entry.rstrip(".").lower())
        return cls(frozenset(hosts), tuple(networks))

    def check(self, host: str, address: str) -> None:
        """Raises SourceRefusedError if `address`, which `host` resolved to, is not allowed."""
        if host.rstrip(".").lower() in self.hosts:
            return
        if not all(self._networks_hold(form) or _is_public(form) for form in _embedded(address)):
            raise SourceRefusedError(
                "source_not_public",
                f"{host} resolves to an address that is not public.",
                found=address,
                expected="a public address, or one allowed by FLORIN_SOURCE_PRIVATE",
            )

    def _networks_hold(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local:
        return False
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def _embedded(text: str) -> list[Address]:
    """The address, or the IPv4 addresses embedded in it."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _TRANSLATED:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    tunnelled = [address.sixtofour, *(address.teredo or ())]
    return [address, *(form for form in tunnelled if form is not None)]
