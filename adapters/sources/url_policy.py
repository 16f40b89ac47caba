"""Restricts URLs to public addresses and to those that the operator allows (SSRF protection).

A gateway that fetches arbitrary URLs exposes its own networks: databases without passwords, and cloud
metadata services, which hand out credentials. The address is therefore checked when the socket is created,
whatever name, redirect or DNS answer led to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Self

from adapters.security.ip_addresses import Network, is_public, parse_address, untranslated
from adapters.sources.staging_area import SourceRefusedError


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
                networks.append(ip_network(entry))
            except ValueError:
                if not entry or set(entry) & set("/:@?#[] \t"):
                    raise ValueError(f"{entry!r} is neither a network, nor an address, nor a host") from None
                hosts.add(entry.rstrip(".").lower())
        return cls(frozenset(hosts), tuple(networks))

    def check(self, host: str, address: str) -> None:
        """Raises SourceRefusedError if `address`, which `host` resolved to, is not allowed."""
        if host.rstrip(".").lower() in self.hosts:
            return
        parsed = parse_address(address)
        reached = parsed and untranslated(parsed)
        if reached is None or not (
            is_public(reached) or any(reached in network for network in self.networks)
        ):
            raise SourceRefusedError(
                "source_not_public",
                f"{host} resolves to an address that is not public.",
                found=address,
                expected="a public address, or one allowed by FLORIN_SOURCE_PRIVATE",
            )
