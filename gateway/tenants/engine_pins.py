"""Checks what an engine's host reports against the facts pinned to its key. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import urlsplit

from adapters.security.ip_addresses import parse_address
from gateway.tenants.directory import Pins

FACTS = ("base", "gpu_type", "gpu_count", "region", "purchase", "labels", "serves")
"""Facts of a registration that determine the fleet and the price."""


def settle(pins: Pins, reported: Mapping[str, Any]) -> Pins:
    """The pins, with open ones filled in from a registration."""
    known = asdict(pins)
    return replace(pins, **{name: reported[name] for name in FACTS if known[name] is None})


def contradiction(pins: Pins, reported: Mapping[str, object]) -> str:
    """A description of the first reported fact that differs from its pin; empty: none."""
    # What it serves alone is never the host's choice, since it gets that version's files.
    known = asdict(pins) | {"serves": pins.serves or ""}
    for name in FACTS:
        if known[name] is not None and known[name] != reported[name]:
            return f"{name} {reported[name]!r}, but {known[name]!r} is pinned"
    return ""


def may_claim(pins: Pins, url: str, peer: str | None) -> bool:
    """Whether a host that connects from `peer` may register `url`. Host names are accepted only if an
    operator pinned them, since others control what a name resolves to."""
    host = urlsplit(url).hostname or ""
    if pins.address is not None:
        return _same(host, pins.address)
    return peer is not None and parse_address(host) is not None and _same(host, peer)


def fetches_from(host: str, addresses: Iterable[str], peer: str | None) -> bool:
    """Whether a client at `peer` may fetch the files of the engine at `host`, a name or an address.
    `addresses`: what the name resolves to."""
    return peer is not None and any(_same(address, peer) for address in (host, *addresses))


def _same(address: str, other: str) -> bool:
    first, second = parse_address(address), parse_address(other)
    return address.lower() == other.lower() if first is None or second is None else first == second
