"""/v1/files: uploads, results, and their contents."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

import orjson

from gateway.admission.owner_queue import OwnerQueue, QueueFullError, QueueTimeoutError
from gateway.api.data_plane_objects import Objects, ledger_errors, listing, page_of, query_of, storable_id
from gateway.batches.documents import INPUT, OUTPUT, SECOND, File, new_file_id
from gateway.batches.file_store import CHUNK
from gateway.batches.routes.file_form import FileForm
from gateway.batches.rows import UPLOADING
from gateway.dataplane.body_encoding import refuse_encoded
from gateway.dataplane.exchange import ClientGoneError, Exchange, too_large
from gateway.errors import FlorinError, method_not_allowed
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.operations.authorization import actor_of
from gateway.units import DAY

PATH: Final = "/v1/files"
_FORM: Final = 64 * 1024
"""Bytes of a form besides its file."""
_UPLOAD_SECONDS: Final = 6 * 3600
"""Within which an upload must end."""
_SHORTEST, _LONGEST = 3600, 30 * 24 * 3600
"""Bounds of `expires_after[seconds]`, as OpenAI has them."""
_JSONL: Final = b"application/jsonl"
_LIST: Final = frozenset({"after", "limit", "order", "purpose"})


class FileRoutes:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        # A bounded number at a time, since each has a chunk in memory.
        self._uploads = OwnerQueue(running=64, running_each=4, waiting_each=8, waiting=64, timeout=20.0)

    async def answer(self, exchange: Exchange, rest: list[str]) -> None:
        """`rest`: of the path, after /v1/files. Raises FlorinError."""
        method = exchange.transport.method
        if not rest:
            if allowed(exchange, "GET", "POST") == "POST":
                await self._upload(exchange)
            else:
                await self._list(exchange)
        elif len(rest) == 1:
            allowed(exchange, "GET", "DELETE")
            await (self._delete if method == "DELETE" else self._get)(exchange, rest[0])
        elif rest[1:] == ["content"]:
            allowed(exchange, "GET")
            await self._content(exchange, rest[0])
        else:
            raise FlorinError("not_found", f"There is no {exchange.transport.path[:200]} here.")

    # -- uploads

    async def _upload(self, exchange: Exchange) -> None:
        key, owner = self._objects.caller(exchange, changes=True)
        settings, objects = self._objects.lifecycle.settings, self._objects
        exchange.reservation = objects.lifecycle.in_flight.reserve(key.id, key.tenant)
        exchange.refuse_longer(settings.max_file_bytes + _FORM)
        refuse_encoded(exchange.headers)
        form = FileForm(_header(exchange, b"content-type"))
        now = objects.runner.now()
        file = File(
            id=new_file_id(),
            tenant=owner.tenant,
            tenant_since=owner.since,
            key_id=key.id,
            purpose=INPUT,
            filename="",
            bytes=0,
            lines=0,
            status=UPLOADING,
            created_at=now,
            expires_at=now + _UPLOAD_SECONDS * SECOND,
        )
        async with self._turn(key.tenant), ledger_errors():
            await objects.in_thread(objects.files.begin, file, most_files=settings.tenant_files)
            try:
                done = await self._receive(exchange, form, file)
            except BaseException:
                await objects.runner.soon(objects.files.discard, file.id)
                raise
        await exchange.respond(200, orjson.dumps(done.document()))

    async def _receive(self, exchange: Exchange, form: FileForm, file: File) -> File:
        """Write the file as it arrives, chunk by chunk."""
        objects, settings = self._objects, self._objects.lifecycle.settings
        size = lines = number = 0
        last, more = b"\n", True
        while more:
            received = await exchange.transport.read()
            if received is None:
                raise ClientGoneError
            part, more = received
            form.feed(part)
            while len(form.content) >= CHUNK or (form.content and not more):
                chunk = bytes(form.content[:CHUNK])
                del form.content[:CHUNK]
                size, lines, last = size + len(chunk), lines + chunk.count(b"\n"), chunk[-1:]
                if size > settings.max_file_bytes:
                    raise too_large(settings.max_file_bytes)
                await objects.in_thread(
                    objects.files.append, file, number, chunk, most_bytes=settings.tenant_file_bytes
                )
                number += 1
        exchange.read()
        form.close()
        if not size:
            raise FlorinError("invalid_value", "The file is empty.", param="file")
        purpose = form.fields["purpose"]
        if purpose != INPUT:
            raise FlorinError("invalid_value", f"`purpose` must be {INPUT}.", param="purpose")
        return await objects.in_thread(
            objects.files.finish,
            _complete(file, form, size, lines + (last != b"\n"), settings.file_retention_days),
        )

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncGenerator[None, None]:
        try:
            async with self._uploads.acquire(tenant):
                yield
        except (QueueFullError, QueueTimeoutError):
            raise FlorinError(
                "too_many_uploads",
                "This tenant has too many uploads in progress on this worker.",
                retry_after=10,
            ) from None

    # -- what is there

    async def _list(self, exchange: Exchange) -> None:
        _, owner = self._objects.caller(exchange, changes=False)
        query = query_of(exchange, _LIST)
        purpose = query.get("purpose", "")
        async with ledger_errors():
            page = page_of(query, default=1000, most=10_000)
            files, more = await self._objects.in_thread(
                self._objects.files.list, owner, page, purpose if purpose in (INPUT, OUTPUT, "") else "none"
            )
        await exchange.respond(200, listing([file.document() for file in files], more=more))

    async def _find(self, exchange: Exchange, file_id: str) -> File:
        _, owner = self._objects.caller(exchange, changes=False)
        file = None
        if storable_id(file_id):
            async with ledger_errors():
                file = await self._objects.in_thread(self._objects.files.get, owner, file_id)
        if file is None:
            raise no_file(file_id)
        return file

    async def _get(self, exchange: Exchange, file_id: str) -> None:
        file = await self._find(exchange, file_id)
        await exchange.respond(200, orjson.dumps(file.document()))

    async def _content(self, exchange: Exchange, file_id: str) -> None:
        """Sent part by part. If the rest cannot be read, or the file is deleted meanwhile, the connection is
        closed before the end."""
        file, objects = await self._find(exchange, file_id), self._objects
        head = exchange.transport.method == "HEAD"
        parts = objects.files.parts(file)
        sent = 0
        async with ledger_errors():
            part: bytes | None = None if head else await objects.in_thread(next, parts, None)
        disposition = f'attachment; filename="{_quoted(file.filename)}"'.encode()
        exchange.extra_headers = [(b"content-disposition", disposition)]
        await exchange.begin_stream(_JSONL)
        while part is not None:
            sent += len(part)
            await exchange.write(part)
            exchange.check_client()
            try:
                part = await objects.in_thread(next, parts, None)
            except LedgerUnavailableError:
                break
        if head or sent == file.bytes:
            await exchange.end_stream()

    async def _delete(self, exchange: Exchange, file_id: str) -> None:
        key, owner = self._objects.caller(exchange, changes=True)
        deleted = False
        if storable_id(file_id):
            async with ledger_errors():
                deleted = await self._objects.in_thread(
                    self._objects.files.delete,
                    owner,
                    file_id,
                    actor=actor_of(key),
                    now=self._objects.runner.now(),
                )
        if not deleted:
            raise no_file(file_id)
        await exchange.respond(200, orjson.dumps({"id": file_id, "object": "file", "deleted": True}))


def allowed(exchange: Exchange, *methods: str) -> str:
    """The request's method. Raises FlorinError if it is none of these. HEAD is allowed where GET is."""
    if methods[0] == "GET":
        methods = ("GET", "HEAD", *methods[1:])
    method = exchange.transport.method
    if method not in methods:
        raise method_not_allowed(exchange.transport.path, *methods)
    return method


