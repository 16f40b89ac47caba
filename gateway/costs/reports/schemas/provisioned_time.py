"""When engines were provisioned, and what divides their hours. Times are Unix microseconds, UTC."""

from __future__ import annotations

from pydantic import Field

from gateway.schemas.base import Answer
from gateway.schemas.finance import Complete, End, Start


class Sighting(Answer):
    """When a worker saw an engine alive: from `started` to `seen`."""

    engine: str
    worker: str
    started: int
    phase: str = Field(description="`startup` or `up`.")
    seen: int
    gpu_type: str
    gpu_count: int
    region: str
    purchase: str
    base_model: str
    tenant: str = Field("", description="The tenant to which it was dedicated; empty: none.")


class Sightings(Answer):
    data: tuple[Sighting, ...]
    start: Start
    to: End
    bridged_us: int = Field(description="Shorter gaps between sightings count as provisioned.")
    next: str | None = Field(description="For `after`; null on the last page.")


class EngineHour(Answer):
    """Microseconds are not multiplied by GPUs."""

    hour: int
    engine: str
    gpu_type: str
    gpu_count: int
    region: str = Field(description="At the end of the hour, like `purchase` and `base_model`.")
    purchase: str
    base_model: str
    provisioned_us: int
    startup_us: int
    busy_us: int
    nano_gpu_hours: int = Field(description="The whole that a report divides.")
    calibration: int = Field(description="Id of the weights that divided it; 0: input to output 1:2.")


class CalibrationWeights(Answer):
    """GPU-picoseconds a token, or a load."""

    id: int
    gpu_type: str
    base_model: str
    valid_from: int
    prefill_ps: int
    cached_ps: int
    decode_ps: int
    kv_ps: int
    load_ps: int


class EngineHours(Complete):
    data: tuple[EngineHour, ...]
    calibrations: tuple[CalibrationWeights, ...]
    start: Start
    to: End
    next: str | None = Field(description="For `after`; null on the last page.")
