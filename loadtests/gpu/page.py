"""docs/reference/gpu.md: what was measured on a GPU, and the constants that rest on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mode
from typing import Final

from adapters.placement.fingerprint import BASE_ANSWERS, LIKE_BASE, NOISE, UNLIKE_ITSELF
from adapters.placement.scheduling.figures import ENGINE_MODELS, SCHEDULER, Figure
from gateway.costs.calibration.fit import UNITS, CalibrationError
from loadtests.gpu import summaries
from loadtests.gpu.results import COMMITTED, Results
from tests.tools.docs.markdown import code, document, table

DOLLARS = 3.0
"""Per GPU-hour, an example: costs are proportional to it."""
NOT_YET: Final = "Not measured yet."

CONCLUSIONS: Final = Path(__file__).with_name("conclusions.md")
CONCLUDED_FROM: Final = "2026-11-27T07:04:31+00:00"
"""The run that they are about."""

_INTRO = """
Measured by `loadtests/gpu/` with a Llama of 8 billion parameters in bfloat16, its weights random, and with
adapters of all its linear layers. Every round is in `loadtests/gpu/measured.json`; in the tables are medians.
"""
_CONSTANTS = """
## The constants in use

Milliseconds and tokens, in `adapters/placement/scheduling/figures.py`. The scheduler begins with those of the
H200, until an engine has shown its own. The simulator keeps them: `florin plan --engine-model` and `python -m
loadtests.sim --engine-model` take either. `Hardware` in `gateway/planning/simulator/hardware.py` says how
they add up to the time of a step.

