"""docs/reference/gpu.md: what was measured on GPUs, and the constants that rest on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from adapters.placement.fingerprint import BASE_ANSWERS, LIKE_BASE, NOISE, UNLIKE_ITSELF
from adapters.placement.scheduling.costs import STALL, EngineCosts
from adapters.placement.scheduling.figures import ENGINE_MODELS
from gateway.costs.calibration.fit import UNITS, CalibrationError
from gateway.planning.simulator.hardware import Hardware
from loadtests.gpu import summaries
from loadtests.gpu.results import Results, committed
from tests.tools.docs.markdown import code, document, table

DOLLARS = 3.0
"""Per GPU-hour, an example: costs are proportional to it."""
NOT_YET: Final = "Not measured yet."

CHARGES: Final = ("per_request", "per_prompt_token", "distinct", "evict", "wait_for_slot")
CONCLUSIONS: Final = Path(__file__).with_name("conclusions.md")
CONCLUDED_FROM: Final = {"2026-11-27T07:04:31+00:00", "2026-11-27T10:47:47+00:00"}
"""The runs that they are about."""

_INTRO = """
Measured by `loadtests/gpu/` with a Llama of 8 billion parameters in bfloat16, its weights random, and with
adapters of all its linear layers. Every round is in `loadtests/gpu/measured/`; in the tables are medians, of
the H200 / of the H100, or one figure where they agree.
"""
_LIMITS = (
    f"In nats. Verification calls a version like the base model up to {LIKE_BASE}, or up to {NOISE:g} times "
    f"the distance among {BASE_ANSWERS} answers of the base model, and unlike itself over {UNLIKE_ITSELF}."
)
_CONSTANTS = """
## The constants in use

Milliseconds and tokens, in `adapters/placement/scheduling/figures.py`; the scheduler's own are in `costs.py`
beside it. The scheduler begins with those of the H200, until an engine has shown its own. The simulator keeps
them: `florin plan --engine-model` and `python -m loadtests.sim --engine-model` take either. `Hardware` in
`gateway/planning/simulator/hardware.py` says how they add up to the time of a step.

Fitted to the tables above, they err in inter-token latencies by at most 6 % in any cell, and by 2 % on
average; in loads by at most 2 % (H200) and 6 % (H100), and in first tokens by 6 % and 11 %. They were not
fitted to the throughput with 16 slots: the simulated engine is 2 % slower to 28 % faster than the H200's, and
13 % slower to 20 % faster than the H100's. It has no API server. `python -m loadtests.sim fit` shows all of
it.

The scheduler's own charges were tuned in simulation on 2026-11-23, with a model of an H100 that was fitted to
public measurements of vLLM 0.8.5.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """What one GPU showed."""

    heads: tuple[str, ...]
    keys: int
    """The first columns, which say what a row is about."""
    rows: list[tuple[str, ...]]

    def named(self) -> dict[tuple[str, ...], dict[str, str]]:
        """The values of each row by column, by its key. A key that comes again has its number behind it."""
        seen: Counter[tuple[str, ...]] = Counter()
        rows = {}
        for row in self.rows:
            key = row[: self.keys]
            rows[*key, str(seen[key])] = dict(zip(self.heads[self.keys :], row[self.keys :], strict=True))
            seen[key] += 1
        return rows


def page() -> str:
    return rendered({model.gpu: committed(name) for name, model in ENGINE_MODELS.items()})


