"""The nouns of Florin's adapter side: frozen, typed, and stored as JSON documents.

Everything here is data. The code that changes it lives in `registration`, `loader` and `reconciler`.
"""

from __future__ import annotations

from adapters.model.adapter import Adapter, CanaryOutcome, Guard, PendingDeletion, Tombstone, Version
from adapters.model.documents import D, Document, dump, load
from adapters.model.engine import (
    DEDICATED,
    GENERATE,
    MAX_STOP_STRINGS,
    BaseModel,
    Drain,
    DriverName,
    Engine,
    Purchase,
    Release,
    Task,
    Trial,
    Unloads,
    has_labels,
    release_of,
)
from adapters.model.names import NAME_PATTERN, AdapterName, check_name
from adapters.model.placement import (
    Fingerprint,
    Placement,
    ServingStatus,
    SlotState,
    fingerprint_id,
    fingerprint_ids,
)

__all__ = [
    "DEDICATED",
    "GENERATE",
    "MAX_STOP_STRINGS",
    "NAME_PATTERN",
    "Adapter",
    "AdapterName",
    "BaseModel",
    "CanaryOutcome",
    "D",
    "Document",
    "Drain",
    "DriverName",
    "Engine",
    "Fingerprint",
    "Guard",
    "PendingDeletion",
    "Placement",
    "Purchase",
    "Release",
    "ServingStatus",
    "SlotState",
    "Task",
    "Tombstone",
    "Trial",
    "Unloads",
    "Version",
    "check_name",
    "dump",
    "fingerprint_id",
    "fingerprint_ids",
    "has_labels",
    "load",
    "release_of",
]
