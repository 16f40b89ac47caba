"""Callers of eight adapters, who check each answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson

from deploy.demo.model import DemoModel
from gateway.planning.simulator.workloads import HOT, RECENT, SAME
from loadtests.tally import Tokens

TENANTS = ("acme", "bolt", "corgi", "delta")
NAMES = ("support", "sales")
ADAPTERS = tuple((tenant, name) for name in NAMES for tenant in TENANTS)
"""Two of each tenant, of the same weights: eight to the gateway and the engines."""
TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Question:
    tenant: str
    adapter: str
    text: str


@dataclass(slots=True)
class Run:
    """What the callers saw of one workload. Mutable while they call."""

    seconds: float = 0.0
    first_token: list[float] = field(default_factory=list)
    """Seconds."""
    engines: Counter[str] = field(default_factory=Counter)
    """Engine → answers."""
    errors: list[str] = field(default_factory=list)
    tokens: Tokens = field(default_factory=Tokens)


Adapter = tuple[str, str]
Message = dict[str, str]


def _locality(draw: random.Random, ranking: list[Adapter], count: int) -> Iterator[Adapter]:
    """Reuse by recency, with the shares of the simulator's workload."""
    recent = list(ranking)
    depths = range(1, len(recent))
    for _ in range(count):
        kind, depth = draw.random(), 0
        if kind >= SAME + RECENT:
            depth = draw.randrange(len(recent))
        elif kind >= SAME:
            (depth,) = draw.choices(depths, [1 / d for d in depths])
        recent.insert(0, recent.pop(depth))
        yield recent[0]


def _zipf(draw: random.Random, ranking: list[Adapter], count: int) -> Iterator[Adapter]:
    yield from draw.choices(ranking, [(place + 1) ** -0.9 for place in range(len(ranking))], k=count)


def _hot(draw: random.Random, ranking: list[Adapter], count: int) -> Iterator[Adapter]:
    """One adapter has most of the requests, the others are Zipf."""
    others = _zipf(draw, ranking[1:], count)
    yield from (ranking[0] if draw.random() < HOT else other for other in others)


WORKLOADS = {"locality": _locality, "Zipf": _zipf, "hot": _hot}


def questions(model: DemoModel, workload: str, count: int, seed: int) -> list[Question]:
    """The same for the same seed. Which adapter is popular depends on the seed, too."""
    draw = random.Random(seed)
    ranking = draw.sample(ADAPTERS, len(ADAPTERS))
    chosen = list(WORKLOADS[workload](draw, ranking, count))
    return [Question(tenant, name, draw.choice(model.questions)) for tenant, name in chosen]


async def call(
    url: str, keys: dict[str, str], model: DemoModel, prompts: Sequence[Question], callers: int
) -> Run:
    """`callers` at once, each of whom asks the next question as soon as the last is answered."""
    run, todo = Run(), iter(prompts)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(url, timeout=timeout, trust_env=False) as session:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(_caller(session, keys, model, todo, run))
        run.seconds = time.perf_counter() - began
    return run


async def _caller(
    session: aiohttp.ClientSession, keys: dict[str, str], model: DemoModel, todo: Iterator[Question], run: Run
) -> None:
    for question in todo:
        try:
            text = await ask(session, keys[question.tenant], question, run)
        except (TimeoutError, aiohttp.ClientError) as error:
            run.errors.append(repr(error))
            continue
        if text != model.adapters[question.tenant].answers[question.text]:
            run.errors.append(f"{question} was answered with {text[:300]!r}")


async def ask(session: aiohttp.ClientSession, key: str, question: Question, run: Run) -> str:
    """The answer, or what came in place of it."""
    return await stream(session, key, question.adapter, [{"role": "user", "content": question.text}], run)


async def stream(
    session: aiohttp.ClientSession,
    key: str,
    adapter: str,
    messages: list[Message],
    run: Run,
    *,
    most: int = 200,
) -> str:
    """The answer of at most so many tokens, or what came in place of it."""
    body = {
        "model": adapter, "messages": messages, "temperature": 0, "max_tokens": most,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    began = time.perf_counter()
    async with session.post(
        "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
    ) as answer:
        if answer.status != 200:
            return await answer.text()
        text = ""
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = orjson.loads(line[6:])
            if "error" in chunk:
                return line.decode()
            new = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else ""
            if new and not text:
                run.first_token.append(time.perf_counter() - began)
            text += new or ""
            if usage := chunk.get("usage"):
                run.tokens.add(usage)
        run.engines[answer.headers.get("x-florin-engine", "")] += 1  # unknown if the stream began to wait
        return text
