"""Keeps the inventory as the API server has it: a list, then what changes, and a list again where that is
lost."""

from __future__ import annotations

import asyncio
import logging
import time

from gateway.kubernetes.api_server import ApiServer, ApiServerError
from gateway.kubernetes.inventory import Inventory
from gateway.kubernetes.resource import Kind

log = logging.getLogger(__name__)

_GONE = 410
_LONGEST = 30
"""Pauses."""


async def follow(server: ApiServer, kind: Kind, inventory: Inventory, *, pause: float = 1.0) -> None:
    """Until cancelled. `pause`: seconds before it asks again; longer if the last answer did not last."""
    wait = pause
    while True:
        began = time.monotonic()
        try:
            listing = await server.list(kind)
            inventory.replace(kind, listing.resources)
            await _watch(server, kind, inventory, listing.version, pause)
        except ApiServerError as error:
            lasted = time.monotonic() - began > _LONGEST * pause
            if error.status == _GONE:  # too old a version is a matter of course
                wait = pause
            elif lasted or wait == pause:
                log.warning("%s: %s Trying again", kind, error)
                wait = 2 * pause
            else:
                wait = min(2 * wait, _LONGEST * pause)
        await asyncio.sleep(wait)


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
