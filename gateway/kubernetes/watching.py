"""Keeps the inventory as the API server has it: a list, then what changes, and a list again where that is
lost."""

from __future__ import annotations

import asyncio
import logging

from gateway.kubernetes.api_server import ApiServer, ApiServerError
from gateway.kubernetes.inventory import Inventory
from gateway.kubernetes.resource import Kind

log = logging.getLogger(__name__)

_GONE = 410


async def follow(server: ApiServer, kind: Kind, inventory: Inventory, *, pause: float = 1.0) -> None:
    """Until cancelled. `pause`: seconds before it asks again."""
    failing = False
    while True:
        try:
            listing = await server.list(kind)
            inventory.replace(kind, listing.resources)
            failing = False
            await _watch(server, kind, inventory, listing.version, pause)
        except ApiServerError as error:
            if error.status != _GONE and not failing:  # too old a version is a matter of course
                log.warning("%s: %s Trying again", kind, error)
                failing = True
        await asyncio.sleep(pause)


async def _watch(server: ApiServer, kind: Kind, inventory: Inventory, version: str, pause: float) -> None:
    """Raises ApiServerError."""
    while True:
        async for change, resource in server.watch(kind, version):
            version = str(resource.metadata["resourceVersion"])
            if change == "DELETED":
                inventory.forget(resource)
            elif change != "BOOKMARK":
                inventory.remember(resource)
        await asyncio.sleep(pause)
