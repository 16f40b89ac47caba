"""Versions shipped, tried as canaries, rolled back and retired, under load and on two workers of one fleet."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from adapters.model import Adapter, Version, dump
from adapters.registry.canary import takes_canary
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import EACH_UNLOAD
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until

NAME = "acme/support"
PATH = f"/admin/v1/adapters/{NAME}"
LABELS = [f"{NAME}@v{n}" for n in range(5)]


@dataclass
class Answer:
    """One answer, streamed or not, to `n` choices."""

    status: int
    label: str
    """What x-florin-adapter says."""
    voices: set[str]
    """Engine-side names that the texts give."""
    code: str = ""


@dataclass
class Fleet:
    """Two workers, two mock engines of three slots, and one adapter with several versions."""

    workers: list[Gateway]
    engines: dict[str, MockEngine]
    tmp: Path
    versions: list[Version] = field(default_factory=list)
    callers: dict[str, httpx2.AsyncClient] = field(default_factory=dict)
    """One for each worker: making a client takes longer than a call."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for caller in self.callers.values():
            await caller.aclose()

    @property
    def first(self) -> Gateway:
        return self.workers[0]

    def voice(self, label: str) -> str:
        return next(v.engine_name for v in self.versions if v.id == label)

    async def add_version(self, **fields: Any) -> Version:
        number = len(self.versions) + 1
        version = Version(
            adapter=NAME, number=number, digest="sha256:" + secrets.token_hex(32),
            engine_name="fl-" + secrets.token_hex(10), path=str(fake_adapter(self.tmp / f"v{number}")),
            base_model="base", rank=8, size_bytes=1, source="/x", created=time.time_ns() // 1000,
        )  # fmt: skip
        version = replace(version, **fields)
        old = self.first.state.catalog.adapters.get(NAME) or Adapter(NAME, live=number)
        adapter = replace(old, latest=number)
        await self.first.commit(
            Change("version", version.id, dump(version)), Change("adapter", NAME, dump(adapter))
        )
        self.versions.append(version)
        return version

    async def ask(
        self, worker: Gateway | None = None, model: str = "support", *, stream: bool = False, n: int = 1,
        tokens: int = 8, **fields: Any,
    ) -> Answer:  # fmt: skip
        worker = worker or self.first
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": stream, "n": n}
        caller = self.callers.get(worker.url)
        if caller is None:
            caller = self.callers[worker.url] = worker.http(self.first.keys["acme"])
        answer = await caller.post("/v1/chat/completions", json=body | {"max_tokens": tokens} | fields)
        text = answer.text
        if answer.status_code != 200 or '"error"' in text:
            return Answer(answer.status_code, "", set(), text)
        said = "".join(text.splitlines()) if stream else text
        return Answer(200, answer.headers["x-florin-adapter"], set(re.findall(r"I am (fl-[0-9a-f]+)", said)))

    def check(self, answers: list[Answer]) -> None:
        """No error, and each answer is wholly of the version that its header names."""
        assert [a for a in answers if a.status != 200 or a.code] == []
        assert [a for a in answers if a.voices != {self.voice(a.label)}] == []

    async def admin(self, method: str, path: str = "", worker: Gateway | None = None, **json_: Any) -> Any:
        async with (worker or self.first).http() as http:
            return await http.request(method, PATH + path, json=json_ or None)

    async def promote(self, version: str, **fields: Any) -> httpx2.Response:
        return await self.admin("PUT", "/live", version=version, **fields)

    def loads(self, label: str) -> list[str]:
        """Engines on which a version was loaded."""
        return [
            name
            for name, engine in self.engines.items()
            for call in engine.state.admin
            if (call.action, call.name, call.status) == ("load", self.voice(label), 200)
        ]

    def adapter(self, worker: Gateway | None = None) -> Adapter | None:
        return (worker or self.first).state.catalog.adapters.get(NAME)


