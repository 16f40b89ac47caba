"""Removes content from an artifact store in a bucket: mark it, look at how fresh it is, delete it.

There is no rename in a bucket, so the mark is what a publisher of the same content sees: it waits until the
mark is gone and its files are there. The mark comes before the look, and the deletion within `_DEADLINE` of
it, or not at all: so a remover that was stopped in between does not delete what was published since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from adapters.reconcile.artifact_remover import FRESH_SECONDS
from adapters.registry.bucket_artifacts import BucketArtifacts

log = logging.getLogger(__name__)

_DEADLINE = 10.0


class BucketRemover:
    """As `ArtifactRemover`, for a bucket."""

    def __init__(self, artifacts: BucketArtifacts, *, clock: Callable[[], float] = time.time) -> None:
        self._artifacts = artifacts
        self._clock = clock

    def __repr__(self) -> str:
        return f"<BucketRemover of {self._artifacts.where}>"

    def holds(self, digest: str, path: str) -> bool:
        """Always: what is in the bucket under this digest is this content, wherever it was registered."""
        del digest, path
        return True

    def detach(self, digest: str) -> bool | None:
        hexdigest = digest.removeprefix("sha256:")
        if not self.exists(digest):
            return None
        self._artifacts.mark(hexdigest)
        if self._must_stay(hexdigest):
            self._artifacts.unmark(hexdigest)
            return False
        return True

    def exists(self, digest: str) -> bool:
        return self._artifacts.changed(digest.removeprefix("sha256:")) is not None

    def is_empty(self) -> bool:
        return not self._artifacts.marked()

    def delete_or_restore(self, needed: Callable[[str], bool]) -> set[str]:
        deleted = set()
        for hexdigest in self._artifacts.marked():
            digest, looked = f"sha256:{hexdigest}", time.monotonic()
            if needed(digest) or self._must_stay(hexdigest) or time.monotonic() - looked > _DEADLINE:
                self._artifacts.unmark(hexdigest)
            else:
                self._artifacts.delete(hexdigest)
                deleted.add(digest)
        return deleted

    def _must_stay(self, hexdigest: str) -> bool:
        changed = self._artifacts.changed(hexdigest)
        fresh = changed is not None and self._clock() - changed < FRESH_SECONDS
        return fresh or bool(self._artifacts.others())
