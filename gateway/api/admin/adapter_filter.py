"""Which adapters of a list are asked for."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

from fastapi import Query
from pydantic import BaseModel

from gateway.operations.transaction import Json


class AdapterState(StrEnum):
    CANARY = "canary"
    HELD = "held"
    PINNED = "pinned"
    LOADED = "loaded"
    UNLOADED = "unloaded"


class AdapterFilter(BaseModel):
    tenant: str | None = None
    base: Annotated[str | None, Query(description="Base model of the live version.")] = None
    engine: Annotated[str | None, Query(description="An engine that one of its versions is placed on.")] = (
        None
    )
    state: Annotated[
        AdapterState | None,
        Query(
            description="`canary`: has one; `held`: its guard holds its weight; `pinned`; `loaded`: an "
            "engine holds the live version; `unloaded`: none does."
        ),
    ] = None
    problems: Annotated[bool, Query(description="Only those with a version that is not served.")] = False

    def matches(self, adapter: Json) -> bool:
        """`adapter`: as its reader sees it, so a filter tells nobody more than that."""
        return (
            self.tenant in (None, adapter["adapter"].partition("/")[0])
            and self.base in (None, adapter["base_model"])
            and (self.engine is None or self.engine in {p["engine"] for p in adapter.get("placed", ())})
            and (self.state is None or _STATES[self.state](adapter))
            and (not self.problems or bool(adapter["trouble"]))
        )


def _held(adapter: Json) -> bool:
    canary = adapter["canary"]
    return canary is not None and canary["held"] is not None


_STATES: Final[dict[AdapterState, Callable[[Json], bool]]] = {
    AdapterState.CANARY: lambda adapter: adapter["canary"] is not None,
    AdapterState.HELD: _held,
    AdapterState.PINNED: lambda adapter: bool(adapter.get("pinned")),
    AdapterState.LOADED: lambda adapter: bool(adapter["loaded"]),
    AdapterState.UNLOADED: lambda adapter: not adapter["loaded"],
}
