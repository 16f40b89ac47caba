"""`python -m loadtests.gpu.constants`: fits the constants of the scheduler and the simulator to the committed
results, and writes them. What was not measured stays as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from adapters.placement.scheduling import figures
from adapters.placement.scheduling.figures import FIGURES, Figure
from gateway.costs.calibration.fit import CalibrationError
from loadtests.gpu import summaries
from loadtests.gpu.results import COMMITTED, Results

FILE: Final = Path(figures.__file__)
_MARK = "FIGURES: Final[Mapping[str, Figure]] = {\n"


def measured(results: Results) -> dict[str, Figure]:
    """The constants that the results determine. Empty for a dry run."""
    if any(run["gpu"] == "none" for run in results.runs):
        return {}
    values = {**_loads(results), **_steps(results), **_prompts(results)}
    return {
        name: Figure(round(float(value), 4), *_source(results, stage))
        for name, (value, stage) in values.items()
    }


def _source(results: Results, stage: str) -> tuple[str, str]:
    run = results.run_of(stage)
    rank = run["scale"]["ranks"][-1]
    return f"{run['gpu']}, vLLM {run['engine']}, 8B-shaped Llama, slots of rank {rank}", run["at"][:10]


Values = Mapping[str, tuple[float, str]]
"""By constant: the value, and the stage that it comes from."""


def _loads(results: Results) -> Values:
    rows = summaries.load_times(results)
    if len(rows) < 2:
        return {}
    per_rank, base = np.polyfit([row.rank for row in rows], [row.disk_ms for row in rows], 1)
    stage = "load_times"
    activate = median(row.activate_ms for row in rows)
    return {
        "load": (base, stage),
        "load_per_rank": (per_rank, stage),
        "activate": (max(0.0, activate), stage),
    }


def _steps(results: Results) -> Values:
    """The base model's step is a line in the batch. The first adapter adds another line, the others
    a power of their number."""
    stage = "latency"
    table = summaries.latencies(results, stage)
    plain = {batch: itl for (distinct, batch), itl in table.items() if not distinct}
    if len(plain) < 2:
        return {}
    slope, step = np.polyfit(list(plain), list(plain.values()), 1)
    values = {"step": (step, stage), "step_per_sequence": (slope, stage)}
    single = {b: itl - step - slope * b for (distinct, b), itl in table.items() if distinct == 1}
    if len(single) < 2:
        return values
    lora_slope, lora = np.polyfit(list(single), list(single.values()), 1)
    values |= {"lora": (lora, stage), "lora_per_sequence": (lora_slope, stage)}
    beyond = [
        (distinct - 1, itl - step - slope * b - lora - lora_slope * b)
        for (distinct, b), itl in table.items()
        if distinct > 1
    ]
    positive = [(others, extra) for others, extra in beyond if extra > 0]
    if len({others for others, _ in positive}) > 1:
        others, extra = np.log(positive).T
        power, scale = np.polyfit(others, extra, 1)
        values |= {"distinct": (float(np.exp(scale)), stage), "distinct_power": (power, stage)}
    return values


def _prompts(results: Results) -> Values:
    try:
        weights = summaries.token_weights(results)
    except CalibrationError:
        return {}
    prefill = {w.term: w for w in weights}["prefill"]
    milliseconds = (prefill.picoseconds / 1e9, "calibrate")
    return {"prompt_token": milliseconds, "per_prompt_token": milliseconds} if prefill.measured else {}


def rendered(constants: Mapping[str, Figure]) -> str:
    """The file's text with these constants."""
    head, mark, _ = FILE.read_text().partition(_MARK)
    rows = "".join(
        f"    {json.dumps(name)}: Figure({f.value!r}, {_quoted(f.source)}, {json.dumps(f.date)}),\n"
        for name, f in constants.items()
    )
    return f"{head}{mark}{rows}}}\n"


def _quoted(source: str) -> str:
    shared = {"PUBLISHED": figures.PUBLISHED, "TUNED": figures.TUNED}
    return next((name for name, text in shared.items() if text == source), json.dumps(source))


def main() -> int:
    constants = measured(Results.read(COMMITTED))
    FILE.write_text(rendered({name: constants.get(name, figure) for name, figure in FIGURES.items()}))
    print(f"{len(constants)} of {len(FIGURES)} constants are measured.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
