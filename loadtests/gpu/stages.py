"""The measurements, most valuable first. Each yields its rounds as they end, so that a cut loses one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from gateway.costs.calibration.design import loads
from gateway.costs.calibration.load import EngineUnderLoad
from loadtests.gpu import answers
from loadtests.gpu.engine_calls import CallError, mean_ms
from loadtests.gpu.power import Meter
from loadtests.gpu.scale import Mode
from loadtests.gpu.site import TENANTS, Site, SiteError
from loadtests.gpu.streams import Caller, streamed

Round = dict[str, Any]
Rounds = AsyncGenerator[Round, None]
ITL, TTFT = "vllm:inter_token_latency_seconds", "vllm:time_to_first_token_seconds"
QUESTION = "When do you open?"


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    seconds: float
    """Its limit on a GPU."""
    run: Callable[[Site], Rounds]
    mode: Mode | None = None
    """That of the engine; by default the first in which it starts."""


async def chat(site: Site) -> Rounds:
    """Through Florin to three customers' adapters: registered, then loaded, verified and answered."""
    texts: dict[str, set[str]] = {}
    for seed, tenant in enumerate(TENANTS):
        source = site.adapter(site.scale.ranks[0], seed)
        began = time.perf_counter()
        await site.call("POST", "adapters", {"adapter": f"{tenant}/support", "source": source})
        yield {"tenant": tenant, "registered_ms": _ms(began)}
    for _ in range(2):
        for tenant in TENANTS:
            began = time.perf_counter()
            response = await site.chat(tenant, QUESTION, site.scale.tokens)
            answered_ms, served_by = _ms(began), response.headers["x-florin-adapter"]
            body = response.json()
            text = body["choices"][0]["message"]["content"]
            texts.setdefault(tenant, set()).add(text)
            answered = {"tenant": tenant, "answered_ms": answered_ms, "adapter": served_by}
            yield answered | {"text": text, "usage": body["usage"]}
            if not served_by.startswith(f"{tenant}/support@"):
                raise SiteError(f"{tenant}'s chat was answered by {served_by}")
    if len(set.union(*texts.values())) < len(TENANTS):
        raise SiteError(f"Different adapters gave the same answer: {texts}")


async def load_times(site: Site) -> Rounds:
    """By rank: from the disk, from the page cache, and from the engine's CPU memory to a GPU slot."""
    engine, scale = site.engine, site.scale
    others = [(await engine.load(site.adapter(scale.ranks[0])))[0] for _ in range(scale.slots)]
    for _ in range(scale.repeats):
        for rank in scale.ranks:
            path = site.adapter(rank)
            size = _drop_from_page_cache(Path(path))
            name, disk = await engine.load(path)
            again, cached = await engine.load(path)
            await engine.batch(others, 1)  # take all slots
            activated = (await engine.complete(name, 1)).seconds
            resident = (await engine.complete(name, 1)).seconds
            await engine.unload(name, again)
            yield {
                "rank": rank, "bytes": size, "disk_ms": _in_ms(disk), "page_cache_ms": _in_ms(cached),
                "first_token_from_cpu_ms": _in_ms(activated), "first_token_resident_ms": _in_ms(resident),
            }  # fmt: skip
    await engine.unload(*others)


async def latency(site: Site) -> Rounds:
    """Inter-token latency by the engine's own histogram, against batch and distinct adapters."""
    engine, scale = site.engine, site.scale
    names = [(await engine.load(site.adapter(scale.ranks[0])))[0] for _ in range(max(scale.distinct))]
    for number in range(-1, scale.rounds):
        for distinct in scale.distinct:
            # The first round compiles kernels and is not recorded.
            for batch in scale.batches if number >= 0 else scale.batches[-1:]:
                if batch >= distinct:
                    models = list(islice(cycle(names[:distinct] or [engine.base]), batch))
                    measured = await _batch(site, models)
                    if number >= 0:
                        yield {"round": number, "distinct": distinct, "batch": batch, **measured}
    await engine.unload(*names)


async def _batch(site: Site, models: Sequence[str]) -> Round:
    before, began = await site.engine.metrics(), time.perf_counter()
    done = await site.engine.batch(models, site.scale.tokens)
    seconds = time.perf_counter() - began
    after = await site.engine.settled(before, sum(answer.tokens for answer in done))
    return {
        "itl_ms": mean_ms(before, after, ITL), "ttft_ms": mean_ms(before, after, TTFT),
        "seconds": round(seconds, 4), "tokens": sum(answer.tokens for answer in done),
    }  # fmt: skip


