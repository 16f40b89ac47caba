"""What the routes of files and batches share: who asks, and lists."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

import orjson

from gateway.batches.batch_store import BatchStore
from gateway.batches.documents import Owner
from gateway.batches.file_store import FileStore
from gateway.batches.rows import Page, UnknownCursorError
from gateway.batches.runner import BatchRunner
from gateway.dataplane.exchange import Exchange
from gateway.errors import FlorinError
from gateway.lifecycle import Lifecycle
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.tenants.authentication import authenticate_caller
from gateway.tenants.directory import Key
from gateway.tenants.scopes import check_endpoint


class Objects:
    """The stores, and the worker's threads for them."""

    def __init__(self, lifecycle: Lifecycle, runner: BatchRunner) -> None:
        self.lifecycle = lifecycle
        self.runner = runner
        self.in_thread = runner.in_thread

    @property
    def files(self) -> FileStore:
        return self.runner.files

    @property
    def batches(self) -> BatchStore:
        return self.runner.batches

    def caller(self, exchange: Exchange, *, changes: bool) -> tuple[Key, Owner]:
        """The request's key, and whose objects it may see: its tenant's, or its own if its scopes are
        narrower than its role, since files have the prompts and answers of every adapter. Raises
        FlorinError."""
        lifecycle = self.lifecycle
        key = authenticate_caller(exchange, lifecycle.directory, lifecycle.follower)
        if changes and key.scopes.read_only:
            check_endpoint(key, exchange.transport.path)
        tenant = lifecycle.directory.tenants.get(key.tenant)
        if tenant is None:  # it was removed just now
            raise FlorinError("invalid_api_key", "This API key does not exist.")
        narrow = bool(key.scopes.adapters or key.scopes.endpoints)
        return key, Owner(tenant.name, tenant.created, key.id if narrow else "")


@asynccontextmanager
async def ledger_errors() -> AsyncGenerator[None, None]:
    try:
        yield
    except LedgerUnavailableError as error:
        raise FlorinError(
            "ledger_unavailable", "Files and batches are not available at the moment.", retry_after=5
        ) from error
    except UnknownCursorError:
        raise FlorinError(
            "invalid_value", "`after` must be the id of an object of this list.", param="after"
        ) from None


def query_of(exchange: Exchange, allowed: frozenset[str]) -> dict[str, str]:
    """The query's parameters. Raises FlorinError for unknown and repeated ones."""
    parameters: dict[str, str] = {}
    try:
        pairs = parse_qsl(exchange.transport.query.decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise FlorinError("invalid_value", "The query cannot be read.") from None
    for name, value in pairs:
        if name not in allowed or name in parameters:
            raise FlorinError(
                "unsupported_parameter", f"`{name[:80]}` is not supported, or given twice.", param=name[:80]
            )
        parameters[name] = value
    return parameters


def page_of(query: dict[str, str], *, default: int, most: int) -> Page:
    """Raises FlorinError."""
    text, order = query.get("limit", str(default)), query.get("order", "desc")
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise FlorinError("invalid_value", f"`limit` must be from 1 to {most:,}.", param="limit")
    if order not in ("asc", "desc"):
        raise FlorinError("invalid_value", "`order` must be asc or desc.", param="order")
    after = query.get("after", "")
    if after and not storable_id(after):
        raise UnknownCursorError
    return Page(int(text), after, order == "asc")


def storable_id(text: str) -> bool:
    """Whether it may be an id. No database stores NUL."""
    return len(text) <= 40 and text.isascii() and text.isprintable()


def listing(objects: list[dict[str, Any]], *, more: bool) -> bytes:
    return orjson.dumps(
        {
            "object": "list",
            "data": objects,
            "first_id": objects[0]["id"] if objects else None,
            "last_id": objects[-1]["id"] if objects else None,
            "has_more": more,
        }
    )