def no_file(file_id: str) -> FlorinError:
    """The same for a file that is somebody else's."""
    return FlorinError("not_found", f"No such File object: {file_id[:200]}", param="id")


def expiry_of(fields: dict[str, Any], name: str) -> int | None:
    """Seconds until a file expires, as `anchor` and `seconds` say; None: not said. Raises FlorinError."""
    if not fields:
        return None
    seconds = fields.get("seconds")
    if (
        fields.get("anchor") != "created_at"
        or type(seconds) is not int
        or fields.keys() - {"anchor", "seconds"}
    ):
        raise FlorinError(
            "invalid_value", f"`{name}` must have `anchor`: created_at, and `seconds`, a number.", param=name
        )
    if not _SHORTEST <= seconds <= _LONGEST:
        raise FlorinError(
            "invalid_value", f"`{name}.seconds` must be from {_SHORTEST:,} to {_LONGEST:,}.", param=name
        )
    return seconds


def _complete(file: File, form: FileForm, size: int, lines: int, retention_days: int) -> File:
    fields: dict[str, Any] = {}
    for name in ("anchor", "seconds"):
        text = form.fields.get(f"expires_after[{name}]")
        if text is not None:
            fields[name] = int(text) if name == "seconds" and text.isdecimal() and len(text) < 12 else text
    seconds = expiry_of(fields, "expires_after")
    keep = retention_days * DAY if seconds is None else seconds * SECOND
    name = PurePosixPath((form.filename or "").replace("\\", "/")).name
    shown = "".join(c if c.isprintable() else "?" for c in name)[:200]
    return replace(
        file, filename=shown or "upload.jsonl", bytes=size, lines=lines, expires_at=file.created_at + keep
    )


def _header(exchange: Exchange, header: bytes) -> bytes:
    return next((value for name, value in exchange.transport.headers if name == header), b"")


def _quoted(name: str) -> str:
    return "".join(c if c.isascii() and c not in '"\\' else "_" for c in name)