@pytest.fixture
async def fleet(tmp_path: Path, valkey_url: str, prefix: str, unload: str) -> AsyncIterator[Fleet]:
    async with (
        running_gateway(tmp_path / "one", valkey_url, prefix) as one,
        running_gateway(tmp_path / "two", valkey_url, prefix) as two,
        MockEngine(max_loras=3, unload=unload) as a,
        MockEngine(max_loras=3, unload=unload) as b,
        Fleet([one, two], {"a": a, "b": b}, tmp_path) as made,
    ):
        for name, engine in made.engines.items():
            await one.add_engine(name, engine.url, slots=3)
        await one.add_tenant("acme")
        for _ in range(3):
            await made.add_version()
        await until(lambda: len(two.state.catalog.versions) == 3 and "acme" in two.state.directory.tenants)
        yield made


# -- all at once


async def test_an_upgrade_under_load_costs_no_request_and_mixes_no_answer(fleet: Fleet):
    for engine in fleet.engines.values():
        engine.faults.update({"event_delay": 0.008})
    answers: list[Answer] = []
    over = asyncio.Event()

    async def caller(number: int) -> None:
        while not over.is_set():
            worker = fleet.workers[number % 2]
            answers.append(await fleet.ask(worker, stream=number % 3 > 0, n=1 + number % 2, tokens=10))

    callers = [asyncio.create_task(caller(number)) for number in range(16)]
    await until(lambda: len(answers) > 40)
    assert (await fleet.promote("v2")).json()["live"] == "v2"
    seen = len(answers)
    await until(lambda: len(answers) > seen + 60)
    over.set()
    await asyncio.gather(*callers)
    fleet.check(answers)
    assert {a.label for a in answers} == {LABELS[1], LABELS[2]}
    assert {a.label for a in answers[-16:]} == {LABELS[2]}


async def test_stream_keeps_its_version_to_the_end(fleet: Fleet):
    await fleet.ask()
    for engine in fleet.engines.values():
        engine.faults.update({"event_delay": 0.2})
    long = asyncio.create_task(fleet.ask(stream=True, tokens=200, ignore_eos=True))
    await until(lambda: sum(e.state.running.total() for e in fleet.engines.values()) == 1)
    assert (await fleet.promote("v2")).status_code == 200
    assert (await fleet.ask()).label == LABELS[2]
    assert not long.done()
    for engine in fleet.engines.values():
        engine.faults.update({"event_delay": 0.0})
    answer = await long
    fleet.check([answer])
    assert answer.label == LABELS[1]


async def test_a_version_is_resident_before_it_is_live(fleet: Fleet):
    await fleet.ask()
    body = (await fleet.promote("v2")).json()
    assert (body["live"], len(body["resident"]), body["warnings"]) == ("v2", 1, [])
    (loaded,) = fleet.loads(LABELS[2])
    assert body["resident"] == [loaded]
    for worker in fleet.workers:
        await until(lambda w=worker: fleet.adapter(w).live == 2)
        fleet.check([await fleet.ask(worker)])
    assert fleet.loads(LABELS[2]) == [loaded]
    records = [r for w in fleet.workers for r in await w.usage("acme") if r.version == "v2"]
    assert [record.adapter_loads for record in records] == [0, 0]


