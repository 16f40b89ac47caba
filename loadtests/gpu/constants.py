"""`python -m loadtests.gpu.constants`: fits the constants of the simulator's engine models, with one of which
the scheduler begins, to the committed results, and writes them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from adapters.placement.scheduling import figures
from adapters.placement.scheduling.figures import ENGINE_MODELS
from gateway.planning.simulator.hardware import LARGE, Hardware
from loadtests.gpu import summaries
from loadtests.gpu.results import Results, committed

FILE: Final = Path(figures.__file__)
_KV_CACHE = re.compile(r'kv_cache_size_tokens="(\d+)"')
Values = dict[str, float]


def measured(results: Results) -> Values:
    """The constants that the results determine."""
    steps = _steps(results)
    values = steps | _prompts(results, steps) | _loads(results) | _memory(results)
    return {name: round(value, 4) for name, value in values.items()}


def _fit(columns: Mapping[str, Any], milliseconds: Any, weights: Any) -> Values:
    """Least squares of the errors relative to `weights`."""
    matrix = np.stack(list(columns.values()), axis=1)
    fitted, _, rank, _ = np.linalg.lstsq(matrix / weights[:, None], milliseconds / weights, rcond=None)
    return dict(zip(columns, map(float, fitted), strict=True)) if rank == len(columns) else {}


def _loads(results: Results) -> Values:
    rows = summaries.load_times(results)
    if not rows:
        return {}
    ranks, loads = np.array([(row.rank, row.disk_ms) for row in rows], dtype=float).T
    line = _fit({"load": np.ones_like(ranks), "load_per_rank": ranks}, loads, loads)
    return line | {"activate": max(0.0, median(row.activate_ms for row in rows))}


def _steps(results: Results) -> Values:
    """A line in the batch, another one as soon as there is an adapter, and for each further adapter the same
    again; less in a large step."""
    table = summaries.latencies(results, "latency")
    if not table:
        return {}
    distinct, batch = np.array(list(table), dtype=float).T
    itl = np.array(list(table.values()))
    adapted, others, large = distinct > 0, np.maximum(distinct - 1, 0), batch >= LARGE
    columns = {
        "step": np.ones_like(batch),
        "step_per_sequence": batch,
        "lora": adapted,
        "lora_per_sequence": adapted * batch,
        "distinct": others * ~large,
        "distinct_large": others * large,
    }
    return _fit(columns, itl, itl)


def _prompts(results: Results, steps: Values) -> Values:
    """What a prompt alone takes beside a decoding step: a line in its length, and more if no CUDA graph
    covers it, for an adapter again."""
    table = summaries.prompts(results)
    if not (table and steps):
        return {}
    length = np.array([tokens for tokens, _ in table], dtype=float)
    adapter = np.array([model == "adapter" for _, model in table])
    ttft = np.array(list(table.values()))
    step = steps["step"] + steps["step_per_sequence"] + adapter * (steps["lora"] + steps["lora_per_sequence"])
    launched = length > max(results.run_of("prompts")["scale"]["batches"])
    columns = {
        "prompt": np.ones_like(length),
        "prompt_token": length,
        "launch": launched,
        "lora_launch": launched & adapter,
    }
    return _fit(columns, ttft - step, ttft)


def _memory(results: Results) -> Values:
    """The KV cache as the engine reports it, and what its slots take of it."""
    caches = [match for start in results.rounds("engine") if (match := _KV_CACHE.search(start["kv_cache"]))]
    if not caches:
        return {}
    scale = results.run_of("engine")["scale"]
    taken = -Hardware.of(kv_tokens=0).kv_left(scale["slots"], scale["ranks"][-1])
    return {"kv_tokens": int(caches[0][1]) + taken}


def rendered(tables: Mapping[str, Values]) -> str:
    """The file's text with these constants, by engine model."""
    text = FILE.read_text()
    for model, constants in tables.items():
        head, mark, rest = text.partition(f"{model.upper()}: Final = EngineFigures(\n")
        _, end, tail = rest.partition(")\n")
        rows = "".join(f"    {name}={value!r},\n" for name, value in constants.items())
        text = f"{head}{mark}{rows}{end}{tail}"
    return text


def main() -> int:
    FILE.write_text(rendered({model: measured(committed(model)) for model in ENGINE_MODELS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
