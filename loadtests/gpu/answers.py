"""The probe by which Florin verifies versions, and what it calls a scored prompt."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from adapters.placement.fingerprint import PATHS, SCORED, ProbeAnswer, distance, parse, request
from loadtests.gpu.engine_calls import EngineCalls

__all__ = ["SCORED", "apart", "probe"]


async def probe(engine: EngineCalls, model: str) -> dict[str, Any]:
    """The answer's numbers. Raises CallError."""
    answer = await engine.post(PATHS["generate"], request(model, secrets.token_hex(8)))
    parsed = parse(answer.body)
    return {"texts": list(parsed.texts), "logprobs": [round(number, 6) for number in parsed.logprobs]}


def apart(first: Sequence[float], second: Sequence[float]) -> float:
    """Their distance as verification computes it, in nats."""
    nats = distance(ProbeAnswer((), tuple(first)), ProbeAnswer((), tuple(second)))
    assert nats is not None
    return nats
