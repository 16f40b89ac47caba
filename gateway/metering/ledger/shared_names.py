"""What many usage records share, stored once each: tenants, places, and names that occur together."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from functools import cache
from operator import attrgetter
from random import getrandbits
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Table, bindparam, select
from sqlalchemy import insert as plain_insert

from gateway.metering.ledger.database import insert_in
from gateway.metering.ledger.schema import ledger_state, usage_names, usage_places, usage_tenants

shared_by: Final = attrgetter(
    "tenant", "engine", "gpu_type", "gpu_count", "key_id", "adapter", "version", "base_model", "usage_source",
    "outcome", "cost_centre", "service_tier", "task",
)  # fmt: skip  # one name a line says no more
"""What a record shares with others."""
Numbers = tuple[int, int, int]
"""The numbers of a record's tenant, place and names."""
_Key = tuple[Any, ...]
_PORTION = 500
_MOST = 50_000
"""How many names are remembered."""


class _Dimension:
    """A table of them. `key`: the columns that tell its rows apart; the first is almost enough for that."""

    def __init__(self, table: Table, *key: str) -> None:
        self._put = plain_insert(table)
        self._columns = [column.name for column in table.columns if column.name != "id"]
        first, *rest = (table.c[name] for name in key)
        self._query = select(first, *rest, table.c.id).where(first.in_(bindparam("firsts", expanding=True)))

    def known(self, connection: Connection, keys: Collection[_Key]) -> dict[_Key, int]:
        """Key → number."""
        known: dict[_Key, int] = {}
        firsts = list({key[0] for key in keys})
        for start in range(0, len(firsts), _PORTION):
            rows = connection.execute(self._query, {"firsts": firsts[start : start + _PORTION]})
            known |= {tuple(key): number for *key, number in rows}
        return known

    def add(self, connection: Connection, rows: Collection[_Key]) -> None:
        connection.execute(self._put, [dict(zip(self._columns, row, strict=True)) for row in rows])


_TENANTS = _Dimension(usage_tenants, "tenant")
_PLACES = _Dimension(usage_places, "engine", "gpu_type", "gpu_count")
_NAMES = _Dimension(usage_names, "digest")
_STATE = "names"
_VERSION = select(ledger_state.c.value).where(ledger_state.c.name == _STATE)


class SharedNames:
    """Their numbers, for write transactions that have their batch number, and so follow one another.

    Mutable: what it remembers, and of which version of the tables, a random number that changes with each
    addition. Others may add names, and a database that lost its last commits in a failover gives their
    numbers to other names: both change the version."""

    def __init__(self) -> None:
        self._numbers: dict[_Key, Numbers] = {}
        self._version: int | None = None

    def __repr__(self) -> str:
        return f"<SharedNames {len(self._numbers)}>"

    def numbers(self, connection: Connection, shared: Collection[_Key]) -> Mapping[_Key, Numbers]:
        """The numbers of `shared`, and maybe of others. New names are added."""
        version = connection.execute(_VERSION).scalar()
        if version is None or version != self._version or len(self._numbers) > _MOST:
            self._numbers, self._version = {}, version
        if missing := {values for values in shared if values not in self._numbers}:
            keys = {values: (values[:1], values[1:4], (_digest(values[4:]),)) for values in missing}
            tenants = self._look_up(connection, _TENANTS, {key[0]: key[0] for key in keys.values()})
            places = self._look_up(connection, _PLACES, {key[1]: key[1] for key in keys.values()})
            rows = {key[2]: key[2] + values[4:] for values, key in keys.items()}
            names = self._look_up(connection, _NAMES, rows)
            for values, (tenant, place, digest) in keys.items():
                self._numbers[values] = tenants[tenant], places[place], names[digest]
            if self._version is None:  # an upgrade filled the tables
                self._renew_version(connection)
        return self._numbers

    def _look_up(
        self, connection: Connection, dimension: _Dimension, rows: Mapping[_Key, _Key]
    ) -> dict[_Key, int]:
        """Key → number. `rows`: the row of each key."""
        known = dimension.known(connection, rows)
        if new := rows.keys() - known:
            dimension.add(connection, [rows[key] for key in rows if key in new])
            known |= dimension.known(connection, new)
            self._renew_version(connection)
        return known

    def _renew_version(self, connection: Connection) -> None:
        self._version = getrandbits(62)
        connection.execute(_new_version(connection.dialect.name), {"value": self._version})


def _digest(names: _Key) -> bytes:
    """Without the task, which is last, if there is none: as rows were before there were tasks."""
    return hashlib.sha256(orjson.dumps(names if names[-1] else names[:-1])).digest()


@cache
def _new_version(dialect: str) -> Any:
    put = insert_in(dialect, ledger_state).values(name=_STATE, value=bindparam("value"))
    return put.on_conflict_do_update(index_elements=["name"], set_={"value": put.excluded.value})
