"""Redis comes back without what it held, or not at all: the command as people run it, with the real client."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from openai import OpenAI, OpenAIError
from redis import Redis

from adapters.store.embedded import EmbeddedValkey
from loadtests.mock_engine.process import MockProcess
from tests.integration.test_cli import KEY, Served, serving, workers
from tests.support.alerting import fires, silent
from tests.support.harness import fake_adapter, running_gateway
from tests.support.waiting import PATIENCE_S, until_now


class Traffic:
    """One customer's calls, one after the other, none of them tried twice."""

    def __init__(self, url: str, key: str) -> None:
        self._client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered: list[str] = []
        self.failed: list[OpenAIError] = []

    def ask(self) -> str:
        answer = self._client.chat.completions.with_raw_response.create(
            model="support", messages=[{"role": "user", "content": "hello"}], max_tokens=2
        )
        return answer.headers["x-florin-adapter"]

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self.answered.append(self.ask())
            except OpenAIError as error:
                self.failed.append(error)

    def more(self, count: int = 20) -> None:
        """Returns when so many more have been answered, or some have failed."""
        enough = len(self.answered) + count
        until_now(lambda: len(self.answered) >= enough or self.failed)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            self.close()

    def close(self) -> None:
        self._client.close()


def ask(gateway: Served, method: str, path: str, *, key: str = KEY, body: object = None) -> httpx2.Response:
    """Each time on a connection of its own, so by any worker."""
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    with httpx2.Client(base_url=gateway.url, headers=headers, verify=False, timeout=PATIENCE_S) as http:
        return http.request(method, path, json=body)


def ready(gateway: Served) -> dict[str, Any]:
    answer = ask(gateway, "GET", "/readyz")
    return {"http": answer.status_code, **answer.json()}


def is_degraded(gateway: Served, condition: str) -> bool:
    """It serves without Redis, and says so."""
    answer = ready(gateway)
    rest = answer["http"], answer["status"], answer["redis"]
    return rest == (200, "degraded", False) and condition in answer["conditions"]


def all_know(gateway: Served, *, redis: bool) -> bool:
    """Whether every worker, as far as a dozen questions tell, has Redis."""
    return {ready(gateway)["redis"] for _ in range(12)} == {redis}


def conditions(gateway: Served) -> set[str]:
    """Of any worker."""
    lines = ask(gateway, "GET", "/metrics").text.splitlines()
    return {
        line.split('"')[1] for line in lines if line.startswith("florin_condition{") and line[-3:] == "1.0"
    }


def refusal(gateway: Served) -> str:
    answer = ask(gateway, "POST", "/admin/v1/tenants", body={"name": "bolt"})
    assert answer.status_code == 503
    return answer.json()["error"]["code"]


@pytest.fixture
def engine() -> Iterator[MockProcess]:
    with MockProcess() as running:
        yield running


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path / "redis") as server:
        yield server


async def customer(tmp_path: Path, valkey: EmbeddedValkey, engine: MockProcess) -> str:
    """An installation with acme/support on a1, where it is loaded; acme's key."""
    async with running_gateway(tmp_path / "state", valkey.url, "florin") as gateway:
        await gateway.add_engine("a1", engine.url)
        key = await gateway.add_tenant("acme")
        await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        with closing(Traffic(gateway.url, key)) as traffic:
            assert await asyncio.to_thread(traffic.ask) == "acme/support@v1"
        return key