async def test_it_is_resident_wherever_its_predecessor_is(fleet: Fleet):
    warmer, catalog = fleet.first.state.prewarmer, fleet.first.state.catalog
    await fleet.ask()
    version = catalog.versions[LABELS[1]]
    (held,) = fleet.loads(LABELS[1])
    (other,) = set(fleet.engines) - {held}
    # A second replica, as the placement may come to have.
    await warmer.loader.ensure_resident(
        version, lambda failed: catalog.engines[other], deadline=time.monotonic() + PATIENCE_S, avoid=[held]
    )
    await until(lambda: len(fleet.first.state.residency.holders(version.engine_name)) == 2)
    assert (await fleet.promote("v2")).json()["resident"] == ["a", "b"]
    assert sorted(fleet.loads(LABELS[2])) == ["a", "b"]
    assert (await fleet.promote("v3", weight=10)).json()["resident"] == [fleet.loads(LABELS[3])[0]]


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("refused", 503, "could not be loaded"),
        ("cordoned", 503, "a: cordoned: takes no new adapters; b: cordoned"),
    ],
)
async def test_what_no_engine_can_hold_does_not_become_live(
    fleet: Fleet, trouble: str, status: int, words: str
):
    await fleet.ask()
    match trouble:
        case "refused":
            for engine in fleet.engines.values():
                engine.faults.update({"load_status": 500})
        case "cordoned":
            for name in fleet.engines:
                await fleet.first.set_state(name, "cordoned")
    before = fleet.adapter()
    for weight in (100, 10):
        refused = await fleet.promote("v2", weight=weight)
        assert refused.status_code == status
        error = refused.json()["error"]
        assert words in error["message"]
        assert ("--no-wait" in error["message"]) is (error["code"] == "no_engine")
    assert fleet.adapter() == before
    assert [e.note.action for e in await fleet.first.state.store.audit() if "pin" not in e.note.action] == []
    assert (await fleet.ask()).label == LABELS[1]
    switched = await fleet.promote("v2", wait=False)  # as the operator insists
    assert (switched.status_code, switched.json()["live"]) == (200, "v2")
    assert switched.json()["resident"] is None


async def test_a_version_that_answers_wrongly_does_not_become_live(fleet: Fleet):
    await fleet.ask()
    for engine in fleet.engines.values():
        engine.faults.update({"probe_as": "base", "probe_only": fleet.voice(LABELS[2])})
    before = fleet.adapter()
    for weight, wait in ((100, True), (100, True), (10, True), (10, False), (100, False)):  # a verdict holds
        refused = await fleet.promote("v2", weight=weight, wait=wait)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "version_quarantined")
    assert fleet.adapter() == before
    shown = (await fleet.admin("GET")).json()
    assert [v["state"] for v in shown["version_details"]] == ["live", "quarantined", "ready"]
    assert shown["version_details"][1]["evidence"]
    assert [t["version"] for t in shown["trouble"]] == ["v2"]


async def test_quarantined_canary_costs_no_answer(fleet: Fleet):
    """On another engine it answers otherwise than it did: its callers get what is live."""
    await fleet.promote("v2", weight=50)
    (held,) = fleet.loads(LABELS[2])
    (other,) = set(fleet.engines) - {held}
    fleet.engines[other].faults.update({"probe_as": "base", "probe_only": fleet.voice(LABELS[2])})
    await fleet.first.set_state(held, "draining")
    users = [f"user-{i}" for i in range(40)]
    callers = iter(users)
    while (await fleet.ask(user=next(callers))).status == 200:  # until one finds it out
        pass
    await until(  # the feed has told the workers
        lambda: all(fleet.voice(LABELS[2]) in w.state.catalog.serving_statuses for w in fleet.workers)
    )
    fleet.check([await fleet.ask(worker, user=user) for user in users for worker in fleet.workers])
    assert fleet.adapter().canary == 2


async def test_a_rollback_reaches_every_worker_and_is_warmed_afterwards(fleet: Fleet):
    await fleet.ask()
    await fleet.promote("v2")
    for worker in fleet.workers:
        await until(lambda w=worker: fleet.adapter(w).live == 2)
    holder = fleet.loads(LABELS[1])[0]
    placed = fleet.voice(LABELS[1])
    engine = fleet.first.state.catalog.engines[holder]
    await fleet.first.state.engine_client.unload(engine, placed)  # it has been evicted meanwhile
    await fleet.first.state.store.unplace(holder, placed)
    for name in fleet.engines:  # a load now would be slow: the rollback does not wait for it
        fleet.engines[name].faults.update({"load_delay": 0.3})
    back = await fleet.admin("POST", "/rollback")
    assert (back.json()["live"], back.json()["history"]) == ("v1", [])
    assert len(fleet.loads(LABELS[1])) == 1
    await until(lambda: len(fleet.loads(LABELS[1])) == 2)
    for worker in fleet.workers:
        await until(lambda w=worker: fleet.adapter(w).live == 1)
        answer = await fleet.ask(worker)
        fleet.check([answer])
        assert answer.label == LABELS[1]
    assert (await fleet.admin("POST", "/rollback")).status_code == 404


