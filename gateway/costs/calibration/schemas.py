"""Calibrations: the cost of a token on a GPU type, as measured by `florin calibrate`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from gateway.schemas.base import Answer, Label, StrictBody

Picoseconds = Annotated[int, Field(ge=0, le=10**18)]


class NewWeights(StrictBody):
    prefill: Picoseconds
    cached: Picoseconds
    decode: Picoseconds
    kv: Picoseconds
    load: Picoseconds


class NewCalibration(StrictBody):
    gpu_type: Label
    base_model: Label
    engine_version: str = Field("", max_length=200)
    valid_from: str | None = Field(
        None, description="ISO 8601, UTC; rounded down to the hour. Default: the current hour."
    )
    weights_ps: NewWeights = Field(description="GPU-picoseconds per unit.")
    document: dict[str, Any] = Field(
        default_factory=dict,
        description="Details of the measurement: intervals, samples, quality of the fit.",
    )


class Calibration(Answer):
    """Weights are GPU-picoseconds per unit."""

    id: int
    gpu_type: str
    base_model: str
    engine_version: str
    valid_from: str = Field(description="ISO 8601, UTC.")
    recorded_at: str = Field(description="ISO 8601, UTC.")
    prefill_ps: int
    cached_ps: int
    decode_ps: int
    kv_ps: int
    load_ps: int
    document: dict[str, Any] = Field(description="Details of the measurement, as they were sent.")