async def prompts(site: Site) -> Rounds:
    """Time to the first token of one prompt alone, by its length, of the base model and of an adapter."""
    engine, scale = site.engine, site.scale
    name, _ = await engine.load(site.adapter(scale.ranks[0]))
    for number in range(-1, scale.repeats // 2):
        for length in scale.prompts:
            for model in (engine.base, name):
                before = await engine.metrics()
                answer = await engine.complete(model, 2, prompt=length)
                after = await engine.settled(before, answer.tokens)
                if number >= 0:  # as above
                    yield {
                        "length": length, "model": "base" if model == engine.base else "adapter",
                        "ttft_ms": mean_ms(before, after, TTFT),
                    }  # fmt: skip
    await engine.unload(name)


async def through_florin(site: Site) -> Rounds:
    """The same streams at the engine's port and through Florin, in turn, in half of the seats."""
    engine, scale = site.engine, site.scale
    copies = [(await engine.load(site.adapter(scale.ranks[0], seed)))[0] for seed in range(len(TENANTS))]
    ways = {
        "engine": [Caller(engine.url, "", model) for model in copies],
        "florin": [Caller(site.gateway.url, site.keys[tenant], "support") for tenant in TENANTS],
    }
    for number in range(-1, scale.rounds + 1):
        for way, callers in ways.items():
            measured = await streamed(callers, 2 * scale.seats, scale.seats // 2, scale.tokens)
            if number >= 0:  # as above
                yield {"round": number, "way": way, **measured}
    await engine.unload(*copies)


async def cliff(site: Site) -> Rounds:
    """More distinct adapters in flight than the engine has slots: half of its seats are always taken."""
    engine, scale = site.engine, site.scale
    names = [(await engine.load(site.adapter(scale.ranks[0])))[0] for _ in range(max(scale.cliff))]
    for number in range(scale.rounds):
        for distinct in scale.cliff:
            models = cycle(names[:distinct])
            requests = 2 * scale.seats
            before, began = await engine.metrics(), time.perf_counter()
            lasted = await _closed_loop(site, islice(models, requests), scale.seats // 2)
            seconds = time.perf_counter() - began
            after = await engine.settled(before, requests * scale.tokens)
            yield {
                "round": number, "distinct": distinct, "slots": scale.slots, "requests": requests,
                "seconds": round(seconds, 4),
                "tokens_per_second": round(requests * scale.tokens / seconds, 1),
                "ttft_ms": mean_ms(before, after, TTFT), "itl_ms": mean_ms(before, after, ITL),
                "request_seconds": [round(s, 4) for s in lasted],
            }  # fmt: skip
    await engine.unload(*names)


async def _closed_loop(site: Site, models: Iterator[str], customers: int) -> list[float]:
    seconds: list[float] = []

    async def customer() -> None:
        for model in models:
            answer = await site.engine.complete(model, site.scale.tokens)
            seconds.append(answer.seconds)

    async with asyncio.TaskGroup() as group:
        for _ in range(customers):
            group.create_task(customer())
    return seconds


async def unload(site: Site) -> Rounds:
    """What unloading does: to the name, to a request that runs, to memory, and to a second load."""
    engine = site.engine
    path = site.adapter(site.scale.ranks[-1])
    for _ in range(site.scale.repeats):
        free = [_free_memory()]
        name, first = await engine.load(path)
        await engine.complete(name, 1)
        free.append(_free_memory())
        async with _beside(engine.complete(name, 2 * site.scale.tokens)) as running:
            began = time.perf_counter()
            status = (await engine.send("POST", "/v1/unload_lora_adapter", {"lora_name": name})).status_code
            unloaded = _ms(began)
            finished = (await running).body["choices"][0]["finish_reason"]
        free.append(_free_memory())
        after = await engine.send("POST", "/v1/completions", {"model": name, "prompt": "1", "max_tokens": 1})
        began = time.perf_counter()
        again = await engine.send("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        yield {
            "load_ms": _in_ms(first), "unload_status": status, "unload_ms": unloaded,
            "running_request": finished, "request_after_status": after.status_code,
            "load_again_status": again.status_code, "load_again_ms": _ms(began), "free_memory_bytes": free,
        }  # fmt: skip
        await engine.unload(name)


async def calibrate(site: Site) -> Rounds:
    """What `florin calibrate` measures; each round is one of its samples."""
    async with EngineUnderLoad(site.engine.url, site.engine.base, 1) as under:
        for sample in await under.measure_loads(site.adapter(site.scale.ranks[0])):
            yield asdict(sample)
        await under.find_saturation(site.scale.seats)
        for load in loads(site.scale.calibrated_length, site.scale.rounds):
            yield {"at_once": under.at_once, **asdict(await under.measure(load, site.scale.seconds))}


async def fingerprints(site: Site) -> Rounds:
    """How far answers to the verification's probe are from the first: alone, and beside other requests."""
    engine, scale = site.engine, site.scale
    rank = scale.ranks[0]
    models = {"base": engine.base}
    models |= {
        f"adapter {seed}": (await engine.load(site.adapter(rank, seed)))[0] for seed in range(len(TENANTS))
    }
    for factor in (1.001, 0.99, 0.9, 0.1):
        models[f"adapter 0, B times {factor}"] = (await engine.load(site.adapter(rank, 0, factor)))[0]
    for name, model in models.items():
        yield {"model": name, "beside": 0, **await answers.probe(engine, model)}
    beside = scale.seats // 2
    for busy in (0, beside):
        for _ in range(scale.repeats):
            crowd = [models[name] for name in islice(cycle(("base", "adapter 0", "adapter 1")), busy)]
            async with _beside(engine.batch(crowd, 4 * scale.tokens)) as running:
                probes = {name: await answers.probe(engine, models[name]) for name in ("base", "adapter 0")}
                await running
            for name, answer in probes.items():
                yield {"model": name, "beside": busy, **answer}
    await engine.unload(*(name for name in models.values() if name != engine.base))


async def power(site: Site) -> Rounds:
    """Idle, with long answers in every seat, and with long prompts. Without a GPU, the samples are empty."""
    engine, scale = site.engine, site.scale
    prompt = scale.max_length - 8
    for phase, tokens, length in (("idle", 0, 0), ("answers", 4 * scale.tokens, 16), ("prompts", 1, prompt)):
        done, began = 0, time.perf_counter()
        async with Meter() as meter:
            while (seconds := time.perf_counter() - began) < 5 * scale.seconds:
                if phase == "idle":
                    await asyncio.sleep(scale.seconds)
                else:
                    await engine.batch(
                        [engine.base] * (scale.seats if tokens > 1 else 8), tokens, prompt=length
                    )
                    done += 1
        yield {"phase": phase, "seconds": round(seconds, 3), "batches": done, "watts": meter.watts}


async def prompt_logprobs(site: Site) -> Rounds:
    """Whether a request that has its prompt scored, beside adapters' requests, ends the engine. It may."""
    engine = site.engine
    names = [(await engine.load(site.adapter(site.scale.ranks[0], seed)))[0] for seed in range(2)]
    for fields in answers.SCORED:
        for model in (engine.base, names[0]):
            measured: Round = {"fields": fields, "model": "base" if model == engine.base else "adapter"}
            async with _beside(engine.batch([*names, engine.base], 8 * site.scale.tokens)) as crowd:
                try:
                    scored = await engine.send(
                        "POST", "/v1/completions", {"model": model, "max_tokens": 1, **fields}
                    )
                    measured["status"] = scored.status_code
                    await crowd
                except (CallError, ExceptionGroup) as error:
                    measured["error"] = repr(error)[:300]
            alive = await engine.healthy()
            yield measured | {"engine_alive": alive}
            if not alive:
                return


STAGES: Final = (
    Stage("chat", 40, chat),
    Stage("load_times", 50, load_times),
    Stage("latency", 90, latency),
    Stage("prompts", 20, prompts),
    Stage("cliff", 60, cliff),
    Stage("calibrate", 120, calibrate),
    Stage("through_florin", 30, through_florin),
    Stage("fingerprints", 45, fingerprints),
    Stage("unload", 20, unload),
    Stage("power", 30, power),
    Stage("prompt_logprobs", 25, prompt_logprobs),
    Stage("latency_eager", 60, latency, "eager"),
)


@asynccontextmanager
async def _beside(requests: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """These requests meanwhile, and no longer."""
    task = asyncio.create_task(requests)
    try:
        await asyncio.sleep(0.1)
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def _drop_from_page_cache(directory: Path) -> int:
    """So that the next load reads the disk. Returns the size in bytes."""
    size = 0
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size += path.stat().st_size
    return size


def _free_memory() -> int:
    """Bytes of the machine's memory that are available."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])


def _ms(began: float) -> float:
    return _in_ms(time.perf_counter() - began)


def _in_ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
