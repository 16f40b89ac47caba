"""One bucket of an object store, accessed through s3fs in the caller's event loop, without extra threads."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from s3fs import S3FileSystem

from adapters.checks.adapter_folder import Parts
from adapters.progress import CHUNK
from adapters.sources.archive_download import check_hash
from adapters.sources.download import DownloadInterruptedError, DownloadPart, persist
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError

_MD5 = re.compile(r'"([0-9a-f]{32})"')
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", re.ASCII)
_LISTED = 1000
_CONNECT_SECONDS = 10.0
_PUT_SECONDS = 900.0
"""A gibibyte in that time is ten megabits per second."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object and its metadata at the time of the first request."""

    key: str
    size: int
    etag: str
    """Including its quotes."""
    md5: str | None
    """Hex MD5 if the ETag is one, which it is not for multipart uploads or service-side encryption."""
    sha256: str | None
    """Hex."""
    crc32: int | None

    def check(self, path: Path) -> None:
        """Raises SourceRefusedError if the file at `path` is not this object."""
        check_hash(path, self.sha256)
        check_hash(path, self.md5, "md5")
        if self.crc32 is not None and (checksum := _crc32(path)) != self.crc32:
            raise SourceRefusedError(
                "hash_mismatch",
                "The downloaded bytes do not match the stored object.",
                found=f"crc32 {checksum:08x}",
                expected=f"{self.crc32:08x}",
            )


class Bucket:
    def __init__(self, files: S3FileSystem, name: str, options: FetchOptions) -> None:
        self._files = files
        self._name = name
        self._options = options

    @classmethod
    @asynccontextmanager
    async def connect(cls, name: str, options: FetchOptions) -> AsyncGenerator[Bucket]:
        try:
            files = await _connected(options, anonymous=False)
            if not await files.session.get_credentials():
                await files.s3.close()
                files = await _connected(options, anonymous=True)
        except (BotoCoreError, ValueError) as error:  # invalid profile, region, endpoint or credentials file
            raise _refused("source_unavailable", type(error).__name__) from None
        try:
            yield cls(files, name, options)
        finally:
            await files.s3.close()

    async def head(self, key: str) -> StoredObject | None:
        """The object with that key, or None. Raises SourceRefusedError."""
        try:
            response = await self._ask("head_object", Key=key, ChecksumMode="ENABLED")
        except FileNotFoundError:
            return None
        return _stored(key, response)

    async def paths(self, prefix: str, *, deep: bool = False) -> set[Parts] | None:
        """The first thousand paths under `prefix`, with `deep` those of folders too; None if listing is
        denied. Raises SourceRefusedError."""
        levels = {} if deep else {"Delimiter": "/"}
        try:
            page = await self._ask("list_objects_v2", Prefix=prefix, MaxKeys=_LISTED, **levels)
        except FileNotFoundError:
            raise _no_bucket(self._name) from None
        except SourceRefusedError as refusal:
            if refusal.code == "source_denied":
                return None
            raise
        keys = [item["Key"] for item in page.get("Contents", ())]
        keys += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
        return {tuple(key.removeprefix(prefix).split("/")) for key in keys} - {("",)}

    @asynccontextmanager
    async def open(
        self, stored: StoredObject, start: int, validator: str | None
    ) -> AsyncGenerator[DownloadPart]:
        """See `download.Open`. Raises SourceRefusedError if the object has changed."""
        rest = {"Range": f"bytes={start}-"} if start and validator else {}
        try:
            answer = await self._call("get_object", Key=stored.key, IfMatch=stored.etag, **rest)
        except FileNotFoundError:
            raise _changed(stored) from None
        body = answer["Body"]
        try:
            if answer.get("ETag") != stored.etag:
                raise _changed(stored)
            first = 0
            if rest:
                span = _RANGE.fullmatch(answer.get("ContentRange", ""))
                if span is None or int(span[1]) != start or int(span[2]) != stored.size:
                    raise DownloadInterruptedError(
                        "the store returned a different range than requested", afresh=True
                    )
                first = start
            yield DownloadPart(first, stored.size, stored.etag, _chunks(body))
        finally:
            body.close()

    async def put(self, key: str, path: Path) -> None:
        """Store the file as one object, which replaces another once all of it has arrived. Raises
        SourceRefusedError."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).digest()

        async def attempt() -> None:
            with path.open("rb") as file:
                await self._call(
                    "put_object", Key=key, Body=file, ContentMD5=base64.b64encode(digest).decode()
                )

        options = replace(self._options, stall_seconds=_PUT_SECONDS)
        try:
            await persist(attempt, what=f"s3://{self._name}", options=options)
        except FileNotFoundError:
            raise _no_bucket(self._name) from None

    async def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await persist(
            partial(self._call, method, **parameters), what=f"s3://{self._name}", options=self._options
        )

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Raises FileNotFoundError, DownloadInterruptedError and SourceRefusedError."""
        try:
            answer: dict[str, Any] = await self._files._call_s3(method, Bucket=self._name, **parameters)  # noqa: SLF001 - fsspec's asynchronous API is private
        except NoCredentialsError:
            raise _refused("source_denied", "no credentials") from None
        except (OSError, ClientError) as error:
            cause = error if isinstance(error, ClientError) else error.__cause__
            if isinstance(cause, ClientError):
                raise _translated(cause) from None
            raise DownloadInterruptedError(type(error).__name__) from error
        except (BotoCoreError, aiohttp.ClientError) as error:
            raise DownloadInterruptedError(type(error).__name__) from error
        return answer