# -- canaries


async def test_users_keep_their_side_of_a_canary_on_every_worker(fleet: Fleet):
    await fleet.promote("v2", weight=30)
    for worker in fleet.workers:
        await until(lambda w=worker: fleet.adapter(w).canary == 2)
    users = [f"user-{i}" for i in range(60)]
    for worker, by in zip([*fleet.workers, fleet.first], ["user", "user", "safety_identifier"], strict=True):
        answers = await asyncio.gather(*(fleet.ask(worker, **{by: user}) for user in users))
        fleet.check(answers)
        expected = [takes_canary(LABELS[2], 30, "acme", user) for user in users]
        assert [a.label == LABELS[2] for a in answers] == expected
    assert 0 < sum(expected) < len(users)
    await fleet.promote("v2", weight=60)
    wider = await asyncio.gather(*(fleet.ask(user=user) for user in users))
    assert all(a.label == LABELS[2] for a, was_in in zip(wider, expected, strict=True) if was_in)
    assert (await fleet.ask(model="support@v1", user=users[expected.index(True)])).label == LABELS[1]


async def test_all_attempts_of_a_request_are_of_one_version(fleet: Fleet):
    """Half of them fail on their first engine, and go elsewhere as what they were."""
    await fleet.promote("v2", weight=50)
    for engine in fleet.engines.values():
        engine.faults.update({"stop_at": "headers", "stop_how": "close", "times": 15})
    answers = await asyncio.gather(*(fleet.ask() for _ in range(40)))
    served = [a for a in answers if a.status == 200]
    fleet.check(served)
    assert len(served) > 10
    by_request: dict[str, set[str]] = {}
    for record in await fleet.first.usage("acme"):
        by_request.setdefault(record.request_id, set()).add(record.version)
    assert len(by_request) == 40
    assert all(len(versions) == 1 for versions in by_request.values())
    assert {version for versions in by_request.values() for version in versions} == {"v1", "v2"}


# -- retire and remove


@EACH_UNLOAD
async def test_a_retired_version_is_unknown_and_off_the_engines(fleet: Fleet):
    await fleet.ask(model="support@v2")
    assert len(fleet.loads(LABELS[2])) == 1
    retired = await fleet.admin("POST", "/versions/v2/retire")
    assert (retired.status_code, retired.json()["state"]) == (200, "retired")
    await until(  # unless its request was still reported as running, when it is taken off a little later
        lambda: all(fleet.voice(LABELS[2]) not in e.state.adapters for e in fleet.engines.values())
    )
    unknown = await fleet.ask(model="support@v9")
    for worker in fleet.workers:
        await until(lambda w=worker: w.state.catalog.versions[LABELS[2]].retired is not None)
        gone = await fleet.ask(worker, model="support@v2")
        assert (gone.status, gone.code) == (404, unknown.code.replace("v9", "v2"))
    live = await fleet.admin("POST", "/versions/v1/retire")
    assert (live.status_code, live.json()["error"]["code"]) == (409, "in_use")
    assert (await fleet.promote("v2")).status_code == 404
    shown = (await fleet.admin("GET")).json()
    assert shown["versions"] == ["v1", "v3"]
    assert [v["state"] for v in shown["version_details"]] == ["live", "retired", "ready"]


