"""What the readers of archive formats give: entries, as the archive describes itself, and their contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from adapters.sources.landing import RefusedError


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    """Bytes, by the archive's own account."""


class Reader(Protocol):
    """A format. Both raise RefusedError, and OSError for the disk."""

    def entries(self) -> Iterator[Entry]: ...

    def chunks(self) -> Iterator[bytes]:
        """The content of the entry that `entries` gave last."""
        ...


def corrupt(what: object) -> RefusedError:
    return RefusedError(
        "archive_corrupt",
        "The archive is truncated or damaged.",
        found=str(what)[:160] or type(what).__name__,
        expected="a whole archive",
    )
