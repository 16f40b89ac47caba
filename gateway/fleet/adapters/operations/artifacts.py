"""Find the files of versions for hosts that stage them on their own disks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from adapters.checks.validate import FILES
from adapters.errors import NotFoundError
from adapters.model import Version
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.tenants.directory import Key, Role
from gateway.tenants.engine_pins import fetches_from

_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


_RESOLVE_SECONDS: Final = 5.0


async def find(state: State, key: Key, digest: str, file: str, peer: str | None) -> Path | str:
    """The path of one of the two files of the version with the digest `sha256:<digest>`, or a signed URL. An
    engine's key may only fetch versions placed on its engine and the one that it is to merge, and cannot tell
    whether others exist; it may fetch them only from the engine's address. Raises NotFoundError,
    FlorinError."""
    if not _HEX.fullmatch(digest) or file not in FILES:
        raise NotFoundError("There is no such file: a version's digest in hex, and one of its two names.")
    if key.role is Role.ENGINE:
        await _check_address(state, key.engine, peer)
    if not _may_fetch(state, key, f"sha256:{digest}"):
        raise NotFoundError(f"No version of sha256:{digest} is placed on engine {key.engine}.")
    try:
        readable = await asyncio.to_thread(state.artifacts.readable, digest, file)
    except OSError as error:
        raise FlorinError(
            "artifacts_unavailable",
            f"There is no URL for files in {state.artifacts.where}: {error.strerror or error}.",
        ) from error
    if readable is None:
        raise NotFoundError(
            f"The artifact store of this gateway does not hold {file} of sha256:{digest}: "
            "gateways on several hosts need a FLORIN_ARTIFACT_DIR that all of them see."
        )
    return readable


def to_merge(state: State, key: Key, version_id: str) -> Version:
    """The version that the key's host merges into its base model. Raises NotFoundError, FlorinError."""
    if key.role is Role.ENGINE and key.pins.serves != version_id:
        raise FlorinError(
            "engine_pinned",
            f"Engine {key.engine} may not merge {version_id[:200]}: enrol its host again, with a token for "
            f"that (`florin engine token create --name {key.engine} --serves {version_id[:200]}`).",
        )
    version = state.catalog.versions.get(version_id)
    if version is None or version.retired is not None:
        raise NotFoundError(f"There is no version {version_id[:200]!r}.")
    return version


async def _check_address(state: State, name: str, peer: str | None) -> None:
    """A stolen key is of no use elsewhere. The engine's URL is at the address pinned to its key. Raises
    FlorinError."""
    engine = state.catalog.engines.get(name)
    host = urlsplit(engine.url).hostname if engine else None
    if host and not fetches_from(host, await _addresses(host), peer):
        raise FlorinError(
            "engine_pinned",
            f"Engine {name} fetches adapters from {peer}, but that is not the address of its URL, nor one to "
            "which its name resolves here.",
        )


async def _addresses(host: str) -> list[str]:
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            resolved = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError):  # TimeoutError is an OSError
        return []
    return [str(address[0]) for *_, address in resolved]


def _may_fetch(state: State, key: Key, digest: str) -> bool:
    if key.role is not Role.ENGINE:
        return True
    merged = state.catalog.versions.get(key.pins.serves or "")
    if merged is not None and merged.digest == digest:
        return True
    placed = state.residency.placed(key.engine)
    versions = (state.catalog.by_engine_name.get(name) for name in placed)
    return any(version is not None and version.digest == digest for version in versions)