def _no_bucket(name: str) -> SourceRefusedError:
    return SourceRefusedError("source_missing", "The bucket does not exist.", found=name, expected="a bucket")


async def _connected(options: FetchOptions, *, anonymous: bool) -> S3FileSystem:
    files = S3FileSystem(
        anon=anonymous,
        asynchronous=True,
        skip_instance_cache=True,
        config_kwargs={
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": options.stall_seconds,
            "retries": {"total_max_attempts": 1},
            "response_checksum_validation": "when_required",
            "request_checksum_calculation": "when_required",  # not every store knows the others
        },
    )
    files.retries = 1  # the caller retries
    await files.set_session()
    return files


def _stored(key: str, head: dict[str, Any]) -> StoredObject:
    full_object = head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    sha256 = _decoded(head.get("ChecksumSHA256")) if full_object else None
    crc32 = _decoded(head.get("ChecksumCRC32")) if full_object else None
    own_key = head.get("SSECustomerAlgorithm") or "kms" in head.get("ServerSideEncryption", "")
    md5 = None if own_key else _MD5.fullmatch(head["ETag"])
    return StoredObject(
        key,
        head["ContentLength"],
        head["ETag"],
        md5[1] if md5 else None,
        sha256.hex() if sha256 else None,
        int.from_bytes(crc32) if crc32 else None,
    )


def _decoded(checksum: str | None) -> bytes | None:
    """None for a multipart checksum such as `…-3`."""
    return base64.b64decode(checksum) if checksum and "-" not in checksum else None


def _translated(error: ClientError) -> Exception:
    """Translate the store's error by its code; its message may echo the request."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(error.response.get("Error", {}).get("Code", status))[:60]
    if status == 404:
        return FileNotFoundError()
    if status in (401, 403):
        return _refused("source_denied", code)
    if status == 412:
        return _refused("source_changed", code)
    if status == 416:
        return DownloadInterruptedError(code, afresh=True)
    if status in (408, 409, 429) or status >= 500:
        return DownloadInterruptedError(code)
    return _refused("source_unavailable", code)


def _refused(code: str, actual: str) -> SourceRefusedError:
    message, expected = _SENTENCES[code]
    return SourceRefusedError(code, message, found=actual, expected=expected)


def _changed(stored: StoredObject) -> SourceRefusedError:
    return _refused("source_changed", f"an object other than {stored.etag}")


_SENTENCES = {
    "source_denied": ("The store denies the gateway access.", "credentials with read access"),
    "source_changed": ("The object changed during the download.", "the same object throughout"),
    "source_unavailable": (
        "The store returned an unexpected response.",
        "AWS_* settings that match the store",
    ),
}


async def _chunks(body: Any) -> AsyncGenerator[bytes]:
    try:
        while chunk := await body.read(CHUNK):
            yield chunk
    except (BotoCoreError, aiohttp.ClientError, OSError) as error:
        raise DownloadInterruptedError("the connection was lost") from error


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value
