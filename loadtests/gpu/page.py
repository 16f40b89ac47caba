"""docs/reference/gpu.md: what was measured on a GPU, and the constants that rest on it."""

from __future__ import annotations

from typing import Final

from adapters.placement.fingerprint import LIKE_BASE, UNLIKE_ITSELF
from adapters.placement.scheduling.figures import FIGURES
from gateway.costs.calibration.fit import UNITS, CalibrationError
from loadtests.gpu import summaries
from loadtests.gpu.results import COMMITTED, Results
from tests.tools.docs.markdown import code, document, table

DOLLARS = 3.0
"""Per GPU-hour, an example: costs are proportional to it."""
NOT_YET: Final = "Not measured yet."

_INTRO = """
Measured by `loadtests/gpu/` with a Llama of 8 billion parameters in bfloat16, its weights random, and with
adapters of all its linear layers. Every round is in `loadtests/results/gpu.json`; here are medians.
"""
_CONSTANTS = """
## The constants in use

Milliseconds and tokens. The scheduler begins with them, until an engine has shown its own; the simulator, and
with it `florin plan`, keeps them. They are in `adapters/placement/scheduling/figures.py`.
"""


def page() -> str:
    return rendered(Results.read(COMMITTED))


def rendered(results: Results) -> str:
    sections = (
        ("The engine under `florin engine run`", _machine(results)),
        ("A chat through Florin", _chat(results)),
        ("Loading an adapter", _loads(results)),
        ("Inter-token latency", _latency(results, "latency")),
        ("Inter-token latency without CUDA graphs", _latency(results, "latency_eager")),
        ("Time to the first token of a prompt alone", _prompts(results)),
        ("More adapters than slots", _cliff(results)),
        ("The same streams at the engine and through Florin", _through_florin(results)),
        ("Unloading", _unload(results)),
        ("The cost of a token", _weights(results)),
        ("Answers to the verification's probe", _distances(results)),
        ("Scored prompts beside adapters", _prompt_logprobs(results)),
        ("Power", _power(results)),
    )
    parts = [f"## {title}\n\n{text or NOT_YET}{_state(results, title)}" for title, text in sections]
    constants = table(
        ("constant", "value", "source", "date"),
        ((code(name), f"{f.value:g}", f.source, f.date) for name, f in FIGURES.items()),
    )
    return document("Measured on a GPU", _INTRO, *parts, _CONSTANTS, constants)


_STAGES: Final = {
    "A chat through Florin": "chat",
    "Loading an adapter": "load_times",
    "Inter-token latency": "latency",
    "Inter-token latency without CUDA graphs": "latency_eager",
    "Time to the first token of a prompt alone": "prompts",
    "More adapters than slots": "cliff",
    "The same streams at the engine and through Florin": "through_florin",
    "Unloading": "unload",
    "The cost of a token": "calibrate",
    "Answers to the verification's probe": "fingerprints",
    "Scored prompts beside adapters": "prompt_logprobs",
    "Power": "power",
}


def _state(results: Results, title: str) -> str:
    """Says so if a stage did not end."""
    measured = results.stages.get(_STAGES.get(title, ""))
    if measured is None or measured.status == "complete":
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
        f"In nats. Verification calls a version like the base model up to {LIKE_BASE}, and unlike itself "
        f"over {UNLIKE_ITSELF}."
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
