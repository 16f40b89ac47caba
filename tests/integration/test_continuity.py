"""A registry that is not what it was: failed over with lost writes, joined by others meanwhile, emptied by hand.
In one process, on a real Valkey; the keys are put back to what they were as a promoted replica would have
them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis import Redis

from adapters.errors import RegistryRegressedError
from adapters.registry.mass_removal import COUNT_SECONDS
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import Change
from gateway.tenants.directory import Tenant, dump
from loadtests.mock_engine import MockEngine
from tests.support.alerting import fires, silent
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.valkey_servers import ask as command
from tests.support.valkey_servers import be_patient, servers, start_sentinels
from tests.support.waiting import until


def codes(gateway: Gateway) -> list[str]:
    return [condition.code for condition in gateway.state.conditions.now()]


async def ask(gateway: Gateway) -> None:
    async with gateway.client("acme") as client:
        await client.chat.completions.create(
            model="support", messages=[{"role": "user", "content": "x"}], max_tokens=1
        )


class Replica:
    """What a replica had at one moment."""

    def __init__(self, url: str, prefix: str) -> None:
        self._redis = Redis.from_url(url)
        self._pattern = f"{{{prefix}}}:*"
        self._then = {key: self._redis.dump(key) for key in self._redis.keys(self._pattern)}

    def promote(self) -> None:
        with self._redis.pipeline(transaction=True) as pipe:
            for key in self._redis.keys(self._pattern):
                pipe.delete(key)
            for key, value in self._then.items():
                pipe.restore(key, 0, value)
            pipe.execute()
        self._redis.close()


async def decide(gateway: Gateway, decision: str) -> dict:
    async with gateway.http() as http:
        shown = (await http.get("/admin/v1/registry")).json()
        assert shown["status"] == "regressed"
        answer = await http.post(f"/admin/v1/registry/{decision}", json={"found": shown["found"]})
        assert answer.status_code == 200, answer.text
        return shown | answer.json()


async def test_writes_lost_in_a_failover_are_put_back(gateway: Gateway, valkey_url: str, prefix: str):
    await gateway.add_tenant("acme")
    replica = Replica(valkey_url, prefix)
    key = await gateway.add_tenant("bolt")
    known = gateway.state.follower.position
    replica.promote()
    await until(lambda: codes(gateway) == ["registry_regressed"])
    with pytest.raises(RegistryRegressedError):
        await gateway.state.store.commit([Change("tenant", "c", dump(Tenant("c", False, 0)))])
    async with gateway.http() as http:
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code == 200
        shown = (await http.get("/admin/v1/registry")).json()
    assert shown["differences"]["tenant"] == {"missing": {"count": 1, "first": ["bolt"]}}
    await decide(gateway, "rewrite")
    assert codes(gateway) == []
    assert gateway.state.follower.position.installation == known.installation
    await gateway.add_tenant("dora")
    assert gateway.state.directory.tenants.keys() == {"acme", "bolt", "dora"}


async def test_a_real_replica_that_was_behind_is_promoted(tmp_path: Path):
    """What it lacks, and what a restore puts back: a tenant, an adapter, and a new version."""
    with servers(tmp_path / "valkey") as running:
        (tmp_path / "valkey").mkdir()
        primary, replica, sentinels = await asyncio.to_thread(start_sentinels, running, tmp_path / "valkey")
        await asyncio.to_thread(be_patient, "sentinel", sentinels, 60_000)
        url = "redis+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in sentinels) + "/main"
        async with (
            MockEngine() as engine,
            running_gateway(tmp_path / "state", url, "florin") as gateway,
            gateway.http() as http,
        ):
            await gateway.add_engine("a", engine.url)
            await gateway.add_tenant("acme")
            await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "support"))
            await ask(gateway)
            doctor = (await http.get("/admin/v1/doctor")).json()["data"]
            (ready,) = [found for found in doctor if found["check"] == "redis_replicas"]
            assert ready["message"] == "Replicas that could take over: 1."
            assert command(primary, "WAIT", 1, 60_000) == 1
            command(replica, "CONFIG", "SET", "primaryauth", "wrong")  # it does not come back
            command(replica, "CLIENT", "KILL", "TYPE", "primary")
            await until(lambda: Redis(port=primary).info("replication")["connected_slaves"] == 0)
            await gateway.add_tenant("bolt")
            await gateway.add_adapter("bolt/late", fake_adapter(tmp_path / "late"))
            await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "two"), number=2)
            await asyncio.to_thread(be_patient, "sentinel", sentinels, 500)
            running.kill(primary)
            await until(lambda: codes(gateway) == ["registry_regressed"])
            shown = (await http.get("/admin/v1/registry")).json()
            lost = {
                kind: found["missing"]["first"]
                for kind, found in shown["differences"].items()
                if "missing" in found
            }
            assert lost["tenant"] == ["bolt"]
            assert lost["version"] == ["acme/support@v2", "bolt/late@v1"]
            assert shown["differences"]["adapter"]["changed"]["first"] == ["acme/support"]
            await decide(gateway, "rewrite")
            async with gateway.client("bolt") as client:
                late = await client.chat.completions.with_raw_response.create(
                    model="late", messages=[{"role": "user", "content": "x"}], max_tokens=1
                )
            assert late.headers["x-florin-adapter"] == "bolt/late@v1"
            assert gateway.state.catalog.adapters["acme/support"].live == 2


async def test_other_writes_in_the_place_of_lost_ones_are_noticed(
    gateway: Gateway, tmp_path: Path, valkey_url: str, prefix: str
):
    """The same number of changes, and more of them, but others: by a gateway that knew no better."""
    await gateway.add_tenant("acme")
    replica = Replica(valkey_url, prefix)
    await gateway.add_tenant("bolt")
    replica.promote()
    ledger = f"sqlite:///{tmp_path / 'state' / 'ledger.db'}"
    async with running_gateway(tmp_path / "two", valkey_url, prefix, ledger_url=ledger) as two:
        for name in ("x", "y", "z"):
            await two.add_tenant(name)
        assert two.state.follower.seq > gateway.state.follower.seq
        await until(lambda: codes(gateway) == ["registry_regressed"])
        assert codes(two) == []
        await decide(gateway, "rewrite")
        await until(lambda: two.state.directory.tenants.keys() == {"acme", "bolt"})
        await two.add_tenant("dora")
        await until(lambda: "dora" in gateway.state.directory.tenants)
        assert codes(two) == codes(gateway) == []


async def test_a_gateway_that_knew_nothing_begins_anew_and_is_overruled(
    gateway: Gateway, tmp_path: Path, valkey_url: str, prefix: str
):
    """Flushed, and a gateway with a new state directory comes first: it cannot know."""
    await gateway.add_tenant("acme")
    with Redis.from_url(valkey_url) as redis:
        redis.delete(*redis.keys(f"{{{prefix}}}:*"))
        ledger = (
            f"sqlite:///{tmp_path / 'state' / 'ledger.db'}"  # the first may announce itself again at any time
        )
        async with running_gateway(tmp_path / "two", valkey_url, prefix, ledger_url=ledger) as two:
            assert codes(two) == []
            await two.add_tenant("stranger")
            await until(lambda: codes(gateway) == ["registry_regressed"])
            shown = await decide(gateway, "rewrite")
            assert shown["left"]["tenant"] == 1
            await until(lambda: two.state.directory.tenants.keys() == {"acme"})
            assert codes(two) == codes(gateway) == []
        async with running_gateway(
            tmp_path / "three", valkey_url, prefix, ledger_url=ledger
        ) as three:  # and later ones join
            assert three.state.directory.tenants.keys() == {"acme"}
            assert codes(three) == []


async def test_lost_placements_need_no_decision(
    gateway: Gateway, tmp_path: Path, valkey_url: str, prefix: str
):
    async with MockEngine() as engine:
        await gateway.add_engine("a", engine.url)
        await gateway.add_tenant("acme")
        version = await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
        await ask(gateway)
        await until(lambda: gateway.state.residency.holders(version.engine_name))
        replica = Replica(valkey_url, prefix)
        known = gateway.state.follower.seq
        await gateway.state.store.mark_lost("a")  # and the reconciler sees to it
        await until(lambda: gateway.state.follower.seq > known)
        replica.promote()
        await until(lambda: gateway.state.follower.rewound)
        await until(lambda: gateway.state.follower.connected)
        assert codes(gateway) == []
        await ask(gateway)
        await gateway.state.snapshot_writer.keep()
    async with running_gateway(tmp_path / "state", valkey_url, prefix) as again:
        assert codes(again) == []


async def test_large_ordinary_removals_raise_a_condition(gateway: Gateway, tmp_path: Path):
    names = [f"t{n}" for n in range(8)]
    for name in names:
        await gateway.commit(Change("tenant", name, dump(Tenant(name, False, 0))))
    await asyncio.sleep(COUNT_SECONDS)
    assert codes(gateway) == []
    async with gateway.http() as http:
        before = (await http.get("/metrics")).text
        await gateway.commit(*(Change("tenant", name, None) for name in names[:6]))
        await until(lambda: codes(gateway) == ["registry_shrinking"])
        metric = 'florin_condition{condition="registry_shrinking"} 1.0'

        async def told() -> str:  # gauges are set once a second
            text = (await http.get("/metrics")).text
            return text if metric in text else ""

        during = await until(told)
        doctor = (await http.get("/admin/v1/doctor")).json()["data"]
    assert silent("FlorinRegistryShrinking", before, tmp_path)
    assert fires("FlorinRegistryShrinking", before, during, tmp_path)
    assert "6 of 8 tenants" in next(d["message"] for d in doctor if d["check"] == "registry_shrinking")


async def test_nothing_is_decided_where_nothing_is_lost_or_all_has_changed(
    gateway: Gateway, valkey_url: str, prefix: str
):
    await gateway.add_tenant("acme")
    async with gateway.http() as http:
        found = (await http.get("/admin/v1/registry")).json()["found"]
        answer = await http.post("/admin/v1/registry/rewrite", json={"found": found})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        replica = Replica(valkey_url, prefix)
        await gateway.add_tenant("bolt")
        replica.promote()
        await until(lambda: codes(gateway) == ["registry_regressed"])
        answer = await http.post("/admin/v1/registry/rewrite", json={"found": found + "x"})
        assert answer.status_code == 409
        assert (await http.get("/v1/models", headers={"authorization": "Bearer x"})).status_code == 503


async def test_without_redis_a_registry_cannot_be_looked_at(tmp_path: Path):
    with EmbeddedValkey(tmp_path / "redis") as valkey:
        async with (
            running_gateway(tmp_path / "state", valkey.url, "florin") as gateway,
            gateway.http() as http,
        ):
            await asyncio.to_thread(valkey.stop)
            await until(lambda: not gateway.state.follower.connected)
            answer = await http.get("/admin/v1/registry")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
