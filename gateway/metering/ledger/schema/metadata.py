from __future__ import annotations

from sqlalchemy import BigInteger, Integer, MetaData

schema = MetaData()

AutoId = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only INTEGER keys
