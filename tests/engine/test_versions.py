"""Versions on real vLLM engines: an upgrade under streams, a canary's share, a rollback on every worker of a
real `florin serve`, and the prefix cache across a switch. v1 and v2 of acme/support speak in two voices."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from adapters.registry.canary import takes_canary
from deploy.demo.engines import Fleet
from deploy.demo.gateway import Gateway
from deploy.demo.model import DemoModel
from tests.engine.test_gateway import messages
from tests.engine.test_under_fire import is_worker

log = logging.getLogger(__name__)

NAME = "acme/support"
PATH = f"/admin/v1/adapters/{NAME}"
V1, V2 = f"{NAME}@v1", f"{NAME}@v2"
VOICES = {V1: "acme", V2: "bolt"}
"""Whose weights each version has."""
STREAMS = 16
CANARY_REQUESTS, CANARY_PERCENT = 500, 10
FALSE_ALARM = 1e-6
PROMISED_SECONDS = 3.0
"""A change reaches every worker in a second, on a machine that has more to spare than one of tests."""


@dataclass
class Installation:
    """`florin serve` with two workers, two real engines, and one adapter of two versions, the first live."""

    gateway: Gateway
    model: DemoModel
    key: str

    def caller(self) -> httpx.AsyncClient:
        """One client, one connection: so one worker, for as long as it is used one by one."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.gateway.url, headers=headers, timeout=120, trust_env=False)

    async def admin(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self.gateway.call, method, PATH + path, body)

    def expected(self, label: str, question: str) -> str:
        return self.model.adapters[VOICES[label]].answers[question]

    def workers(self) -> set[int]:
        return {p.pid for p in psutil.Process(self.gateway.pid).children() if is_worker(p)}


@pytest.fixture
def site(clean_fleet: Fleet, demo_model: DemoModel, tmp_path: Path) -> Iterator[Installation]:
    settings = {
        "FLORIN_WORKERS": "2",
        "FLORIN_PLACEMENT_TIMEOUT": "60",
        "FLORIN_PROBE_INTERVAL": "0.5",
        "FLORIN_PROBE_TIMEOUT": "5",
    }
    with Gateway(tmp_path / "state", tmp_path / "gateway.log", settings=settings) as started:
        started.launch()
        started.wait()
        for engine in clean_fleet.engines:
            body = {
                "name": f"e{engine.index}", "url": engine.url, "base": demo_model.served_name,
                "gpu_type": "h100", "slots": 2, "cpu_slots": 8, "max_rank": 8,
            }  # fmt: skip
            started.call("POST", "/admin/v1/engines", body)
        started.call("POST", "/admin/v1/tenants", {"name": "acme"})
        key = started.call("POST", "/admin/v1/keys", {"tenant": "acme", "role": "tenant"})["key"]
        for number, voice in enumerate(VOICES.values(), 1):
            source = str(demo_model.adapters[voice].path)
            added = started.call("POST", "/admin/v1/adapters", {"adapter": NAME, "source": source})
            assert (added["version"], added["live"]) == (f"v{number}", "v1")
        yield Installation(started, demo_model, key)


@pytest.fixture
async def caller(site: Installation) -> AsyncIterator[httpx.AsyncClient]:
    async with site.caller() as client:
        yield client


async def ask(client: httpx.AsyncClient, question: str, **fields: Any) -> tuple[str, str, dict[str, Any]]:
    """What x-florin-adapter says, the text, and the usage."""
    body = {"model": "support", "messages": messages(question), "temperature": 0, "max_tokens": 200} | fields
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return answer.headers["x-florin-adapter"], said["choices"][0]["message"]["content"], said["usage"]


async def stream(client: httpx.AsyncClient, question: str) -> tuple[str, str]:
    """What x-florin-adapter says, and the text."""
    body = {"model": "support", "messages": messages(question), "temperature": 0, "max_tokens": 200}
    text = ""
    async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = httpx.Response(200, content=line[6:]).json()
                assert "error" not in event, event
                text += event["choices"][0]["delta"].get("content") or ""
    assert line in {"", "data: [DONE]"}
    return answer.headers["x-florin-adapter"], text


async def test_an_upgrade_under_streams_costs_none_and_mixes_none(site: Installation):
    heard: list[tuple[float, str]] = []
    over = asyncio.Event()
    questions = site.model.questions

    async def listener(number: int) -> None:
        async with site.caller() as client:
            turn = number
            while not over.is_set():
                question, began = questions[turn % len(questions)], time.monotonic()
                label, text = await stream(client, question)
                assert text == site.expected(label, question), (label, text)
                heard.append((began, label))
                turn += 1

    async def operator() -> float:
        while len(heard) < 3 * STREAMS:
            await asyncio.sleep(0.05)
        switched = await site.admin("PUT", "/live", {"version": "v2"})
        assert (switched["live"], switched["previous"]) == ("v2", "v1")
        assert switched["resident"]
        done, seen = time.monotonic(), len(heard)
        late = done + PROMISED_SECONDS
        while len(heard) < seen + 3 * STREAMS or not any(began > late for began, _ in heard):
            await asyncio.sleep(0.05)
        over.set()
        return done

    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(listener(number))
        operating = group.create_task(operator())
    labels = Counter(label for _, label in heard)
    assert set(labels) == {V1, V2}
    late = {label for began, label in heard if began > operating.result() + PROMISED_SECONDS}
    assert late == {V2}


def bounds(n: int, p: float, false_alarm: float) -> tuple[int, int]:
    """The counts that a fair binomial draw of `n` leaves with at most this probability, half on each side."""
    chances = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    low = high = 0
    below = 0.0
    for k, chance in enumerate(chances):
        if below + chance > false_alarm / 2:
            low = k
            break
        below += chance
    above = 0.0
    for k in range(n, -1, -1):
        if above + chances[k] > false_alarm / 2:
            high = k
            break
        above += chances[k]
    return low, high