def rendered(gpus: Mapping[str, Results]) -> str:
    """`gpus`: the results of each, by its name."""
    sections: tuple[tuple[str, str, Callable[[Results], Table | None]], ...] = (
        ("A chat through Florin", "chat", _chat),
        ("Loading an adapter", "load_times", _loads),
        ("Inter-token latency", "latency", lambda r: _latency(r, "latency")),
        ("Inter-token latency without CUDA graphs", "latency_eager", lambda r: _latency(r, "latency_eager")),
        ("Time to the first token of a prompt alone", "prompts", _prompts),
        ("More adapters than slots", "cliff", _cliff),
        ("The same streams at the engine and through Florin", "through_florin", _through_florin),
        ("Unloading", "unload", _unload),
        ("The cost of a token", "calibrate", _weights),
        ("Answers to the verification's probe", "fingerprints", _distances),
        ("Scored prompts beside adapters", "prompt_logprobs", _prompt_logprobs),
        ("Power", "power", _power),
    )
    parts = [f"## The engine under `florin engine run`\n\n{_machines(gpus) or NOT_YET}"]
    for title, stage, tabulated in sections:
        tables = {gpu: rows for gpu, results in gpus.items() if (rows := tabulated(results))}
        texts = [_LIMITS] if tables and stage == "fingerprints" else []
        if tables and len(tables) < len(gpus):
            texts.append(f"On the {' and the '.join(tables)} only.")
        texts += [_beside(tables) if tables else NOT_YET]
        texts += [state for gpu, results in gpus.items() if (state := _state(gpu, results, stage))]
        parts.append("\n\n".join((f"## {title}", *texts)))
    if {run["at"] for results in gpus.values() for run in results.runs} >= CONCLUDED_FROM:
        parts.insert(0, CONCLUSIONS.read_text().strip())
    return document("Measured on a GPU", _INTRO, *parts, _CONSTANTS, _constants())


def _beside(tables: Mapping[str, Table]) -> str:
    """As one table."""
    heads = list(dict.fromkeys(head for each in tables.values() for head in each.heads))
    keys = next(iter(tables.values())).keys
    gpus = [each.named() for each in tables.values()]
    rows = (
        (*key[:keys], *(_cell([rows.get(key, {}).get(head, "") for rows in gpus]) for head in heads[keys:]))
        for key in dict.fromkeys(key for rows in gpus for key in rows)
    )
    return table(heads, rows)


def _cell(values: list[str]) -> str:
    return " / ".join(value or "none" for value in values) if len(set(values)) > 1 else values[0]


def _constants() -> str:
    columns = [asdict(model.figures) for model in ENGINE_MODELS.values()]
    rows = ((code(name), *(f"{figures[name]:g}" for figures in columns)) for name in columns[0])
    engines = table(("of an engine", *ENGINE_MODELS), rows)
    charges = {"stall": STALL} | {name: getattr(EngineCosts(), name) for name in CHARGES}
    scheduler = table(
        ("of the scheduler only", "value"), ((code(name), f"{value:g}") for name, value in charges.items())
    )
    both = Hardware.of()
    slot = (
        f"Of either: CUDA graphs for steps of up to {both.graph_tokens} tokens, vLLM's default (the engines "
        f"that were measured had them up to 128), and slots that take {both.slot_tokens} tokens of KV cache "
        f"and {both.slot_tokens_per_rank} more per rank, fitted to public measurements of vLLM 0.8.5 with "
        "Llama-3.1-8B."
    )
    return f"{engines}\n\n{slot}\n\n{scheduler}"


def _state(gpu: str, results: Results, stage: str) -> str:
    """Says so if a stage did not end."""
    measured = results.stages.get(stage)
    if measured is None or measured.status == "complete":
        return ""
    end = "cut off" if measured.status == "cut" else "ended by an error"
    return f"On the {gpu}, this measurement was {end}: `{measured.error}`"


def _machines(gpus: Mapping[str, Results]) -> str:
    runs = (
        (
            run["at"], run["gpu"], str(run.get("driver", "")),
            ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        )
        for results in gpus.values() for run in results.runs
    )  # fmt: skip
    starts = (
        (gpu, r["mode"], f"{r['seconds']:.0f} s")
        for gpu, results in gpus.items()
        for r in results.rounds("engine")
    )
    if not any(results.runs for results in gpus.values()):
        return ""
    return "\n\n".join(
        (
            table(("at", "GPU", "driver", "versions"), runs),
            table(("GPU", "the engine last started", "until it is up"), starts),
        )
    )


def _table(heads: tuple[str, ...], keys: int, rows: Iterable[tuple[str, ...]]) -> Table | None:
    listed = list(rows)
    return Table(heads, keys, listed) if listed else None


def _chat(results: Results) -> Table | None:
    rows = (
        (r["tenant"], r["adapter"], f"{r['answered_ms']:.0f}", str(r["usage"]["completion_tokens"]))
        for r in results.rounds("chat")
        if "adapter" in r
    )
    return _table(("tenant", "answered by", "milliseconds", "tokens"), 2, rows)