Fitted to the tables above, those of the H200 err by at most 6 % in any cell, and by 2 % on average in
inter-token latencies. They were not fitted to the throughput with 16 slots: the simulated engine is within
10 % of the table with 17 to 32 adapters in flight, and 17 to 28 % too fast with 8, 16 and 48, since it has no
API server. `python -m loadtests.sim fit` shows all of it.
"""


def page() -> str:
    return rendered(Results.read(COMMITTED))


def rendered(results: Results) -> str:
    sections = (
        ("The engine under `florin engine run`", "engine", _machine(results)),
        ("A chat through Florin", "chat", _chat(results)),
        ("Loading an adapter", "load_times", _loads(results)),
        ("Inter-token latency", "latency", _latency(results, "latency")),
        ("Inter-token latency without CUDA graphs", "latency_eager", _latency(results, "latency_eager")),
        ("Time to the first token of a prompt alone", "prompts", _prompts(results)),
        ("More adapters than slots", "cliff", _cliff(results)),
        ("The same streams at the engine and through Florin", "through_florin", _through_florin(results)),
        ("Unloading", "unload", _unload(results)),
        ("The cost of a token", "calibrate", _weights(results)),
        ("Answers to the verification's probe", "fingerprints", _distances(results)),
        ("Scored prompts beside adapters", "prompt_logprobs", _prompt_logprobs(results)),
        ("Power", "power", _power(results)),
    )
    parts = [f"## {title}\n\n{text or NOT_YET}{_state(results, stage)}" for title, stage, text in sections]
    if any(run["at"] == CONCLUDED_FROM for run in results.runs):
        parts.insert(0, CONCLUSIONS.read_text().strip())
    return document("Measured on a GPU", _INTRO, *parts, _CONSTANTS, _constants())


def _constants() -> str:
    columns = [model.figures for model in ENGINE_MODELS.values()]
    rows = ((code(name), *(f"{figures[name].value:g}" for figures in columns)) for name in columns[0])
    engines = table(("of an engine", *ENGINE_MODELS), rows)
    sources = table(
        ("engine model", "from", "except"),
        ((code(name), model.what, _exceptions(model.figures)) for name, model in ENGINE_MODELS.items()),
    )
    scheduler = table(
        ("of the scheduler only", "value", "source", "date"),
        ((code(name), f"{f.value:g}", f.source, f.date) for name, f in SCHEDULER.items()),
    )
    return f"{engines}\n\n{sources}\n\n{scheduler}"


def _exceptions(figures: Mapping[str, Figure]) -> str:
    """Those whose source is not that of most."""
    usual = mode(figure.source for figure in figures.values())
    others = {name: figure.source for name, figure in figures.items() if figure.source != usual}
    return "; ".join(f"{code(name)}: {source}" for name, source in others.items())


def _state(results: Results, stage: str) -> str:
    """Says so if a stage did not end."""
    measured = results.stages.get(stage)
    if measured is None or measured.status == "complete" or stage == "engine":
        return ""
    end = "cut off" if measured.status == "cut" else "ended by an error"
    return f"\n\nThis measurement was {end}: `{measured.error}`"


def _machine(results: Results) -> str:
    rows = (
        (
            run["at"], run["gpu"], str(run.get("driver", "")),
            ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        )
        for run in results.runs
    )  # fmt: skip
    starts = ((r["mode"], f"{r['seconds']:.0f} s") for r in results.rounds("engine"))
    if not results.runs:
        return ""
    return "\n\n".join(
        (
            table(("at", "GPU", "driver", "versions"), rows),
            table(("engine", "until it is up"), starts),
        )
    )


def _chat(results: Results) -> str:
    rounds = results.rounds("chat")
    rows = (
        (r["tenant"], r["adapter"], f"{r['answered_ms']:.0f}", str(r["usage"]["completion_tokens"]))
        for r in rounds
        if "adapter" in r
    )
    heads = ("tenant", "answered by", "milliseconds", "tokens")
    return table(heads, rows) if rounds else ""


def _loads(results: Results) -> str:
    heads = (
        "rank",
        "MB",
        "from disk, ms",
        "from the page cache, ms",
        "from CPU memory to a slot, ms",
        "rounds",
    )
    rows = [
        (str(r.rank), f"{r.megabytes:.1f}", f"{r.disk_ms:.1f}", f"{r.page_cache_ms:.1f}",
         f"{r.activate_ms:.1f}", str(r.rounds))
        for r in summaries.load_times(results)
    ]  # fmt: skip
    return table(heads, rows) if rows else ""


def _latency(results: Results, stage: str) -> str:
    latencies = summaries.latencies(results, stage)
    distinct = sorted({number for number, _ in latencies})
    batches = sorted({batch for _, batch in latencies})
    heads = ("batch", *("no adapter, ms" if not d else f"{d}, ms" for d in distinct))
    rows = (
        (str(b), *(f"{latencies[d, b]:.2f}" if (d, b) in latencies else "" for d in distinct))
        for b in batches
    )
    return table(heads, rows) if latencies else ""


def _prompts(results: Results) -> str:
    times = summaries.prompts(results)
    lengths = sorted({length for length, _ in times})
    rows = ((str(n), f"{times[n, 'base']:.1f}", f"{times[n, 'adapter']:.1f}") for n in lengths)
    return table(("tokens", "base model, ms", "adapter, ms"), rows) if times else ""


def _through_florin(results: Results) -> str:
    rows = [
        (r["way"], str(r["at_once"]), f"{r['tokens_per_second']:,.0f}", f"{r['first_chunk_ms']:.1f}",
         f"{r['mean_ms']:.0f}", f"{r['slowest_ms']:.0f}")
        for r in results.rounds("through_florin")
    ]  # fmt: skip
    heads = ("asked", "at once", "tokens per second", "first chunk, ms", "whole answer, ms", "slowest, ms")
    return table(heads, rows) if rows else ""


def _cliff(results: Results) -> str:
    heads = ("adapters in flight", "slots", "tokens per second", "TTFT, ms", "slowest request, s")
    rows = [
        (
            str(c.distinct),
            str(c.slots),
            f"{c.tokens_per_second:,.0f}",
            f"{c.ttft_ms:,.0f}",
            f"{c.slowest_seconds:.2f}",
        )
        for c in summaries.cliff(results)
    ]
    return table(heads, rows) if rows else ""


def _unload(results: Results) -> str:
    heads = (
        "unload",
        "request that ran",
        "request after it",
        "same name again",
        "first load, ms",
        "load again, ms",
    )
    rows = [
        (str(r["unload_status"]), r["running_request"], str(r["request_after_status"]),
         str(r["load_again_status"]), f"{r['load_ms']:.1f}", f"{r['load_again_ms']:.1f}")
        for r in results.rounds("unload")
    ]  # fmt: skip
    return table(heads, rows) if rows else ""


def _weights(results: Results) -> str:
    try:
        weights = summaries.token_weights(results)
    except CalibrationError:
        return ""
    heads = ("GPU time per", "microseconds", "95 % interval", f"dollars per million, at {DOLLARS:g} an hour")
    rows = (
        (
            unit,
            _micros(w.picoseconds),
            f"{_micros(w.low)} to {_micros(w.high)}",
            f"{w.picoseconds / 3.6e9 * DOLLARS:.3f}",
        )
        for w, unit in zip(weights, UNITS, strict=True)
    )
    return table(heads, rows)


def _micros(picoseconds: int) -> str:
    return f"{picoseconds / 1e6:,.3f}"


def _distances(results: Results) -> str:
    rows = [
        (d.what, f"{d.mean:.5f}", f"{d.largest:.5f}", str(d.probes)) for d in summaries.distances(results)
    ]
    limits = (
        f"In nats. Verification calls a version like the base model up to {LIKE_BASE}, or up to {NOISE:g} "
        f"times the distance among {BASE_ANSWERS} answers of the base model, and unlike itself over "
        f"{UNLIKE_ITSELF}."
    )
    return f"{limits}\n\n{table(('distance of', 'mean', 'largest', 'probes'), rows)}" if rows else ""


def _prompt_logprobs(results: Results) -> str:
    rows = [
        (
            ", ".join(r["fields"]),
            r["model"],
            str(r.get("status", "none")),
            "alive" if r["engine_alive"] else "dead",
        )
        for r in results.rounds("prompt_logprobs")
    ]
    return table(("fields", "model", "status", "engine afterwards"), rows) if rows else ""


def _power(results: Results) -> str:
    watts = summaries.watts(results)
    if not watts:
        return ""
    limit = results.run_of("power")["limit_watts"]
    phases = ((phase, f"{mean:.0f}") for phase, mean in watts.items())
    return f"The limit is {limit:.0f} W.\n\n{table(('phase', 'mean watts'), phases)}"
