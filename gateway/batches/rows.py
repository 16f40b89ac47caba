"""Reading and listing the rows of files and batches, for whom they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, select, tuple_

from gateway.batches.documents import Batch, File, Owner
from gateway.metering.ledger.schema import batches, files

T = TypeVar("T", File, Batch)
V = TypeVar("V")
_TABLES: dict[type[Any], Table] = {File: files, Batch: batches}
DELETED = "deleted"
"""Status of a file that no longer exists, while its content is being removed."""
UPLOADING = "uploading"
PROCESSED = "processed"
_MANY = 200
"""Ids of one IN (…)."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list, by creation."""

    limit: int = 20
    after: str = ""
    """Id of the last object of the previous page; empty: from the beginning."""
    ascending: bool = False


class UnknownCursorError(Exception):
    """`after` is none of the owner's objects."""


def columns(kind: type[T]) -> list[ColumnElement[Any]]:
    table = _TABLES[kind]
    return [table.c[field.name] for field in fields(kind)]


def mine(kind: type[T], owner: Owner) -> list[ColumnElement[bool]]:
    """Conditions that only the owner's objects meet: to anybody else, they do not exist."""
    table = _TABLES[kind].c
    conditions = [table.tenant == owner.tenant, table.tenant_since == owner.since]
    if owner.key_id:
        conditions.append(table.key_id == owner.key_id)
    if kind is File:
        conditions.append(table.status == PROCESSED)
    return conditions


def read(kind: type[T], query: Select[Any], connection: Connection) -> list[T]:
    return [kind(**row) for row in connection.execute(query).mappings()]


def one(
    connection: Connection, kind: type[T], owner: Owner, object_id: str, *, lock: bool = False
) -> T | None:
    """`lock`: until the end of the write transaction."""
    table = _TABLES[kind]
    query = select(*columns(kind)).where(table.c.id == object_id, *mine(kind, owner))
    rows = read(kind, query.with_for_update() if lock else query, connection)
    return rows[0] if rows else None


def page(
    connection: Connection, kind: type[T], owner: Owner | None, paging: Page, *where: ColumnElement[bool]
) -> tuple[list[T], bool]:
    """A page, and whether more follow. `owner` None: of all tenants. Raises UnknownCursorError."""
    table = _TABLES[kind]
    query = select(*columns(kind)).where(*where, *(mine(kind, owner) if owner else ()))
    order = table.c.created_at, table.c.id
    if paging.after:
        known = select(*order).where(table.c.id == paging.after, *(mine(kind, owner) if owner else ()))
        last = connection.execute(known).one_or_none()
        if last is None:
            raise UnknownCursorError
        place = tuple_(*order)
        query = query.where(place > tuple(last) if paging.ascending else place < tuple(last))
    query = query.order_by(*(c.asc() if paging.ascending else c.desc() for c in order))
    rows = read(kind, query.limit(paging.limit + 1), connection)
    return rows[: paging.limit], len(rows) > paging.limit


def portions(ids: Sequence[V]) -> list[Sequence[V]]:
    return [ids[start : start + _MANY] for start in range(0, len(ids), _MANY)]