async def test_a_flushed_registry_costs_no_request_and_is_put_back(
    tmp_path: Path, valkey: EmbeddedValkey, engine: MockProcess
):
    key = await customer(tmp_path, valkey, engine)
    with serving(tmp_path / "state", FLORIN_REDIS_URL=valkey.url, FLORIN_WORKERS="2") as gateway:
        traffic = Traffic(gateway.url, key)
        loads = loaded(engine)
        before = ask(gateway, "GET", "/metrics").text
        family = psutil.Process(gateway.process.pid)
        with traffic.running(), Redis.from_url(valkey.url) as redis:
            traffic.more()
            redis.flushall()
            until_now(lambda: all_know(gateway, redis=False))
            traffic.more()

            until_now(lambda: is_degraded(gateway, "registry_regressed"), what=lambda: str(ready(gateway)))
            until_now(lambda: "registry_regressed" in conditions(gateway))
            during = ask(gateway, "GET", "/metrics").text
            doctor = ask(gateway, "GET", "/admin/v1/doctor").json()["data"]
            assert ("registry_regressed", "problem") in {(d["check"], d["status"]) for d in doctor}
            assert ask(gateway, "GET", "/v1/models", key="fl_new_key").status_code == 503  # and not 401
            assert refusal(gateway) == "registry_regressed"
            assert traffic.failed == []

            old = workers(family)
            old[0].kill()  # its successor has only the disk to go by
            until_now(lambda: old[0] not in workers(family) and len(workers(family)) == 2)
            until_now(lambda: all_know(gateway, redis=False))
            traffic.failed.clear()  # what was on the worker that was killed
            traffic.more()
            written = {key.rpartition(b":")[2] for key in redis.scan_iter()}
            assert written <= {b"last_use"}, "nobody has written anything of the registry there"

            shown = ask(gateway, "GET", "/admin/v1/registry").json()
            assert (shown["known"]["tenant"], shown["left"]["tenant"]) == (1, 0)
            restored = gateway.json("registry", "rewrite", "--yes")
            assert restored["status"] == "ok"
            until_now(lambda: all_know(gateway, redis=True))
            traffic.more()
        assert traffic.failed == []
        assert set(traffic.answered) == {"acme/support@v1"}
        assert loaded(engine) == loads
        assert ask(gateway, "POST", "/admin/v1/tenants", body={"name": "bolt"}).status_code == 201
        assert ask(gateway, "GET", "/admin/v1/registry").json()["status"] == "ok"
        actions = [entry["action"] for entry in ask(gateway, "GET", "/admin/v1/audit").json()["data"]]
        assert "registry.rewrite" in actions
        marks = list((tmp_path / "state" / "artifacts" / ".installations").iterdir())
        assert len(marks) == 1  # shared with nobody, itself included
    assert silent("FlorinRegistryRegressed", before, tmp_path)
    assert fires("FlorinRegistryRegressed", before, during, tmp_path)


async def test_a_gateway_starts_without_redis_and_sees_that_it_came_back_empty(
    tmp_path: Path, valkey: EmbeddedValkey, engine: MockProcess
):
    state = tmp_path / "state"
    key = await customer(tmp_path, valkey, engine)
    assert (state / "registry-kept.json").stat().st_mode & 0o777 == 0o600
    (salt,) = salts(engine)
    valkey.stop()
    with serving(state, FLORIN_REDIS_URL=valkey.url, FLORIN_WORKERS="2") as gateway:
        traffic = Traffic(gateway.url, key)
        assert traffic.ask() == "acme/support@v1"
        assert is_degraded(gateway, "feed_lost"), ready(gateway)
        assert refusal(gateway) == "store_unavailable"
        family = psutil.Process(gateway.process.pid)
        old = workers(family)
        old[0].kill()
        until_now(lambda: old[0] not in workers(family) and len(workers(family)) == 2)
        assert traffic.ask() == "acme/support@v1"
        assert salts(engine) == {salt}

        with traffic.running():
            traffic.more()
            valkey.start()
            until_now(lambda: all_know(gateway, redis=True))
            traffic.more()
            assert ask(gateway, "POST", "/admin/v1/tenants", body={"name": "bolt"}).status_code == 201

            valkey.stop()
            shutil.rmtree(tmp_path / "redis" / "valkey")
            valkey.start()
            until_now(lambda: all_know(gateway, redis=False))
            until_now(lambda: is_degraded(gateway, "registry_regressed"))
            traffic.more()
        assert traffic.failed == []

    async with running_gateway(state, valkey.url, "florin") as again, again.http() as http:
        assert "registry_regressed" in [c.code for c in again.state.conditions.now()]
        with closing(Traffic(again.url, key)) as traffic:
            assert await asyncio.to_thread(traffic.ask) == "acme/support@v1"
        shown = (await http.get("/admin/v1/registry")).json()
        assert (shown["known"]["tenant"], shown["left"]["tenant"]) == (2, 0)
        answer = await http.post("/admin/v1/registry/accept", json={"found": shown["found"]})
        assert answer.json()["known"]["tenant"] == 0  # intended, this time
        assert "registry_regressed" not in [c.code for c in again.state.conditions.now()]
        kept = again.state.lifecycle.cache_secret.decode()  # which workers that start later need, too
        assert await again.state.store.secret("cache_salt", "another") == kept
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code == 401
    assert '"epoch":1' in (state / "registry-kept.json").read_text().splitlines()[1]
    assert '"acme"' in (state / "registry-previous.json").read_text()


def loaded(engine: MockProcess) -> list[dict]:
    return [call for call in engine.log()["admin"] if call["status"] == 200]


def salts(engine: MockProcess) -> set[str]:
    return {call["body"]["cache_salt"] for call in engine.log()["calls"]}
