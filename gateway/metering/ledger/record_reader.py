"""Reads many usage records. What they share is looked up once, and not joined to each of them, which takes
longer than reading the rest of the row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Table, bindparam, select, type_coerce
from sqlalchemy.types import NullType

from gateway.metering.ledger.schema import usage_names, usage_places, usage_records, usage_tenants
from gateway.metering.ledger.schema.usage import id_text

_MOST = 50_000
"""How many rows of a table are remembered."""
_PORTION = 500
_KEYS: Final = ("id", "request_id", "tenant", "place", "names")

Values = tuple[Any, ...]


class RecordReader:
    """`fields`: columns of `usage`, in the order in which records will have them. `billable` is as it is
    stored.

    Mutable: remembers what it looked up, which never changes."""

    def __init__(self, fields: Sequence[str]) -> None:
        own = [name for name in fields if name in usage_records.c and name not in _KEYS]
        stored = (type_coerce(usage_records.c[name], NullType) for name in (*_KEYS, *own))
        self.columns = tuple(stored)
        """What a query has to select, as stored: SQLAlchemy's conversions take as long as the rest of the
        row."""
        self._shared = [_Shared(usage_tenants), _Shared(usage_places), _Shared(usage_names)]
        known = ["id", "request_id", *(name for shared in self._shared for name in shared.names), *own]
        self._chosen = itemgetter(*(known.index(name) for name in fields))

    def records(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> Iterator[Values]:
        """Those of `rows`, which have `columns`; made one by one. One that lacks what it shares with others
        is left out, as in a join."""
        shared = (s.rows(connection, {row[n] for row in rows}) for n, s in enumerate(self._shared, 2))
        return _records(rows, self._chosen, *shared)


def _records(
    rows: Iterable[Sequence[Any]],
    chosen: Callable[[Values], Values],
    tenants: Mapping[int, Values],
    places: Mapping[int, Values],
    names: Mapping[int, Values],
) -> Iterator[Values]:
    for key, request_id, tenant, place, name, *own in rows:
        if tenant in tenants and place in places and name in names:
            request = request_id or f"req-{key[:14].hex()}"
            yield chosen((id_text(key), request, *tenants[tenant], *places[place], *names[name], *own))


class _Shared:
    """A table of what records share. Mutable: remembers rows."""

    def __init__(self, table: Table) -> None:
        columns = [column for column in table.columns if column.name not in {"id", "digest"}]
        self.names = [column.name for column in columns]
        self._query = select(table.c.id, *columns).where(table.c.id.in_(bindparam("ids", expanding=True)))
        self._rows: dict[int, Values] = {}

    def rows(self, connection: Connection, ids: set[int]) -> Mapping[int, Values]:
        """By number; those of `ids`, and maybe others."""
        if len(self._rows) > _MOST:
            self._rows = {}
        missing = [number for number in ids if number not in self._rows]
        for start in range(0, len(missing), _PORTION):
            rows = connection.execute(self._query, {"ids": missing[start : start + _PORTION]})
            self._rows |= {row[0]: tuple(row[1:]) for row in rows}
        return self._rows
