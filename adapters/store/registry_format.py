"""The format of the registry in Redis, which an older Florin must be able to recognise as too new."""

from __future__ import annotations

from typing import Final

from adapters.errors import RegistryTooNewError, StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore

FORMAT: Final = 1
"""Raised by a release whose registry the release before it would misread or damage. New fields with defaults
are not such a change."""


async def check(store: CoordinationStore) -> None:
    """Mark the registry as written in this format, or raise RegistryTooNewError. Without Redis, it is checked
    at the next start."""
    try:
        found = await store.registry_format(FORMAT)
    except StoreUnavailableError:
        return
    if found > FORMAT:
        raise RegistryTooNewError(
            f"The registry in Redis was written by a newer version of Florin (its format is {found}; this "
            f"version knows up to {FORMAT}). Install the newer version again, or restore a backup of this "
            "version into an empty Redis."
        )
