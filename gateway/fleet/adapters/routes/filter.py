"""Which adapters of a list are asked for."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final

from fastapi import Query
from pydantic import BaseModel

from gateway.fleet.adapters.schemas.adapters import Adapter


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

    def matches(self, adapter: Adapter) -> bool:
        """`adapter`: as its reader sees it, so a filter tells nobody more than that."""
        return (
            self.tenant in (None, adapter.adapter.partition("/")[0])
            and self.base in (None, adapter.base_model)
            and (self.engine is None or self.engine in {place.engine for place in adapter.placed or ()})
            and (self.state is None or _STATES[self.state](adapter))
            and (not self.problems or bool(adapter.trouble))
        )


_STATES: Final[dict[AdapterState, Callable[[Adapter], bool]]] = {
    AdapterState.CANARY: lambda adapter: adapter.canary is not None,
    AdapterState.HELD: lambda adapter: adapter.canary is not None and adapter.canary.held is not None,
    AdapterState.PINNED: lambda adapter: bool(adapter.pinned),
    AdapterState.LOADED: lambda adapter: adapter.loaded,
    AdapterState.UNLOADED: lambda adapter: not adapter.loaded,
}
