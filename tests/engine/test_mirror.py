"""The mirror against a real engine of two GPU slots and four CPU slots, whose debug log tells each read from
disk, activation and eviction."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import pytest

from adapters.placement.mirror import Mirror, Tier
from deploy.demo.engine_env import EngineEnv
from deploy.demo.engines import DemoEngine, EngineOptions, Fleet
from deploy.demo.model import DemoModel
from tests.support.waiting import until

SLOTS, CPU_SLOTS = 2, 4
NAMES = [f"fl-{letter}" for letter in "abcdefgh"]
STEPS = 400
LONG, SHORT = 2000, 4
MOST_STEPS = 4
"""Of this test while a long answer runs, so that it does not end by itself."""

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
            elif what.startswith("Activating"):
                assert adapter in self.registered
                self.active.add(adapter)
                self.activations += 1
            elif adapter in self.active:  # what leaves CPU memory while active is reported twice
                self.active.discard(adapter)
            else:
                self.registered.discard(adapter)

    def has(self, words: str) -> bool:
        return words in self.path.read_text()


@dataclass
class World:
    http: httpx.AsyncClient
    base: str
    adapters: list[Path]
    log: Log
    mirror: Mirror = field(default_factory=lambda: Mirror(SLOTS, CPU_SLOTS))
    number: dict[str, int] = field(default_factory=dict)
    """Listed names → their numbers in the engine."""
    loads: int = 0
    running: dict[str, tuple[AsyncExitStack, AsyncIterator[str], str]] = field(default_factory=dict)
    """Name → its stream, the stream's lines (whose iterator closes it if dropped) and request id."""
    requests: int = 0

    async def load(self, name: str) -> None:
        path = str(self.adapters[NAMES.index(name) % len(self.adapters)])
        answer = await self.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
        assert answer.status_code == httpx.codes.OK, answer.text
        self.loads += 1
        self.number[name] = self.loads
        await self.complete(self.base)  # a step of what is running
        self.mirror.loaded(name, [*self.running])

    async def unload(self, name: str) -> None:
        answer = await self.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert answer.status_code == httpx.codes.OK, answer.text
        del self.number[name]
        self.mirror.unloaded(name)

    async def begin(self, name: str) -> None:
        """A request whose first token has arrived."""
        self.requests += 1
        stack, id_ = AsyncExitStack(), f"mirror-{self.requests}"
        body = {"model": name, "prompt": "1", "max_tokens": LONG, "ignore_eos": True, "stream": True}
        response = await stack.enter_async_context(
            self.http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": id_})
        )
        assert response.status_code == httpx.codes.OK
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("data: {")
        self.mirror.dispatched(name, [*self.running])
        self.running[name] = stack, lines, id_

    async def end(self, name: str) -> None:
        """Abandon it. Whatever the engine is told next comes after its last step."""
        stack, _, id_ = self.running.pop(name)
        assert not self.log.has(f"{id_}-0 aborted")
        await stack.aclose()
        await until(lambda: self.log.has(f"{id_}-0 aborted"))
        await self.complete(self.base)
        self.mirror.finished(name)

    async def request(self, name: str) -> None:
        self.mirror.dispatched(name, [*self.running])
        await self.complete(name)
        self.mirror.finished(name)

    async def complete(self, model: str) -> None:
        body = {"model": model, "prompt": "1", "max_tokens": SHORT, "ignore_eos": True}
        answer = await self.http.post("/v1/completions", json=body)
        assert answer.status_code == httpx.codes.OK, answer.text

    def tier(self, name: str) -> Tier:
        number = self.number.get(name)
        if number in self.log.active:
            return Tier.GPU
        return Tier.CPU if number in self.log.registered else Tier.DISK


@pytest.fixture(scope="module")
def engine(
    engine_env: EngineEnv, demo_model: DemoModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DemoEngine]:
    options = EngineOptions(
        slots=SLOTS, cpu_slots=CPU_SLOTS, max_model_len=2048, extra=("--enable-log-requests",)
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        Fleet(
            engine_env, demo_model, logs=tmp_path_factory.mktemp("mirror"), count=1, options=options
        ) as fleet,
    ):
        patch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
        fleet.start()
        yield fleet.engines[0]


@pytest.fixture
async def world(engine: DemoEngine, demo_model: DemoModel) -> AsyncIterator[World]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60, trust_env=False) as http:
        adapters = [adapter.path for adapter in demo_model.adapters.values()]
        log = Log(engine.log, offset=engine.log.stat().st_size)  # what warmed it up is gone
        made = World(http, demo_model.served_name, adapters, log)
        yield made
        for stack, *_ in made.running.values():
            await stack.aclose()


async def test_the_mirror_knows_what_a_real_engine_holds(world: World):
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
        if ending or (action == "end" and world.running):
            await world.end(ending or random.choice([*world.running]))
        elif action == "load" and len(world.number) < len(NAMES) - 1:
            await world.load(random.choice([n for n in NAMES if n not in world.number]))
        elif action == "unload" and idle:
            await world.unload(name)
        elif action in {"request", "begin"} and idle and len(world.running) < SLOTS:
            await (world.request(name) if action == "request" else world.begin(name))
            age[name] = step
            seen[before] += 1
            world.log.read()
            assert world.log.reads - reads == (before is Tier.DISK), (step, action, name)
            assert (world.log.activations > activations) == (before is not Tier.GPU), (step, action, name)
        world.log.read()
        assert {n: world.mirror.tier(n) for n in NAMES} == {n: world.tier(n) for n in NAMES}, (
            step, action, name, world.mirror,
        )  # fmt: skip
    assert all(count > 5 for count in seen.values()), seen
    assert world.loads > 20
