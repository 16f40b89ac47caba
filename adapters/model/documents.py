"""How the nouns are stored: as JSON documents."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter

from adapters.model.adapter import Adapter, PendingDeletion, Tombstone, Version
from adapters.model.engine import BaseModel, Engine
from adapters.model.placement import Fingerprint, Placement, ServingStatus

Document = (
    BaseModel
    | Engine
    | Version
    | Adapter
    | Placement
    | Tombstone
    | PendingDeletion
    | Fingerprint
    | ServingStatus
)
D = TypeVar(
    "D",
    BaseModel,
    Engine,
    Version,
    Adapter,
    Placement,
    Tombstone,
    PendingDeletion,
    Fingerprint,
    ServingStatus,
)
_codecs: dict[type[Any], TypeAdapter[Any]] = {t: TypeAdapter(t) for t in get_args(Document)}


def dump(document: Document) -> str:
    """Without fields at their defaults, which are most: every worker keeps every document."""
    return _codecs[type(document)].dump_json(document, exclude_defaults=True).decode()


def load(kind: type[D], text: str | bytes) -> D:
    document: D = _codecs[kind].validate_json(text)
    return document