async def test_canary_gets_its_share_and_each_user_one_version(site: Installation):
    """End users whom nobody has picked: half of the requests name one, half none. A fair split fails this
    once in a million runs."""
    switched = await site.admin("PUT", "/live", {"version": "v2", "weight": CANARY_PERCENT})
    assert switched["canary"] == {"version": "v2", "weight": CANARY_PERCENT, "guard": None, "held": None}
    await asyncio.sleep(PROMISED_SECONDS)
    question = site.model.questions[0]
    users = [secrets.token_hex(8) if i % 2 else "" for i in range(CANARY_REQUESTS)]
    todo = iter(users)
    heard: list[tuple[str, str]] = []

    async def customer() -> None:
        async with site.caller() as client:
            for user in todo:
                label, text, _ = await ask(client, question, max_tokens=6, **({"user": user} if user else {}))
                assert site.expected(label, question).startswith(text.rstrip("\ufffd"))
                assert text
                heard.append((user, label))

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(customer())
    canaries = sum(label == V2 for _, label in heard)
    low, high = bounds(CANARY_REQUESTS, CANARY_PERCENT / 100, FALSE_ALARM)
    assert low <= canaries <= high, f"{canaries} of {len(heard)}, where {low} to {high} are fair"
    for user, label in heard:
        if user:
            assert (label == V2) is takes_canary(V2, CANARY_PERCENT, "acme", user)


async def reach_every_worker(site: Installation, stack: AsyncExitStack) -> dict[int, httpx.AsyncClient]:
    """A connection to each worker, by its process id."""
    found: dict[int, httpx.AsyncClient] = {}
    for _ in range(200):
        client = await stack.enter_async_context(site.caller())
        answer = await client.get("/v1/models")
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        for pid in site.workers():
            connections = psutil.Process(pid).net_connections()
            if any(c.raddr and c.raddr.port == port for c in connections):
                found.setdefault(pid, client)
        if found.keys() == site.workers():
            return found
    raise AssertionError(f"200 connections reached only {list(found)} of {site.workers()}")


async def test_a_rollback_holds_on_every_worker_within_a_second(site: Installation):
    question = site.model.questions[0]
    async with AsyncExitStack() as stack:
        clients = await reach_every_worker(site, stack)
        assert len(clients) == 2
        await site.admin("PUT", "/live", {"version": "v2"})
        heard: dict[int, list[tuple[float, str]]] = {pid: [] for pid in clients}
        over = asyncio.Event()

        async def listen(pid: int, client: httpx.AsyncClient) -> None:
            while not over.is_set():
                began = time.monotonic()
                label, _, _ = await ask(client, question, max_tokens=1)
                heard[pid].append((began, label))

        async with asyncio.TaskGroup() as group:
            for pid, client in clients.items():
                group.create_task(listen(pid, client))
            while not all(calls and calls[-1][1] == V2 for calls in heard.values()):
                await asyncio.sleep(0.02)
            asked = time.monotonic()
            assert (await site.admin("POST", "/rollback"))["live"] == "v1"
            while not all(calls[-1][0] > asked + PROMISED_SECONDS for calls in heard.values()):
                await asyncio.sleep(0.02)
            over.set()
    for pid, calls in heard.items():
        last_old = max((began for began, label in calls if label == V2), default=asked)
        log.info("worker %d: the last request for v2 came %.3f s after the rollback", pid, last_old - asked)
        assert last_old < asked + PROMISED_SECONDS
        assert calls[-1][1] == V1


async def test_the_prefix_cache_of_a_version_is_never_anothers(
    site: Installation, caller: httpx.AsyncClient, clean_fleet: Fleet
):
    """One engine, so that its cache is the one that a wrong answer would come from."""
    await asyncio.to_thread(site.gateway.call, "PUT", "/admin/v1/engines/e1/state", {"state": "draining"})
    question = "tell me a very long story " * 20  # longer than the cache's blocks
    texts: dict[str, set[str]] = {V1: set(), V2: set()}
    cached: list[tuple[str, int]] = []

    async def twice(label: str) -> None:
        for _ in range(2):
            said, text, usage = await ask(caller, question, max_tokens=40)
            assert said == label
            texts[label].add(text)
            cached.append((label, (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0))

    await twice(V1)
    await site.admin("PUT", "/live", {"version": "v2"})
    await asyncio.sleep(PROMISED_SECONDS)
    await twice(V2)
    await site.admin("POST", "/rollback")
    await asyncio.sleep(PROMISED_SECONDS)
    await twice(V1)
    log.info("cached tokens of one prompt, in order: %s", cached)
    assert [n > 0 for _, n in cached] == [False, True, False, True, True, True]
    assert [len(said) for said in texts.values()] == [1, 1]
    assert texts[V1] != texts[V2]
    # What the engine itself says without any cache of it.
    shown = await site.admin("GET", "")
    names = {f"{NAME}@{v['version']}": v["engine_name"] for v in shown["version_details"]}
    async with httpx.AsyncClient(base_url=clean_fleet.engines[0].url, timeout=60, trust_env=False) as engine:
        for label, said in texts.items():
            body = {"model": names[label], "messages": messages(question), "temperature": 0, "max_tokens": 40}
            answer = await engine.post(
                "/v1/chat/completions", json=body | {"cache_salt": secrets.token_hex(8)}
            )
            assert not (answer.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
            assert said == {answer.json()["choices"][0]["message"]["content"]}
