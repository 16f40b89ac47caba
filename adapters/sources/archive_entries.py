"""What the readers of archive formats give: entries, as the archive describes itself, and their contents."""

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
    """Bytes, by the archive's own account."""


class ArchiveReader(Protocol):
    """A format. Both raise SourceRefusedError, and OSError for the disk."""

    def entries(self) -> Iterator[ArchiveEntry]: ...

    def chunks(self) -> Iterator[bytes]:
        """The content of the entry that `entries` gave last."""
        ...


def corrupt(what: object) -> SourceRefusedError:
    return SourceRefusedError(
        "archive_corrupt",
        "The archive is truncated or damaged.",
        found=str(what)[:160] or type(what).__name__,
        expected="a whole archive",
    )
