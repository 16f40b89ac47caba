"""Each version's own order of the engines (highest random weight; Thaler and Ravishankar, 1998): every worker
computes the same without talking, and an engine that joins or leaves moves few versions."""

from __future__ import annotations

from zlib import crc32

from adapters.placement.scheduling.view import Fleet


def homes(version: str, fleet: Fleet) -> dict[str, int]:
    """Engine → its place in the version's order, from 0."""
    order = sorted(fleet.engines, key=lambda name: crc32(f"{name}/{version}".encode()), reverse=True)
    return {name: place for place, name in enumerate(order)}
