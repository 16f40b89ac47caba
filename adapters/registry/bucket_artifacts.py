"""The artifact store in a bucket:

    <digest hex>/adapter_config.json, adapter_model.safetensors
    .removing/<digest hex>      about to be deleted
    .installations/<id>         installations that use this bucket; with several, nothing is removed

Each object appears whole, and the same key always gets the same content, so publishing may be repeated and
may race. A publisher always writes, so what it publishes is fresh. A remover first marks the digest, then
looks at how fresh it is, and deletes last (`adapters.reconcile.bucket_remover`). So a publisher that sees no
mark, and after that its files, wrote before the mark, and the remover leaves them; or after the deletion.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError

from adapters import buckets
from adapters.buckets import Store, StoreSettingsError
from adapters.checks.validate import FILES
from adapters.model import Version
from adapters.progress import CHUNK
from adapters.registry.artifacts import Artifact, ArtifactStore, digest_of, size_of
from adapters.sources.staging_area import check_space

log = logging.getLogger(__name__)

_URL = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(?P<prefix>[^?#\x00-\x20]*))?"
)
_INSTALLATIONS: Final = ".installations"
_REMOVING: Final = ".removing"
_RETRIES: Final = 3
_START: Final = 5.0
"""Seconds that a start waits for a store that does not answer."""
_WAIT: Final = 90.0
"""Seconds that a publisher waits for a remover: more than the remover takes to look again."""
_WRITES: Final = 3
"""How often a publisher writes what removers take away again."""
_PART: Final = 16 * 1024 * 1024
_PARTS: Final = 4
"""Parts of an upload that are on their way at a time."""


class BucketArtifacts(ArtifactStore):
    """See the module. `url`: `s3://BUCKET/PREFIX`, `gs://…` or `az://…`; `root`: a directory of this host, in
    which files are received and checked. A store that is away costs no start, only what needs it."""

    def __init__(self, root: Path, url: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(root)
        place = _URL.fullmatch(url.rstrip("/"))
        if place is None:
            raise ValueError(f"{url!r} is not the URL of a bucket")
        self._place = place
        self._sleep = sleep
        self._registered = False  # mutable: whether the mark of this installation is known to be there

    @property
    def where(self) -> str:
        return self._place[0]

    def open(self, installation: str = "") -> None:
        super().open()
        self._installation = installation
        try:
            with self._explained():
                self._register(self._connect(stall=_START))
        except OSError as error:  # the first file that is written tries again
            log.error("FLORIN_ARTIFACT_BUCKET: %s: %s", error.filename, error.strerror)

    def publish(self, staged: Path) -> Artifact:
        hexdigest = digest_of(staged)
        artifact = self.artifact(f"sha256:{hexdigest}", staged)
        with self._explained():
            for _ in range(_WRITES):
                for name in FILES:
                    self._put(hexdigest, staged, name)
                until = time.monotonic() + _WAIT
                while self._being_removed(hexdigest):
                    if time.monotonic() > until:
                        raise OSError(errno.EBUSY, "the same files are being removed", artifact.location)
                    self._sleep(1.0)
                if self._has(hexdigest, artifact.size_bytes):
                    return artifact
        raise OSError(errno.EIO, "what was written is not there", artifact.location)

    @contextmanager
    def files(self, digest: str) -> Iterator[Path | None]:
        hexdigest = digest.removeprefix("sha256:")
        with self.staging() as staged:
            with self._explained():
                sound = self._fetch(hexdigest, staged) and self._freshen(hexdigest, staged)
            yield staged if sound else None

    def readable(self, digest: str, name: str) -> Path | str | None:
        with self._explained():
            return buckets.readable_url(self._store, f"{digest.removeprefix('sha256:')}/{name}")

    def problems(self, versions: Iterable[Version]) -> dict[str, str]:
        sizes: dict[str, int] = {}
        with self._explained():
            for page in self._store.list(chunk_size=1000):
                for item in page:
                    hexdigest, _, name = item["path"].partition("/")
                    if name in FILES:
                        sizes[hexdigest] = sizes.get(hexdigest, 0) + item["size"]
        problems = {}
        for version in versions:
            size = sizes.get(version.digest.removeprefix("sha256:"), 0)
            if size != version.size_bytes:
                location = self.location(version.digest)
                problems[version.id] = f"{location} holds {size} bytes instead of {version.size_bytes}"
        return problems

    def check(self) -> None:
        super().check()
        with self._explained():
            self._register(self._store)
        self.readable("0" * 64, FILES[0])  # some credentials may write, and not sign

    def others(self) -> list[str]:
        with self._explained():
            page = obstore.list_with_delimiter(self._store, _INSTALLATIONS)
        marks = [f"{self.where}/{item['path']}" for item in page["objects"]]
        return [mark for mark in marks if not mark.endswith(f"/{self._installation}")]

    # -- for removers. All raise OSError.

    def mark(self, hexdigest: str) -> None:
        with self._explained():
            self._store.put(f"{_REMOVING}/{hexdigest}", b"-")

    def marked(self) -> list[str]:
        with self._explained():
            page = obstore.list_with_delimiter(self._store, _REMOVING)
        return sorted(item["path"].rpartition("/")[2] for item in page["objects"])

    def unmark(self, hexdigest: str) -> None:
        self._delete([f"{_REMOVING}/{hexdigest}"])

    def delete(self, hexdigest: str) -> None:
        """Delete the files, and then the mark."""
        with self._explained():
            paths = [item["path"] for item in obstore.list_with_delimiter(self._store, hexdigest)["objects"]]
        self._delete(paths)
        self.unmark(hexdigest)

    def changed(self, hexdigest: str) -> float | None:
        """When one of the files was last written, in Unix seconds by the store's clock; None without any."""
        with self._explained():
            objects = obstore.list_with_delimiter(self._store, hexdigest)["objects"]
        return max((item["last_modified"].timestamp() for item in objects), default=None)

    # --

    @cached_property
    def _store(self) -> Store:
        return self._connect(retries=_RETRIES)

    def _connect(self, **options: Any) -> Store:
        place = self._place
        return buckets.connect(place["scheme"], place["bucket"], place["prefix"] or None, **options)

    def _register(self, store: Store) -> None:
        """Mark the prefix as used by this installation, so that no other removes its files."""
        if self._installation:
            store.put(f"{_INSTALLATIONS}/{self._installation}", b"-")
        self._registered = True

    def _put(self, hexdigest: str, files: Path, name: str) -> None:
        if not self._registered:
            self._register(self._store)
        self._store.put(f"{hexdigest}/{name}", files / name, chunk_size=_PART, max_concurrency=_PARTS)

    def _has(self, hexdigest: str, size: int) -> bool:
        objects = obstore.list_with_delimiter(self._store, hexdigest)["objects"]
        return sum(item["size"] for item in objects if item["path"].rpartition("/")[2] in FILES) == size

    def _being_removed(self, hexdigest: str) -> bool:
        try:
            self._store.head(f"{_REMOVING}/{hexdigest}")
        except FileNotFoundError:
            return False
        return True

    def _fetch(self, hexdigest: str, staged: Path) -> bool:
        """Whether the files are there and are what the digest says."""
        for name in FILES:
            try:
                response = self._store.get(f"{hexdigest}/{name}")
            except FileNotFoundError:
                return False
            check_space(staged, response.meta["size"])
            with (staged / name).open("wb") as file:
                for chunk in response.stream(min_chunk_size=CHUNK):
                    file.write(chunk)
        return digest_of(staged) == hexdigest

    def _freshen(self, hexdigest: str, staged: Path) -> bool:
        """Keep the files from being removed for an hour; whether they are still there."""
        self._put(hexdigest, staged, FILES[0])
        return not self._being_removed(hexdigest) and self._has(hexdigest, size_of(staged))

    def _delete(self, paths: list[str]) -> None:
        with self._explained():
            for path in paths:
                with suppress(FileNotFoundError):
                    self._store.delete(path)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StoreSettingsError as error:
            raise OSError(errno.EIO, str(error), self.where) from None
        except BaseError as error:
            raise OSError(errno.EIO, buckets.reason(error), self.where) from None
        except FileNotFoundError as error:
            if error.errno is not None:  # a file of this host
                raise
            raise OSError(errno.ENOENT, buckets.reason(error), self.where) from None
