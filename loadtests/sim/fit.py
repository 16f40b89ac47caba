"""How well the engine models fit what was measured: of h100 public measurements, of h200 the results of
loadtests/gpu/.

Lengths of requests were not published with the former. PROMPT, OUTPUT and SPREAD are fitted, like the figures
of `Hardware`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import Request
from loadtests.gpu import summaries
from loadtests.gpu.results import COMMITTED, Results

PROMPT, OUTPUT, SPREAD = 250, 212, 0.62
"""Tokens of each request; answers are log-normal, and SPREAD is the standard deviation of their logarithm."""
SECONDS = 1500.0
RANK = 32


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
    """An engine model against what it was fitted to, and against what it was not: throughput and waits."""
    return _published(Hardware.of(model)) if model == "h100" else _measured(Results.read(COMMITTED))


def _published(hardware: Hardware) -> list[Fitted]:
    points: list[Fitted] = []
    for rank, ms in ((8, 70), (16, 92), (32, 141)):
        point = Point(f"load from disk, rank {rank}", ms, "ms", 0.03)
        points.append(Fitted(point, 1000 * hardware.load_seconds(rank)))
    for rank, tokens in ((8, 401), (16, 758), (32, 1458)):
        point = Point(f"KV cache of a slot, rank {rank}", tokens, "tokens", 0.01)
        points.append(Fitted(point, hardware.slot_tokens + hardware.slot_tokens_per_rank * rank))
    for adapters, itl in ((0, 17.1), (1, 35.4), (32, 45.7), (96, 63.0), (192, 79.2)):
        point = Point(f"inter-token latency, batch 220, {adapters} adapters", itl, "ms", 0.05)
        points.append(Fitted(point, 1000 * hardware.step_seconds(220, adapters, 0)))
    for adapters, slots, seconds, stated in (
        (64, 8, 16.1, 0.15),
        (64, 16, 0.49, 0.3),
        (64, 32, 0.067, 0.2),
        (128, 8, 78.0, 0.1),
        (128, 32, 9.4, 0.25),
        (128, 64, 0.176, 0.2),
    ):
        point = Point(f"mean TTFT, {adapters} adapters, {slots} slots", 1000 * seconds, "ms", stated)
        ttft, _ = serve(hardware, adapters, slots, 0.058 * adapters)
        points.append(Fitted(point, 1000 * ttft))
    for slots, throughput, stated in ((64, 20.8, 0.25), (128, 15.7, 0.1)):
        point = Point(f"throughput, 384 adapters, {slots} slots", throughput, "requests/s", stated)
        _, done = serve(hardware, 384, slots, 0.058 * 384)
        points.append(Fitted(point, done))
    return points


def _measured(results: Results) -> list[Fitted]:
    scale = results.run_of("cliff")["scale"]
    hardware = Hardware.of("h200", graph_tokens=max(scale["batches"]), max_sequences=scale["seats"])
    points: list[Fitted] = []

    def add(what: str, measured: float, unit: str, model: float, stated: float) -> None:
        points.append(Fitted(Point(what, measured, unit, stated), model))

    for load in summaries.load_times(results):
        what, seconds = f"load from disk, rank {load.rank}", hardware.load_seconds(load.rank)
        add(what, load.disk_ms, "ms", 1000 * seconds, 0.03)
    for (adapters, batch), itl in summaries.latencies(results, "latency").items():
        what, seconds = (
            f"inter-token latency, batch {batch}, {adapters} adapters",
            hardware.step_seconds(batch, adapters, 0),
        )
        add(what, itl, "ms", 1000 * seconds, 0.07)
    for (tokens, kind), ttft in summaries.prompts(results).items():
        seconds = hardware.step_seconds(1, kind == "adapter", tokens)
        add(f"TTFT alone, {tokens} tokens, {kind}", ttft, "ms", 1000 * seconds, 0.1)
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


def serve(hardware: Hardware, adapters: int, slots: int, rate: float) -> tuple[float, float]:
    """Mean time to the first token and requests per second of one engine, every adapter equally popular."""
    drawn = random.Random(1)
    events = Events()
    engine = EngineModel("engine", slots, adapters, hardware, events, rank=RANK)
    requests: list[Request] = []
    time = 0.0
    while (time := time + drawn.expovariate(rate)) < SECONDS:
        adapter = f"a{drawn.randrange(adapters)}"
        output = max(1, round(drawn.lognormvariate(math.log(OUTPUT) - SPREAD**2 / 2, SPREAD)))
        requests.append(Request(time, "", adapter, RANK, PROMPT, output))
    for request in requests:
        events.until(request.arrival)
        engine.submit(request)
    events.until(SECONDS)
    begun = [r for r in requests if r.first >= 0]
    return sum(r.ttft for r in begun) / len(begun), sum(r.end >= 0 for r in requests) / SECONDS