@EACH_UNLOAD
async def test_a_load_that_came_too_late_is_taken_off_again(fleet: Fleet):
    """For a request that was on its way when its version was retired."""
    await fleet.admin("POST", "/versions/v2/retire")
    catalog, loader = fleet.first.state.catalog, fleet.first.state.prewarmer.loader
    await loader.ensure_resident(
        catalog.versions[LABELS[2]],
        lambda failed: catalog.engines["a"],
        deadline=time.monotonic() + PATIENCE_S,
    )
    engine, name = fleet.engines["a"], fleet.voice(LABELS[2])
    assert name in engine.state.adapters
    await engine.until(lambda state: name not in state.adapters)
    await until(lambda: not fleet.first.state.residency.where(name))


async def test_concurrent_changes_are_consistent(fleet: Fleet):
    """Operators on both workers do everything at once, while callers call."""
    await fleet.ask()
    answers: list[Answer] = []

    async def caller(worker: Gateway) -> None:
        answers.extend([await fleet.ask(worker) for _ in range(30)])

    async def operator(worker: Gateway) -> list[int]:
        statuses = []
        for number in (2, 3, 1, 2):
            for method, path, fields in (
                ("PUT", "/live", {"version": f"v{number}"}),
                ("PUT", "/live", {"version": f"v{number % 3 + 1}", "weight": 20}),
                ("PUT", "/pin", {"pinned": bool(number % 2)}),
                ("POST", "/rollback", {}),
                ("POST", "/versions/v3/retire", {}),
            ):
                statuses.append((await fleet.admin(method, path, worker, **fields)).status_code)
        return statuses

    results = await asyncio.gather(
        *(operator(worker) for worker in fleet.workers for _ in range(2)),
        *(caller(worker) for worker in fleet.workers),
    )
    assert {status for statuses in results[:4] for status in statuses} <= {200, 404, 409}
    fleet.check(answers)
    await until(lambda: fleet.adapter(fleet.workers[0]) == fleet.adapter(fleet.workers[1]))
    adapter, versions = fleet.adapter(), fleet.first.state.catalog.versions
    assert adapter.live in {1, 2, 3}
    assert adapter.canary != adapter.live
    for number in {adapter.live, adapter.canary, *adapter.history} - {None}:
        assert versions[LABELS[number]].retired is None
    documents = (await fleet.first.state.store.snapshot()).documents
    pinned = {adapter.live, adapter.canary} - {None} if adapter.pinned else set()
    assert {json.loads(text)["version"] for text in documents["pin"].values()} == {LABELS[n] for n in pinned}


# -- Redis away


async def test_redis_away_in_the_middle_changes_nothing_by_halves(tmp_path: Path):
    with EmbeddedValkey(tmp_path / "redis") as valkey:
        async with (
            running_gateway(tmp_path / "one", valkey.url, "florin", placement_timeout=3.0) as one,
            MockEngine(max_loras=3) as a,
            Fleet([one], {"a": a}, tmp_path) as fleet,
        ):
            await one.add_engine("a", a.url, slots=3)
            await one.add_tenant("acme")
            for _ in range(3):
                await fleet.add_version()
            await fleet.ask()
            await until(lambda: one.state.residency.holders(fleet.voice(LABELS[1])))
            before = fleet.adapter()
            a.faults.update({"load_delay": 0.5})
            switching = asyncio.create_task(fleet.promote("v2"))
            await a.until(lambda state: state.probes["/v1/load_lora_adapter"] == 2)
            os.kill(valkey.pid, signal.SIGKILL)  # between the load and the commit
            refused = await switching
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
            for path, fields in (("/rollback", {}), ("/versions/v2/retire", {})):
                assert (await fleet.admin("POST", path, **fields)).status_code == 503
            fleet.check([await fleet.ask(stream=True)])  # what is live goes on
            assert (await fleet.admin("GET")).json()["live"] == "v1"
            await asyncio.to_thread(valkey.start)
            await until(lambda: one.state.follower.connected)
            assert fleet.adapter() == before
            # (The claim of the interrupted load holds for some seconds yet, as if its worker had died.)
            assert (await fleet.promote("v3")).status_code == 200
            answer = await fleet.ask()
            fleet.check([answer])
            assert answer.label == LABELS[3]
