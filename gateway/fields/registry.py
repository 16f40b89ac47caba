"""All tables of the engines' fields, by their place."""

from __future__ import annotations

from gateway.fields.pooling import EMBEDDINGS, RERANK, SCORE
from gateway.fields.rule import Table
from gateway.fields.tables import TABLES
from gateway.fields.tokenization import DETOKENIZE, TOKENIZE

POOLING: dict[str, Table] = {"embeddings": EMBEDDINGS, "rerank": RERANK, "score": SCORE}
TOKENIZATION: dict[str, Table] = {"tokenize": TOKENIZE, "detokenize": DETOKENIZE}
ALL: dict[str, Table] = {**TABLES, **POOLING, **TOKENIZATION}


def without_rule(fields: dict[str, list[str]]) -> list[str]:
    """Those of vLLM's `fields` that no table has, as `where: name`."""
    return [f"{where}: {name}" for where, names in fields.items() for name in names if name not in ALL[where]]