def _loads(results: Results) -> Table | None:
    heads = (
        "rank",
        "MB",
        "from disk, ms",
        "from the page cache, ms",
        "from CPU memory to a slot, ms",
        "rounds",
    )
    rows = (
        (str(r.rank), f"{r.megabytes:.1f}", f"{r.disk_ms:.1f}", f"{r.page_cache_ms:.1f}",
         f"{r.activate_ms:.1f}", str(r.rounds))
        for r in summaries.load_times(results)
    )  # fmt: skip
    return _table(heads, 2, rows)


def _latency(results: Results, stage: str) -> Table | None:
    latencies = summaries.latencies(results, stage)
    distinct = sorted({number for number, _ in latencies})
    batches = sorted({batch for _, batch in latencies})
    heads = ("batch", *("no adapter, ms" if not d else f"{d}, ms" for d in distinct))
    rows = (
        (str(b), *(f"{latencies[d, b]:.2f}" if (d, b) in latencies else "" for d in distinct))
        for b in batches
    )
    return _table(heads, 1, rows)


def _prompts(results: Results) -> Table | None:
    times = summaries.prompts(results)
    lengths = sorted({length for length, _ in times})
    rows = ((str(n), f"{times[n, 'base']:.1f}", f"{times[n, 'adapter']:.1f}") for n in lengths)
    return _table(("tokens", "base model, ms", "adapter, ms"), 1, rows)


def _through_florin(results: Results) -> Table | None:
    rows = (
        (r["way"], str(r["at_once"]), f"{r['tokens_per_second']:,.0f}", f"{r['first_chunk_ms']:.1f}",
         f"{r['mean_ms']:.0f}", f"{r['slowest_ms']:.0f}")
        for r in results.rounds("through_florin")
    )  # fmt: skip
    heads = ("asked", "at once", "tokens per second", "first chunk, ms", "whole answer, ms", "slowest, ms")
    return _table(heads, 2, rows)


def _cliff(results: Results) -> Table | None:
    heads = ("adapters in flight", "slots", "tokens per second", "TTFT, ms", "slowest request, s")
    rows = (
        (
            str(c.distinct),
            str(c.slots),
            f"{c.tokens_per_second:,.0f}",
            f"{c.ttft_ms:,.0f}",
            f"{c.slowest_seconds:.2f}",
        )
        for c in summaries.cliff(results)
    )
    return _table(heads, 2, rows)


def _unload(results: Results) -> Table | None:
    heads = (
        "unload",
        "request that ran",
        "request after it",
        "same name again",
        "first load, ms",
        "load again, ms",
    )
    rows = (
        (str(r["unload_status"]), r["running_request"], str(r["request_after_status"]),
         str(r["load_again_status"]), f"{r['load_ms']:.1f}", f"{r['load_again_ms']:.1f}")
        for r in results.rounds("unload")
    )  # fmt: skip
    return _table(heads, 0, rows)


def _weights(results: Results) -> Table | None:
    try:
        weights = summaries.token_weights(results)
    except CalibrationError:
        return None
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
    return _table(heads, 1, rows)


def _micros(picoseconds: int) -> str:
    return f"{picoseconds / 1e6:,.3f}"


def _distances(results: Results) -> Table | None:
    rows = (
        (d.what, f"{d.mean:.5f}", f"{d.largest:.5f}", str(d.probes)) for d in summaries.distances(results)
    )
    return _table(("distance of", "mean", "largest", "probes"), 1, rows)


def _prompt_logprobs(results: Results) -> Table | None:
    rows = (
        (
            ", ".join(r["fields"]),
            r["model"],
            str(r.get("status", "none")),
            "alive" if r["engine_alive"] else "dead",
        )
        for r in results.rounds("prompt_logprobs")
    )
    return _table(("fields", "model", "status", "engine afterwards"), 2, rows)


def _power(results: Results) -> Table | None:
    watts = summaries.watts(results)
    if not watts:
        return None
    phases = watts | {"the limit": results.run_of("power")["limit_watts"]}
    return _table(("phase", "mean watts"), 1, ((phase, f"{mean:.0f}") for phase, mean in phases.items()))
