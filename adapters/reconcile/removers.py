"""What removes content from an artifact store, wherever that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from adapters.reconcile.artifact_remover import ArtifactRemover
from adapters.registry.artifacts import ArtifactStore


class Remover(Protocol):
    """Deletes content safely against concurrent publication. Used by `ArtifactCollector` only. Methods block
    and raise OSError."""

    def holds(self, digest: str, path: str) -> bool:
        """Whether `path` is where this store keeps the content of `digest`; only then may it be deleted."""
        ...

    def detach(self, digest: str) -> bool | None:
        """Prepare the content for deletion. False if it must stay, because it was published recently or
        another installation may need it; None if it does not exist."""
        ...

    def exists(self, digest: str) -> bool: ...

    def is_empty(self) -> bool:
        """Whether nothing is detached."""
        ...

    def delete_or_restore(self, needed: Callable[[str], bool]) -> set[str]:
        """Delete or restore all detached content, including what a process that died left behind. Restored
        are digests for which `needed` is true, content that was republished meanwhile, and everything if
        another installation uses this store. Returns the deleted digests."""
        ...


def remover_of(artifacts: ArtifactStore) -> Remover:
    if type(artifacts) is ArtifactStore:
        return ArtifactRemover(artifacts)
    from adapters.reconcile.bucket_remover import BucketRemover  # noqa: PLC0415 - it takes long to load
    from adapters.registry.bucket_artifacts import BucketArtifacts  # noqa: PLC0415 - it takes long to load, too

    assert isinstance(artifacts, BucketArtifacts)
    return BucketRemover(artifacts)
