"""Where versions' files are stored: in a directory, or in a bucket."""

from __future__ import annotations

from pathlib import Path

from adapters.registry.artifacts import ArtifactStore


def artifact_store(root: Path, bucket: str) -> ArtifactStore:
    """`bucket`: its URL; empty: they are stored in `root`."""
    if not bucket:
        return ArtifactStore(root)
    from adapters.registry.bucket_artifacts import BucketArtifacts  # noqa: PLC0415 - it takes long to load

    return BucketArtifacts(root, bucket)
