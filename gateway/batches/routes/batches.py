"""/v1/batches: creating, watching and cancelling batches."""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.admission.complexity import Complexity, check
from gateway.api.data_plane_objects import Objects, ledger_errors, listing, page_of, query_of, storable_id
from gateway.batches.batch_store import BatchQuotas
from gateway.batches.documents import SECOND, WINDOW, new_batch
from gateway.batches.lines import BATCHED
from gateway.batches.routes.files import allowed, expiry_of, no_file
from gateway.dataplane.exchange import Exchange
from gateway.errors import FlorinError
from gateway.operations.authorization import actor_of
from gateway.tenants.scopes import check_endpoint

PATH: Final = "/v1/batches"
_MOST_BODY: Final = 64 * 1024
_COMPLEXITY: Final = Complexity(values=1000, containers=100, depth=8)
_FIELDS: Final = frozenset(
    {"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"}
)
_LIST: Final = frozenset({"after", "limit"})


class BatchRoutes:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def answer(self, exchange: Exchange, rest: list[str]) -> None:
        """`rest`: of the path, after /v1/batches. Raises FlorinError."""
        if not rest:
            if allowed(exchange, "GET", "POST") == "POST":
                await self._create(exchange)
            else:
                await self._list(exchange)
        elif len(rest) == 1:
            allowed(exchange, "GET")
            await self._get(exchange, rest[0])
        elif rest[1:] == ["cancel"]:
            allowed(exchange, "POST")
            await self._cancel(exchange, rest[0])
        else:
            raise FlorinError("not_found", f"There is no {exchange.transport.path[:200]} here.")

    async def _create(self, exchange: Exchange) -> None:
        objects, settings = self._objects, self._objects.lifecycle.settings
        key, owner = objects.caller(exchange, changes=True)
        raw = await exchange.body(_MOST_BODY)
        check(raw, _COMPLEXITY)
        terms = _asked(raw)
        check_endpoint(key, terms["endpoint"])
        now = objects.runner.now()
        expires = expiry_of(terms.get("output_expires_after") or {}, "output_expires_after")
        batch = new_batch(
            owner,
            key_id=key.id,
            endpoint=terms["endpoint"],
            input_file=terms["input_file_id"],
            now=now,
            metadata=terms.get("metadata"),
            output_keep=0 if expires is None else expires * SECOND,
        )
        created = None
        if storable_id(batch.input_file):
            quotas = BatchQuotas(settings.tenant_batches, settings.tenant_batch_lines)
            async with ledger_errors():
                created = await objects.in_thread(objects.batches.create, batch, owner, quotas)
        if created is None:
            raise no_file(batch.input_file)
        objects.runner.look()
        await exchange.respond(200, orjson.dumps(created.document()))

    async def _list(self, exchange: Exchange) -> None:
        _, owner = self._objects.caller(exchange, changes=False)
        query = query_of(exchange, _LIST)
        async with ledger_errors():
            page = page_of(query, default=20, most=100)
            batches, more = await self._objects.in_thread(self._objects.batches.list, owner, page)
        await exchange.respond(200, listing([batch.document() for batch in batches], more=more))

    async def _get(self, exchange: Exchange, batch_id: str) -> None:
        _, owner = self._objects.caller(exchange, changes=False)
        batch = None
        if storable_id(batch_id):
            async with ledger_errors():
                batch = await self._objects.in_thread(self._objects.batches.get, owner, batch_id)
        if batch is None:
            raise _no_batch(batch_id)
        await exchange.respond(200, orjson.dumps(batch.document()))

    async def _cancel(self, exchange: Exchange, batch_id: str) -> None:
        objects = self._objects
        key, owner = objects.caller(exchange, changes=True)
        batch = None
        if storable_id(batch_id):
            async with ledger_errors():
                batch = await objects.in_thread(
                    objects.batches.cancel, owner, batch_id, actor=actor_of(key), now=objects.runner.now()
                )
        if batch is None:
            raise _no_batch(batch_id)
        objects.runner.look()
        await exchange.respond(200, orjson.dumps(batch.document()))


def _no_batch(batch_id: str) -> FlorinError:
    """The same for a batch that is somebody else's."""
    return FlorinError("not_found", f"No such Batch object: {batch_id[:200]}", param="id")


def _asked(raw: bytes) -> dict[str, Any]:
    """The body of a creation, checked. Raises FlorinError."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise FlorinError("invalid_json", f"The body is not valid JSON in UTF-8: {error}.") from None
    if type(body) is not dict:
        raise FlorinError("invalid_json", "The body must be a JSON object.")
    for name in body.keys() - _FIELDS:
        raise FlorinError("unsupported_parameter", f"`{name[:80]}` is not supported.", param=name[:80])
    if type(body.get("input_file_id")) is not str:
        raise _wrong("input_file_id", "be the id of a file")
    if type(body.get("endpoint")) is not str or body["endpoint"] not in BATCHED:
        raise _wrong("endpoint", f"be one of {', '.join(BATCHED)}")
    if body.get("completion_window") != WINDOW:
        raise _wrong("completion_window", f"be {WINDOW}")
    if not _is_metadata(body.get("metadata")):
        raise _wrong("metadata", "have at most 16 texts of 512 characters, under names of 64")
    if type(body.get("output_expires_after", {})) not in (dict, type(None)):
        raise _wrong("output_expires_after", "be an object")
    return body


def _is_metadata(metadata: Any) -> bool:
    if metadata is None:
        return True
    return (
        type(metadata) is dict
        and len(metadata) <= 16
        and all(len(name) <= 64 and type(v) is str and len(v) <= 512 for name, v in metadata.items())
    )


def _wrong(name: str, must: str) -> FlorinError:
    return FlorinError("invalid_value", f"`{name}` must {must}.", param=name)
