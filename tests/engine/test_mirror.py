"""The mirror against a real engine of two GPU slots and eight places in CPU memory, whose debug log tells each read from
disk, activation and eviction."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx2
import pytest

from adapters.placement.mirror import Mirror, Tier
from deploy.demo.engines import Fleet
from tests.engine.conftest import cleaned
from tests.support import forms
from tests.support.waiting import until

SLOTS, CPU_SLOTS = 2, 8
NAMES = [f"fl-{letter}" for letter in "abcdefghijklm"]
STEPS = 400 if forms.LONG else 120
LONG, SHORT = 2000, 4
MOST_STEPS = 4
"""Of this test while a long answer runs, so that it does not end by itself."""
ATTEMPTS = 10
"""For where it does so nevertheless."""

_LINE = re.compile(r"(Adding lora\. Model id|Activating LoRA\. int id|Removing adapter int id): (\d+)")


@dataclass
class Log:
    """What the engine's worker holds according to its log, by adapter number."""

    path: Path
    offset: int = 0
    registered: set[int] = field(default_factory=set)
    active: set[int] = field(default_factory=set)
    reads: int = 0
    activations: int = 0
    last_read: int = 0

    def read(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            text, _, _ = file.read().rpartition(b"\n")
        self.offset += len(text)
        for what, number in _LINE.findall(text.decode()):
            adapter = int(number)
            if what.startswith("Adding"):
                self.registered.add(adapter)
                self.reads += 1
                self.last_read = adapter
            elif what.startswith("Activating"):
                assert adapter in self.registered
                self.active.add(adapter)
                self.activations += 1
            elif adapter in self.active:  # what leaves CPU memory while active is reported twice
                self.active.discard(adapter)
            else:
                self.registered.discard(adapter)


@dataclass
class World:
    http: httpx2.AsyncClient
    base: str
    adapters: list[Path]
    log: Log
    mirror: Mirror = field(default_factory=lambda: Mirror(SLOTS, CPU_SLOTS))
    number: dict[str, int] = field(default_factory=dict)
    """Listed names → their numbers in the engine."""
    loads: int = 0
    running: dict[str, tuple[AsyncExitStack, AsyncIterator[str]]] = field(default_factory=dict)
    """Name → its stream, and the stream's lines, whose iterator closes it if dropped."""

    async def load(self, name: str) -> None:
        path = str(self.adapters[self.loads % len(self.adapters)])
        answer = await self.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
        assert answer.status_code == httpx2.codes.OK, answer.text
        self.loads += 1
        self.log.read()
        self.number[name] = self.log.last_read
        await self.complete(self.base)  # a step of what is running
        self.mirror.loaded(name, [*self.running])

    async def unload(self, name: str) -> None:
        answer = await self.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert answer.status_code == httpx2.codes.OK, answer.text
        del self.number[name]
        self.mirror.unloaded(name)

    async def begin(self, name: str) -> None:
        """A request whose first token has arrived."""
        stack = AsyncExitStack()
        body = {"model": name, "prompt": "1", "max_tokens": LONG, "ignore_eos": True, "stream": True}
        response = await stack.enter_async_context(self.http.stream("POST", "/v1/completions", json=body))
        assert response.status_code == httpx2.codes.OK
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("data: {")
        self.mirror.dispatched(name, [*self.running])
        self.running[name] = stack, lines

    async def end(self, name: str) -> None:
        """Abandon it. Whatever the engine is told next comes after its last step."""
        stack, _ = self.running.pop(name)
        await stack.aclose()

        async def ended() -> bool:
            return await self.in_flight() <= len(self.running)

        await until(ended)
        await self.complete(self.base)
        self.mirror.finished(name)

    async def in_flight(self) -> int:
        """Requests that the engine works on."""
        page = (await self.http.get("/metrics")).text
        return int(float(re.findall(r"^vllm:num_requests_running\{[^}]*\} (\S+)", page, re.MULTILINE)[0]))

    async def request(self, name: str) -> None:
        self.mirror.dispatched(name, [*self.running])
        await self.complete(name)
        self.mirror.finished(name)

    async def complete(self, model: str) -> None:
        body = {"model": model, "prompt": "1", "max_tokens": SHORT, "ignore_eos": True}
        answer = await self.http.post("/v1/completions", json=body)
        assert answer.status_code == httpx2.codes.OK, answer.text

    def tier(self, name: str) -> Tier:
        number = self.number.get(name)
        if number in self.log.active:
            return Tier.GPU
        return Tier.CPU if number in self.log.registered else Tier.DISK


@asynccontextmanager
async def new_world(fleet: Fleet) -> AsyncIterator[World]:
    engine = cleaned(fleet).engines[0]
    async with httpx2.AsyncClient(base_url=engine.url, timeout=120, trust_env=False) as http:
        adapters = [adapter.path for adapter in fleet.model.adapters.values()]
        log = Log(engine.log, offset=engine.log.stat().st_size)
        world = World(http, fleet.model.served_name, adapters, log)
        for number in range(CPU_SLOTS):  # what the engine held before gives way
            await world.load(name := f"first-{number}")
            await world.unload(name)
        yield world
        for stack, _ in world.running.values():
            await stack.aclose()


async def test_the_mirror_knows_what_a_real_engine_holds(fleet: Fleet):
    for _ in range(ATTEMPTS):
        async with new_world(fleet) as world:
            if await walk(world):
                return
    pytest.fail("in every attempt an answer ended by itself")


async def walk(world: World) -> bool:
    """False: a long answer has ended by itself, which shows nothing."""
    random = Random(13)
    age: dict[str, int] = {}
    seen = dict.fromkeys(Tier, 0)
    """Requests by where they found their adapter."""
    for step in range(STEPS):
        ending = next((n for n in world.running if step - age[n] >= MOST_STEPS), None)
        idle = [n for n in world.number if n not in world.running]
        action = random.choice(("load", "load", "request", "request", "request", "begin", "end", "unload"))
        name = random.choice(idle) if idle else ""
        before = world.mirror.tier(name)
        reads, activations = world.log.reads, world.log.activations
        as_expected = True
        if ending or (action == "end" and world.running):
            await world.end(ending or random.choice([*world.running]))
        elif len(world.number) < CPU_SLOTS or (action == "load" and len(world.number) < len(NAMES) - 1):
            await world.load(random.choice([n for n in NAMES if n not in world.number]))
        elif action == "unload" and idle:
            await world.unload(name)
        elif action in {"request", "begin"} and idle and len(world.running) < SLOTS:
            await (world.request(name) if action == "request" else world.begin(name))
            age[name] = step
            seen[before] += 1
            world.log.read()
            as_expected = (world.log.reads - reads == (before is Tier.DISK)) and (
                (world.log.activations > activations) == (before is not Tier.GPU)
            )
        world.log.read()
        mirrored, held = ({n: side.tier(n) for n in NAMES} for side in (world.mirror, world))
        if await world.in_flight() < len(world.running):
            return False
        assert as_expected, (step, action, name)
        assert mirrored == held, (step, action, name, world.mirror)
    assert all(count > 5 for count in seen.values()), seen
    return True
