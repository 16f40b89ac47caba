"""What the host of an engine may say of itself, and what an operator or its first word has settled. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway.tenants.directory import Pins

FACTS = ("base", "gpu_type", "gpu_count", "region", "purchase")
"""Of a registration: which fleet's requests come, and which price counts."""


def settle(pins: Pins, said: Mapping[str, Any]) -> Pins:
    """With what was open before filled in from a registration."""
    known = asdict(pins)
    return replace(pins, **{name: said[name] for name in FACTS if known[name] is None})


def contradiction(pins: Pins, said: Mapping[str, object]) -> str:
    """The first fact that a registration says otherwise, in words; empty: none."""
    known = asdict(pins)
    for name in FACTS:
        if known[name] is not None and known[name] != said[name]:
            return f"{name} {said[name]!r}, but {known[name]!r} is settled"
    return ""


def may_claim(pins: Pins, url: str, peer: str | None) -> bool:
    """Whether a host that connects from `peer` may have requests sent to `url`. A name is taken only as an
    operator has pinned it: what it resolves to is in other hands."""
    host = urlsplit(url).hostname or ""
    if pins.address is not None:
        return _same(host, pins.address)
    return peer is not None and _address(host) is not None and _same(host, peer)


def _same(one: str, other: str) -> bool:
    first, second = _address(one), _address(other)
    return one.lower() == other.lower() if first is None or second is None else first == second


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.strip("[]"))
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
