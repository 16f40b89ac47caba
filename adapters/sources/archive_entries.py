"""The interface of archive readers: entries, as described by the archive, and their contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from adapters.sources.staging_area import SourceRefusedError


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    """Size in bytes, as claimed by the archive."""


class ArchiveReader(Protocol):
    """Reads one format. Both methods raise SourceRefusedError, and OSError for disk errors."""

    def entries(self) -> Iterator[ArchiveEntry]: ...

    def chunks(self) -> Iterator[bytes]:
        """The content of the entry last yielded by `entries`."""
        ...


def corrupt(what: object) -> SourceRefusedError:
    return SourceRefusedError(
        "archive_corrupt",
        "The archive is truncated or damaged.",
        found=str(what)[:160] or type(what).__name__,
        expected="a complete archive",
    )
