"""How well the engine models fit what loadtests/gpu/ measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import Request
from loadtests.gpu import summaries
from loadtests.gpu.results import committed


@dataclass(frozen=True, slots=True)
class Point:
    what: str
    measured: float
    unit: str
    stated: float
    """Largest relative error that the tests accept."""


@dataclass(frozen=True, slots=True)
class Fitted:
    point: Point
    model: float

    @property
    def error(self) -> float:
        return self.model / self.point.measured - 1


def fit(model: str) -> list[Fitted]:
    """An engine model against what it was fitted to, and against what it was not: throughput."""
    results = committed(model)
    scale = results.run_of("cliff")["scale"]
    hardware = Hardware.of(model, graph_tokens=max(scale["batches"]), max_sequences=scale["seats"])
    points: list[Fitted] = []

    def add(what: str, measured: float, unit: str, model: float, stated: float) -> None:
        points.append(Fitted(Point(what, measured, unit, stated), model))

    for load in summaries.load_times(results):
        what, seconds = f"load from disk, rank {load.rank}", hardware.load_seconds(load.rank)
        add(what, load.disk_ms, "ms", 1000 * seconds, 0.06)
    for (adapters, batch), itl in summaries.latencies(results, "latency").items():
        seconds = hardware.step_seconds(batch, adapters, 0)
        add(f"inter-token latency, batch {batch}, {adapters} adapters", itl, "ms", 1000 * seconds, 0.07)
    for (tokens, kind), ttft in summaries.prompts(results).items():
        seconds = hardware.step_seconds(1, kind == "adapter", tokens)
        add(f"TTFT alone, {tokens} tokens, {kind}", ttft, "ms", 1000 * seconds, 0.12)
    for crowd in summaries.cliff(results):
        speed = closed_loop(hardware, crowd.distinct, scale)
        what = f"throughput, {crowd.distinct} adapters, {crowd.slots} slots"
        add(what, crowd.tokens_per_second, "tokens/s", speed, 0.3)
    return points


def closed_loop(hardware: Hardware, adapters: int, scale: dict[str, Any]) -> float:
    """Tokens a second of the kit's stage `cliff`: half of the seats are always taken. All adapters are in CPU
    memory."""
    events = Events()
    rank, tokens, requests = scale["ranks"][0], scale["tokens"], 2 * scale["seats"]
    engine = EngineModel(
        "engine", scale["slots"], scale["cpu_slots"], hardware, events, rank=scale["ranks"][-1]
    )
    turns = iter(range(requests))
    ended: list[float] = []

    def ask() -> None:
        if (turn := next(turns, None)) is not None:
            engine.submit(Request(events.now, "", f"a{turn % adapters}", rank, 16, tokens))

    def end(request: Request) -> None:
        ended.append(request.end)
        ask()

    for number in range(adapters):
        engine.load(f"a{number}", rank, lambda: None)
    events.until(warm := 3600.0)
    engine.on_end = end
    for _ in range(scale["seats"] // 2):
        ask()
    events.until(2 * warm)
    return float(requests * tokens / (ended[-1] - warm))
