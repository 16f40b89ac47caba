"""What an engine takes for what it does: one list for the scheduler's prior costs and the simulator, so that
a measurement replaces both.

`python -m loadtests.gpu.constants` writes the table from the results of loadtests/gpu/, as far as they go.
docs/reference/gpu.md shows it. Milliseconds and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    source: str
    date: str


PUBLISHED: Final = "fitted to public measurements of vLLM 0.8.5 with Llama-3.1-8B on one H100"
TUNED: Final = "tuned in simulation"

FIGURES: Final[Mapping[str, Figure]] = {
    "step": Figure(9.2, PUBLISHED, "2026-11-23"),
    "step_per_sequence": Figure(0.036, PUBLISHED, "2026-11-23"),
    "lora": Figure(3.3, PUBLISHED, "2026-11-23"),
    "lora_per_sequence": Figure(0.068, PUBLISHED, "2026-11-23"),
    "distinct": Figure(0.66, PUBLISHED, "2026-11-23"),
    "distinct_power": Figure(0.8, PUBLISHED, "2026-11-23"),
    "prompt_token": Figure(0.066, PUBLISHED, "2026-11-23"),
    "activate": Figure(7.0, PUBLISHED, "2026-11-23"),
    "load": Figure(46.0, PUBLISHED, "2026-11-23"),
    "load_per_rank": Figure(3.0, PUBLISHED, "2026-11-23"),
    "kv_tokens": Figure(400000.0, PUBLISHED, "2026-11-23"),
    "slot_tokens": Figure(50.0, PUBLISHED, "2026-11-23"),
    "slot_tokens_per_rank": Figure(44.0, PUBLISHED, "2026-11-23"),
    "stall": Figure(0.35, TUNED, "2026-11-23"),
    "per_request": Figure(18.0, TUNED, "2026-11-23"),
    "per_prompt_token": Figure(0.065, TUNED, "2026-11-23"),
    "distinct_in_flight": Figure(600.0, TUNED, "2026-11-23"),
    "evict": Figure(60.0, TUNED, "2026-11-23"),
    "wait_for_slot": Figure(3000.0, TUNED, "2026-11-23"),
}
