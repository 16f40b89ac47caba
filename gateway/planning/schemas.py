"""What `florin plan` answers."""

from __future__ import annotations

from typing import Any

from gateway.schemas.base import Answer


class PlanOption(Answer):
    """One kind of engine at one price. Without `engines`, no number of them meets the objectives."""

    gpu_type: str
    purchase: str
    region: str
    speed: float
    kv_tokens: int | None
    slots: int
    engines: int | None
    attainment: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    rate_per_gpu_hour: str
    cost_per_hour: str | None
    cost_per_million_tokens: str | None
    currency: str


class MergedOption(Answer):
    """An adapter that is worth engines into whose weights it is merged, of the cheapest kind."""

    adapter: str
    requests_per_second: float
    busy_engines: float
    """Engines that load adapters and that its traffic keeps busy."""
    merged_engines: int
    saved_engines: float
    saved_per_hour: str
    currency: str
    token_ms: float
    """Milliseconds from token to token on an engine that loads the adapter, at `merging.BATCH`."""
    merged_token_ms: float


class Plan(Answer):
    objectives: dict[str, float]
    traffic: dict[str, Any]
    approximations: tuple[str, ...]
    options: tuple[PlanOption, ...]
    merged: tuple[MergedOption, ...]
    unknown_speed: tuple[str, ...]
