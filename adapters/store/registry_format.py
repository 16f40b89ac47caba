"""The format of the registry in Redis, which an older Florin must be able to recognize as too new."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from adapters.errors import RegistryTooNewError, StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore

FORMAT: Final = 1
"""Raised by a release whose registry the release before it would misread or damage. New fields with defaults
are not such a change."""


async def check(store: CoordinationStore) -> None:
    """Raises RegistryTooNewError. Without Redis, it is checked at the next start."""
    try:
        current = await store.registry_format()
    except StoreUnavailableError:
        return
    if current is not None and current > FORMAT:
        raise RegistryTooNewError(
            f"The registry in Redis was written by a newer version of Florin (its format is {current}; this "
            f"version knows up to {FORMAT}). Install the newer version again, or restore a backup of this "
            "version into an empty Redis."
        )


async def mark(store: CoordinationStore) -> None:
    """From now on, the registry is written in this format. Only for a registry that was checked, and is
    the one that was known. Without Redis, it is marked at the next start."""
    with suppress(StoreUnavailableError):
        current = await store.registry_format()
        if current is None or current < FORMAT:
            await store.mark_registry(FORMAT)
