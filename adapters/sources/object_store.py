"""Fetches adapters from object stores: `s3://BUCKET/PREFIX`, `gs://…`, `az://CONTAINER/PREFIX`, or an archive
under one key.

Endpoint and credentials come from the gateway's environment: see `adapters.buckets`. Without any, public
buckets of S3 can be read. Each object must keep the ETag that it had when the fetch began.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from adapters.checks.adapter_folder import adapter_folder
from adapters.checks.file_kinds import FILES, KNOWN
from adapters.checks.findings import Findings, shown
from adapters.progress import ProgressMeter
from adapters.sources.archive_download import check_hash, fetch_archive
from adapters.sources.bucket import Bucket, StoredObject, check
from adapters.sources.download import DownloadPart, download, run
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.public_uri import public
from adapters.sources.staging_area import SourceRefusedError, StagingArea, malformed

_URI = re.compile(
    r"(?P<scheme>s3|gs|az)://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,254})"
    r"(?:/(?P<key>[^?#\x00-\x1f]{0,1024}))?(?:#sha256=(?P<sha256>[0-9a-fA-F]{64}))?"
)


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `adapters.sources.Fetch`. The fragment `#sha256=<hex>` gives the archive's expected hash."""
    try:
        place = _Place.parse(uri)
        meter = ProgressMeter(FETCHING, options.progress)
        staging = StagingArea(destination, options.max_bytes)
        bucket, fetched = run(_fetch(place, staging, options, meter, findings), meter)
        if isinstance(fetched, str):
            return public(uri if fetched == place.prefix else f"{place.scheme}://{place.bucket}/{fetched}")

        def check_all(path: Path, part: DownloadPart) -> None:
            check(path, part)
            check_hash(path, place.sha256)

        start = partial(bucket.open, fetched)
        fetch_archive(start, destination, options=options, findings=findings, check=check_all)
    except SourceRefusedError as refusal:
        refusal.add_to(findings)
    return public(uri)


@dataclass(frozen=True, slots=True)
class _Place:
    scheme: str
    bucket: str
    key: str
    sha256: str | None

    @classmethod
    def parse(cls, uri: str) -> Self:
        named = _URI.fullmatch(uri)
        key = (named["key"] or "") if named else ""
        if named is None or (key and {"", ".", ".."} & set(key.removesuffix("/").split("/"))):
            forms = "s3://BUCKET/PREFIX, or s3://BUCKET/KEY of an archive [#sha256=<hex>]"
            raise malformed(uri, "a valid URL of an object store", forms)
        sha256 = named["sha256"]
        return cls(named["scheme"], named["bucket"], key, sha256.lower() if sha256 else None)

    @property
    def prefix(self) -> str:
        return self.key if self.key.endswith("/") or not self.key else f"{self.key}/"


async def _fetch(
    place: _Place, staging: StagingArea, options: FetchOptions, meter: ProgressMeter, findings: Findings
) -> tuple[Bucket, StoredObject | str]:
    """Fetch the files under the prefix, and return the bucket with the prefix that had them; if it is the key
    of an object, return the object instead."""
    bucket = await Bucket.connect(place.scheme, place.bucket, options)
    packed = None if place.key == place.prefix else await _readable(bucket, place.key)
    if packed is not None:
        return bucket, packed
    if place.sha256 is not None:
        raise SourceRefusedError(
            "source_missing",
            "The archive does not exist.",
            found=shown(place.key),
            expected="the key of an object",
        )
    prefix, names = await _look(bucket, place.prefix, findings)
    if findings:
        return bucket, prefix
    for stored in await _known(bucket, prefix, names):
        file = stored.key.removeprefix(prefix)
        path = staging.directory / file
        limit = staging.limit(file)
        start = partial(bucket.open, stored)
        part = await download(start, path, limit=limit, what=file, options=options, meter=meter)
        check(path, part)
        staging.took(file, stored.size)
    meter.tell()
    return bucket, prefix


async def _look(bucket: Bucket, prefix: str, findings: Findings) -> tuple[str, Collection[str]]:
    """The prefix under which the adapter lies, and the names of the files there."""
    paths = await bucket.paths(prefix)
    if paths is None:  # listing is denied, but reading may be allowed
        return prefix, KNOWN
    if not paths:
        raise _missing("source_missing", FILES[0])
    if not {path[0] for path in paths} & set(FILES):
        paths |= await bucket.paths(prefix, deep=True) or set()
    adapter = adapter_folder(paths)
    adapter.check("under the prefix", findings)
    return prefix + "".join(f"{part}/" for part in adapter.path), adapter.names


async def _known(bucket: Bucket, prefix: str, names: Collection[str]) -> list[StoredObject]:
    """The known files under `prefix`. Raises SourceRefusedError if one of the two is missing."""
    there = []
    for name in KNOWN:
        head = bucket.head if name in FILES else partial(_readable, bucket)
        stored = await head(prefix + name) if name in names else None
        if stored is not None:
            there.append(stored)
        elif name in FILES:
            raise _missing("file_missing" if there else "source_missing", name)
    return there


def _missing(code: str, name: str) -> SourceRefusedError:
    return SourceRefusedError(
        code,
        f"{name} is missing.",
        found="no such object, or no read access",
        expected=" and ".join(FILES),
    )


async def _readable(bucket: Bucket, key: str) -> StoredObject | None:
    """The object, or None. None also if access is denied, because stores deny access to missing objects if
    listing is denied."""
    try:
        return await bucket.head(key)
    except SourceRefusedError as refusal:
        if refusal.code != "source_denied":
            raise
        return None
