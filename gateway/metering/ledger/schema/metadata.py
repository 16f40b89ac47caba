from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, Text

schema = MetaData()

AutoId = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only INTEGER keys


def by_whom(verb: str, *, unless: str | None = None) -> tuple[Column[Any], Column[Any]]:
    """The columns of when something was done, and by whom, like `approved_at` and `approved_by`. `unless`:
    what it means that both are null; None: they never are."""
    optional = unless is not None
    return (
        Column(f"{verb}_at", BigInteger, nullable=optional, comment=unless),
        Column(f"{verb}_by", Text, nullable=optional, comment="id of the key"),
    )
