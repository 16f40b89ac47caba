"""One bucket of an object store: lists, reads and writes it. What it reads, it reads as from any web server,
from URLs that it signs."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import obstore
from obstore.exceptions import BaseError
from yarl import URL

from adapters import buckets
from adapters.buckets import Store, StoreSettingsError
from adapters.checks.adapter_folder import Parts
from adapters.sources.archive_download import check_hash
from adapters.sources.download import DownloadInterruptedError, DownloadPart, T, persist
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError
from adapters.sources.web_client import WebClient

_MD5 = re.compile(r'"([0-9a-f]{32})"')
_GOOGLE_MD5 = re.compile(r"\bmd5=([A-Za-z0-9+/]{22}==)")
_LISTED = 1000
_PUT_SECONDS = 900.0
"""A gibibyte in that time is ten megabits per second."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object at the time of the first request."""

    key: str
    size: int
    etag: str
    """Including its quotes."""


class Bucket:
    def __init__(self, scheme: str, name: str, store: Store, options: FetchOptions) -> None:
        self._name = name
        self._place = f"{scheme}://{name}"
        self._store = store
        self._options = options

    @classmethod
    async def connect(cls, scheme: str, name: str, options: FetchOptions) -> Self:
        """Raises SourceRefusedError."""
        connect = partial(buckets.connect, scheme, name, stall=options.stall_seconds)
        try:
            store = await asyncio.to_thread(connect)
        except StoreSettingsError as error:
            raise _refused("source_unavailable", str(error)) from None
        return cls(scheme, name, store, options)

    async def head(self, key: str) -> StoredObject | None:
        """The object with that key, or None. Raises SourceRefusedError."""
        try:
            meta = await self._ask(partial(obstore.head, self._store, key))
        except FileNotFoundError:
            return None
        return StoredObject(key, meta["size"], meta["e_tag"] or "")

    async def paths(self, prefix: str, *, deep: bool = False) -> set[Parts] | None:
        """The paths under `prefix`, with `deep` the first thousand, of folders too; None if listing is
        denied. Raises SourceRefusedError."""
        try:
            keys = await self._ask(partial(self._deep if deep else self._shallow, prefix))
        except FileNotFoundError:
            raise _no_bucket(self._name) from None
        except SourceRefusedError as refusal:
            if refusal.code == "source_denied":
                return None
            raise
        return {tuple(key.removeprefix(prefix).split("/")) for key in keys} - {("",)}

    def _deep(self, prefix: str) -> list[str]:
        for page in obstore.list(self._store, prefix or None, chunk_size=_LISTED):
            return [item["path"] for item in page]
        return []

    def _shallow(self, prefix: str) -> list[str]:
        page = obstore.list_with_delimiter(self._store, prefix or None)
        return [item["path"] for item in page["objects"]] + [f"{key}/" for key in page["common_prefixes"]]

    @asynccontextmanager
    async def open(
        self, stored: StoredObject, start: int, validator: str | None
    ) -> AsyncGenerator[DownloadPart]:
        """See `download.Open`. Raises SourceRefusedError if the object has changed."""
        signed = await self._ask(partial(buckets.readable_url, self._store, stored.key))
        url = URL(signed, encoded=True)
        # Where the store is, is the operator's choice: it may be private.
        private = (*self._options.allow_private, url.raw_host or "")
        client = WebClient(url, None, replace(self._options, allow_private=private))
        try:
            async with client.open(start, validator, plain=True) as part:
                if part.validator != stored.etag or part.total not in (None, stored.size):
                    raise _changed(stored)
                yield part
        except SourceRefusedError as refusal:
            raise (_changed(stored) if refusal.code == "source_missing" else refusal) from None

    async def put(self, key: str, path: Path) -> None:
        """Store the file as one object, which replaces another once all of it has arrived. Raises
        SourceRefusedError."""
        options = replace(self._options, stall_seconds=_PUT_SECONDS)
        try:
            await self._ask(partial(obstore.put, self._store, key, path), options)
        except FileNotFoundError:
            raise _no_bucket(self._name) from None

    async def _ask(self, call: Callable[[], T], options: FetchOptions | None = None) -> T:
        """What a blocking call returns. In a thread, because an interpreter that ends soon after one of
        obstore's asynchronous calls may abort. Raises FileNotFoundError, SourceRefusedError."""
        attempt = partial(asyncio.to_thread, _translated, call)
        return await persist(attempt, what=self._place, options=options or self._options)


def check(path: Path, part: DownloadPart) -> None:
    """Raises SourceRefusedError if the file at `path` is not what the store keeps, as far as the headers of
    its response tell."""
    check_hash(path, _md5(part.headers), "md5")


def _md5(headers: Mapping[str, str]) -> str | None:
    """Hex MD5 of the object, if the store gives it: Google and Azure in a header, S3 as the ETag, unless the
    object came in parts or is encrypted with a key of the customer's."""
    google = _GOOGLE_MD5.search(headers.get("x-goog-hash", ""))
    encoded = google[1] if google else headers.get("x-ms-blob-content-md5") or headers.get("content-md5")
    if encoded:
        return base64.b64decode(encoded).hex()
    own_key = "x-amz-server-side-encryption-customer-algorithm" in headers
    if own_key or "kms" in headers.get("x-amz-server-side-encryption", "") or "x-goog-hash" in headers:
        return None
    etag = _MD5.fullmatch(headers.get("etag", ""))
    return etag[1] if etag else None


def _translated(call: Callable[[], T]) -> T:
    """Raises FileNotFoundError, DownloadInterruptedError and SourceRefusedError."""
    try:
        return call()
    except BaseError as error:  # whose kind tells less than the status
        reason, status = buckets.reason(error), buckets.status(error)
    if status in (401, 403):
        raise _refused("source_denied", reason)
    if status == 404:
        raise FileNotFoundError(reason)
    if 400 <= status < 500 and status not in (408, 409, 429):
        raise _refused("source_unavailable", reason)
    raise DownloadInterruptedError(reason)


def _no_bucket(name: str) -> SourceRefusedError:
    return SourceRefusedError("source_missing", "The bucket does not exist.", found=name, expected="a bucket")


def _refused(code: str, actual: str) -> SourceRefusedError:
    message, expected = _SENTENCES[code]
    return SourceRefusedError(code, message, found=actual, expected=expected)


def _changed(stored: StoredObject) -> SourceRefusedError:
    return _refused("source_changed", f"an object other than {stored.etag}")


_SENTENCES: dict[str, Any] = {
    "source_denied": ("The store denies the gateway access.", "credentials with read access"),
    "source_changed": ("The object changed during the download.", "the same object throughout"),
    "source_unavailable": (
        "The store cannot be asked.",
        "settings of the environment that match the store",
    ),
}
