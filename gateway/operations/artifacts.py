"""Find the files of versions for hosts that stage them on their own disks."""

from __future__ import annotations

import re
from pathlib import Path

from adapters.checks.validate import FILES
from adapters.errors import NotFoundError
from gateway.operations.state import State
from gateway.tenants.directory import Key, Role

_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


def find(state: State, key: Key, digest: str, file: str) -> Path:
    """The path of one of the two files of the version with the digest `sha256:<digest>`. An engine's key may
    only fetch versions placed on its engine, and cannot tell whether others exist. Raises NotFoundError."""
    if not _HEX.fullmatch(digest) or file not in FILES:
        raise NotFoundError("There is no such file: a version's digest in hex, and one of its two names.")
    if not _may_fetch(state, key, f"sha256:{digest}"):
        raise NotFoundError(f"No version of sha256:{digest} is placed on engine {key.engine}.")
    path = state.artifacts.root / digest / file
    if not path.is_file():
        raise NotFoundError(
            f"The artifact store of this gateway does not hold {file} of sha256:{digest}: "
            "gateways on several hosts need a FLORIN_ARTIFACT_DIR that all of them see."
        )
    return path


def _may_fetch(state: State, key: Key, digest: str) -> bool:
    if key.role is not Role.ENGINE:
        return True
    placed = state.residency.placed(key.engine)
    versions = (state.catalog.by_engine_name.get(name) for name in placed)
    return any(version is not None and version.digest == digest for version in versions)
