"""The fewest engines that serve a workload well enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from adapters.placement.scheduling.policies import POLICIES
from gateway.planning.simulator.contestant import Contestant
from gateway.planning.simulator.course_figures import Figures, figures
from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.workloads import Workload

MOST = 16
"""Engines that are tried, as a multiple of those whose GPUs would just be busy enough."""
POLICY = "cost"


@dataclass(frozen=True, slots=True)
class Goal:
    slo_ttft: float
    slo_itl: float
    attainment: float
    """Share of the requests that must meet both."""


@dataclass(frozen=True, slots=True)
class Size:
    engines: int
    attainment: float
    """The lowest of all seeds, as the next."""
    ttft_p50: float
    ttft_p99: float
    """The highest of all seeds, as the last."""


def hardware_of(model: str, speed: float, kv_tokens: int | None) -> Hardware:
    """A GPU that computes at `speed` times that of the engine model. Adapters take as long to copy, and as
    much memory, as there."""
    base = Hardware.of(model)
    return replace(
        base,
        step=base.step / speed,
        step_per_sequence=base.step_per_sequence / speed,
        lora=base.lora / speed,
        lora_per_sequence=base.lora_per_sequence / speed,
        distinct=base.distinct / speed,
        distinct_large=base.distinct_large / speed,
        prompt=base.prompt / speed,
        prompt_token=base.prompt_token / speed,
        launch=base.launch / speed,
        lora_launch=base.lora_launch / speed,
        kv_tokens=base.kv_tokens if kv_tokens is None else kv_tokens,
    )


def size(site: Site, workloads: Sequence[Workload], goal: Goal) -> Size | None:
    """For every one of the workloads. None: no number of engines is enough."""
    least = max(_busy_engines(workload, site.hardware) for workload in workloads)
    runs: dict[int, list[Figures]] = {}

    def enough(engines: int) -> bool:
        runs[engines] = []
        for workload in workloads:
            run = _run(replace(site, engines=engines), workload, goal.attainment)
            if run is None:
                return False
            runs[engines].append(run)
        return True

    engines = fewest(enough, least, MOST * least)
    if engines is None:
        return None
    seen = runs[engines]
    return Size(
        engines,
        min(each.attainment for each in seen),
        max(each.ttft_p50 for each in seen),
        max(each.ttft_p99 for each in seen),
    )


def fewest(enough: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest number from `least` to `most` that is enough, if every larger one is, too."""
    short, high = least - 1, least
    while not enough(high):
        if high == most:
            return None
        short, high = high, min(most, 2 * high)
    while high - short > 1:
        middle = (short + high) // 2
        short, high = (short, middle) if enough(middle) else (middle, high)
    return high


def _run(site: Site, workload: Workload, attainment: float) -> Figures | None:
    """None: too many requests miss the goal."""
    measured = len(workload) - len(workload) // 10
    misses = math.floor(measured * (1 - attainment))
    course = Simulation(site, Contestant(POLICY, POLICIES[POLICY]), workload, misses=misses).run()
    return None if course.stopped else figures(course, site)


def _busy_engines(workload: Workload, hardware: Hardware) -> int:
    """Engines whose every step would have a full batch and a single adapter: fewer cannot be enough. Prompts
    take least in steps as large as CUDA graphs cover, or as large as they may be."""
    full = hardware.step_seconds(hardware.max_sequences, 1, 0) / hardware.max_sequences
    alone = hardware.step_seconds(1, 1, 0)
    prompt_token = min(
        (hardware.step_seconds(1, 1, tokens) - alone) / tokens
        for tokens in (hardware.graph_tokens, hardware.budget)
    )
    seconds = prompt_token * _sum(workload.prompt) + full * _sum(workload.output)
    return max(1, math.floor(seconds / (float(workload.arrival[-1]) or 1.0)))


def _sum(tokens: Iterable[int]) -> int:
    return int(sum(tokens))
