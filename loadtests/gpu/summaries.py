"""What the rounds come to: medians, distances, weights. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

from gateway.costs.calibration.fit import CalibrationError, LoadSample, Weight, fit
from loadtests.gpu.answers import apart
from loadtests.gpu.results import Results


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Medians of one rank, in milliseconds."""

    rank: int
    megabytes: float
    disk_ms: float
    page_cache_ms: float
    activate_ms: float
    """How much later a first token comes if the adapter has no GPU slot yet."""
    rounds: int


def load_times(results: Results) -> list[LoadTimes]:
    by_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for measured in results.rounds("load_times"):
        by_rank[measured["rank"]].append(measured)
    return [
        LoadTimes(
            rank,
            rounds[0]["bytes"] / 1e6,
            median(r["disk_ms"] for r in rounds),
            median(r["page_cache_ms"] for r in rounds),
            median(r["first_token_from_cpu_ms"] - r["first_token_resident_ms"] for r in rounds),
            len(rounds),
        )
        for rank, rounds in sorted(by_rank.items())
    ]


def latencies(results: Results, stage: str) -> dict[tuple[int, int], float]:
    """By distinct adapters and batch: the median inter-token latency of all rounds, in milliseconds."""
    samples: dict[tuple[int, int], list[float]] = defaultdict(list)
    for measured in results.rounds(stage):
        if measured["itl_ms"] is not None:
            samples[measured["distinct"], measured["batch"]].append(measured["itl_ms"])
    return {key: median(values) for key, values in samples.items()}


def prompts(results: Results) -> dict[tuple[int, str], float]:
    """By length and model: the median time to the first token, in milliseconds."""
    samples: dict[tuple[int, str], list[float]] = defaultdict(list)
    for measured in results.rounds("prompts"):
        if measured["ttft_ms"] is not None:
            samples[measured["length"], measured["model"]].append(measured["ttft_ms"])
    return {key: median(values) for key, values in samples.items()}


@dataclass(frozen=True, slots=True)
class Crowd:
    """Medians with so many adapters in flight."""

    distinct: int
    slots: int
    tokens_per_second: float
    ttft_ms: float
    slowest_seconds: float
    """The slowest request of all rounds."""


def cliff(results: Results) -> list[Crowd]:
    by_distinct: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for measured in results.rounds("cliff"):
        by_distinct[measured["distinct"]].append(measured)
    return [
        Crowd(
            distinct,
            rounds[0]["slots"],
            median(r["tokens_per_second"] for r in rounds),
            median(r["ttft_ms"] or 0.0 for r in rounds),
            max(max(r["request_seconds"]) for r in rounds),
        )
        for distinct, rounds in sorted(by_distinct.items())
    ]


def token_weights(results: Results) -> tuple[Weight, ...]:
    """As `florin calibrate` fits them. Raises CalibrationError."""
    names = [field.name for field in fields(LoadSample)]
    samples = [LoadSample(**{name: sample[name] for name in names}) for sample in results.rounds("calibrate")]
    if not samples:
        raise CalibrationError("not measured")
    return fit(samples).weights


@dataclass(frozen=True, slots=True)
class Distances:
    """How far answers to the verification's probe are apart, in nats."""

    what: str
    mean: float
    largest: float
    probes: int


def distances(results: Results) -> list[Distances]:
    """From each model's first answer to its later ones, alone and in a batch; then to others' answers."""
    rounds = results.rounds("fingerprints")
    first: dict[str, list[float]] = {}
    for measured in rounds:
        first.setdefault(measured["model"], measured["logprobs"])
    # Each model was asked once before any was asked again.
    later = rounds[len(first) :]
    pairs: list[Distances] = []
    for model in ("base", "adapter 0"):
        for beside in sorted({r["beside"] for r in later}):
            answers = [r["logprobs"] for r in later if (r["model"], r["beside"]) == (model, beside)]
            where = f"beside {beside} requests" if beside else "alone"
            pairs.append(_distances(f"{model}, again, {where}", first[model], answers))
    for model, answer in first.items():
        if model.startswith("adapter 0, "):
            pairs.append(
                _distances(
                    f"adapter 0 to itself with {model.partition(', ')[2]}", first["adapter 0"], [answer]
                )
            )
        elif model != "base":
            pairs.append(_distances(f"{model} to the base model", first["base"], [answer]))
    return [distance for distance in pairs if distance.probes]


def _distances(what: str, first: Sequence[float], others: Iterable[Sequence[float]]) -> Distances:
    apart_by = [apart(first, other) for other in others]
    return Distances(what, fmean(apart_by or [0.0]), max(apart_by, default=0.0), len(apart_by))


def watts(results: Results) -> dict[str, float]:
    """By phase: the mean of the samples. Phases without samples are missing."""
    samples = {r["phase"]: r["watts"] for r in results.rounds("power")}
    return {phase: fmean(values) for phase, values in samples.items() if values}
