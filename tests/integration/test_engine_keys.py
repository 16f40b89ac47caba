"""Keys of role engine and metrics, and the tokens by which hosts come to theirs: what they may do, and that they
may do nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest
from aiohttp import web

from adapters.model import dump as dump_model
from adapters.placement.engine_client import EngineClient
from adapters.store.protocol.registry import Change
from gateway.tenants.directory import Pins, Role, dump, mint
from loadtests.mock_engine import MockEngine
from tests.support.engine_hosts import add_version
from tests.support.harness import Gateway, running_gateway


async def minted(gateway: Gateway, role: Role, **fields) -> str:
    key, text = mint("", role, time.time_ns() // 1000, **fields)
    await gateway.commit(Change("key", key.id, dump(key)))
    return text


def said(engine: MockEngine, name: str = "h1", **fields) -> dict:
    process = {"epoch": "e1", "instance": "i1", "agent": "http://127.0.0.1:9"} | fields.pop("process", {})
    return {
        "name": name, "url": engine.url, "base": "base", "gpu_type": "H100", "slots": 2, "max_rank": 8,
        "process": process, **fields,
    }  # fmt: skip


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@asynccontextmanager
async def enrolled(gateway: Gateway, name: str = "h1", **pins):
    async with gateway.http(await minted(gateway, Role.ENGINE, engine=name, pins=Pins(**pins))) as http:
        http.base_url = httpx2.URL(f"{gateway.url}/admin/v1/")
        yield http


@pytest.fixture
async def mock():
    async with MockEngine() as running:
        yield running


# -- nothing else


async def test_an_engines_key_is_for_no_other_engine_whether_there_is_one_or_not(gateway, mock):
    await gateway.add_engine("there", "http://127.0.0.1:9")
    async with enrolled(gateway) as http:
        for other in ("there", "none", "H1", "h1%2F..%2Fthere"):
            for answer in (
                await http.get(f"engines/{other}"),
                await http.put(f"engines/{other}/heartbeat", json={"epoch": "e", "instance": "i"}),
                await http.put(f"engines/{other}/stopping", json={"epoch": "e"}),
                await http.post("engines", json=said(mock, other)),
            ):
                if "%2F" in other and answer.status_code == 404:
                    continue  # no route at all
                assert code(answer) == (403, "insufficient_role"), other
    assert mock.state.admin == [], "nothing was asked of the URL that it gave"
    assert set(gateway.state.catalog.engines) == {"there"}


# -- what a host says of itself


async def test_only_an_operator_sets_an_engine_aside(gateway, mock):
    await gateway.add_tenant("acme")
    async with enrolled(gateway) as http:
        answer = await http.post("engines", json=said(mock, tenant="acme"))
        assert code(answer) == (403, "engine_pinned")
    async with enrolled(gateway, tenant="acme") as http:
        assert (await http.post("engines", json=said(mock))).json()["tenant"] == "acme"


async def test_a_host_registers_its_engine_says_that_it_lives_and_stops_it(gateway, mock):
    async with enrolled(gateway) as http:
        assert (await http.get("engines/h1")).status_code == 404
        made = await http.post("engines", json=said(mock))
        assert made.status_code == 201, made.text
        assert made.json()["agent_token"]
        heartbeat = {"epoch": "e1", "instance": "i1"}
        assert (await http.put("engines/h1/heartbeat", json=heartbeat)).json() == {"known": True}
        assert (await http.get("engines/h1")).json()["heartbeat"]["instance"] == "i1"
        assert (await http.put("engines/h1/stopping", json={"epoch": "e1"})).json()["stopping"] is True
        again = await http.post("engines", json=said(mock, process={"epoch": "e2"}, slots=2))
        assert again.status_code == 200, again.text
    key = next(k for k in gateway.state.directory.keys.values() if k.role is Role.ENGINE)
    assert key.pins == Pins("base", "H100", 1, "", "on_demand", labels={}, serves="")
    assert gateway.state.catalog.engines["h1"].key == key.id
    notes = [e.note for e in await gateway.state.store.audit()]
    assert [(n.actor, n.action) for n in notes] == [
        (f"key:{key.id}", action) for action in ("engine.add", "engine.stop", "engine.epoch")
    ]
    assert notes[0].details["url"] == {"new": mock.url}


async def test_what_money_and_traffic_follow_is_settled_by_the_first_registration(gateway, mock):
    """tests/unit/gateway/tenants/test_engine_pins.py has all fields."""
    async with enrolled(gateway) as http:
        assert (await http.post("engines", json=said(mock))).status_code == 201
        before = gateway.state.catalog.engines["h1"]
        asked = len(mock.state.calls)
        for changed in ({"gpu_type": "H200"}, {"base": "b2"}, {"labels": {"pool": "a"}}):
            refused = await http.post("engines", json=said(mock, **changed))
            assert code(refused) == (403, "engine_pinned")
            assert next(iter(changed)) in refused.json()["error"]["message"]
        assert (gateway.state.catalog.engines["h1"], len(mock.state.calls)) == (before, asked)
        async with gateway.http() as admin:  # an operator may, and then the host follows by a new enrolment
            assert (
                await admin.post("/admin/v1/engines", json=said(mock, gpu_type="H200"))
            ).status_code == 200
        await gateway.commit(Change("engine", "h1", None))  # and it stays settled
        assert code(await http.post("engines", json=said(mock, gpu_type="H200"))) == (403, "engine_pinned")
        assert (await http.post("engines", json=said(mock))).status_code == 201


async def test_what_an_operator_pinned_holds_from_the_first_registration_on(gateway, mock):
    async with enrolled(gateway, gpu_type="L40S", labels={"pool": "a"}) as http:
        for fields in ({"labels": {"pool": "a"}}, {"gpu_type": "L40S", "labels": {"pool": "a", "tier": "1"}}):
            assert code(await http.post("engines", json=said(mock, **fields))) == (403, "engine_pinned")
        body = said(mock, gpu_type="L40S", labels={"pool": "a"})
        assert (await http.post("engines", json=body)).status_code == 201


async def test_requests_are_sent_only_to_the_host_that_registers(gateway, mock):
    async with enrolled(gateway) as http:
        for fields in ({"url": "http://10.0.0.1:8000"}, {"process": {"agent": "http://evil.example"}}):
            answer = await http.post("engines", json=said(mock) | said(mock, **fields))
            assert code(answer) == (403, "engine_pinned")
            assert "--address" in answer.json()["error"]["message"]
    assert gateway.state.catalog.engines == {}


async def test_a_host_does_not_settle_which_kind_of_engine_a_fleet_has(gateway, mock):
    """`florin engine run` runs vLLM, and a fleet is of one kind: another kind would keep all others out."""
    async with enrolled(gateway) as http:
        answer = await http.post("engines", json=said(mock, driver="sglang"))
        assert (code(answer), answer.json()["error"]["param"]) == ((400, "invalid_value"), "driver")
    assert gateway.state.catalog.engines == {}


async def test_a_key_made_without_a_token_can_have_its_address_pinned(gateway, mock):
    async with gateway.http() as admin:
        made = await admin.post(
            "/admin/v1/keys", json={"role": "engine", "engine": "h1", "address": "localhost"}
        )
        assert made.json()["pins"] == {"address": "localhost"}
    async with gateway.http(made.json()["key"]) as http:
        body = said(mock, url=f"http://localhost:{mock.port}", process={"agent": "http://localhost:9"})
        assert code(await http.post("/admin/v1/engines", json=said(mock))) == (403, "engine_pinned")
        assert (await http.post("/admin/v1/engines", json=body)).status_code == 201


async def test_an_engines_key_registers_only_what_an_agent_runs_and_is_always_verified(gateway, mock):
    async with enrolled(gateway) as http:
        by_url = said(mock)
        del by_url["process"]
        assert code(await http.post("engines", json=by_url | {"base_config": "/etc"})) == (
            400,
            "invalid_value",
        )
        unverified = said(mock, base="another", verify=False)
        assert code(await http.post("engines", json=unverified)) == (422, "engine_rejected")


async def test_a_host_completes_what_is_known_of_a_base_model_and_changes_nothing_of_it(gateway):
    async with AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(MockEngine()) for _ in range(3)]
        of = {"hidden_size": 8, "architectures": ["X"]}
        async with enrolled(gateway, "h1") as http:
            await http.post("engines", json=said(first, "h1", base_aliases=["/m/llama"]))
        async with enrolled(gateway, "h2") as http:
            process = {"config": of, "chat_template": "a" * 64}
            body = said(second, "h2", base_aliases=["/other"], process=process)
            assert (await http.post("engines", json=body)).status_code == 201
        known = gateway.state.catalog.bases["base"]
        assert (known.config, known.chat_template) == (of, "a" * 64)
        assert "/m/llama" in known.aliases
        assert "/other" not in known.aliases
        async with enrolled(gateway, "h3") as http:
            process = {"config": of | {"more": 1}, "chat_template": "b" * 64}
            assert (await http.post("engines", json=said(third, "h3", process=process))).status_code == 201
        assert gateway.state.catalog.bases["base"] == known


async def test_a_base_models_config_that_could_not_be_stored_is_refused(gateway, mock):
    body = json.dumps(said(mock, process={"config": {"PUT": "IT HERE"}}))
    async with enrolled(gateway) as http:
        for config in (
            '{"hidden_size": NaN}', '{"x": "\\ud800"}', '{"x": 1e400}', '{"x": 340282366920938463463374607431768211456}',
            '{"x": ' + "[" * 500 + "]" * 500 + "}",
        ):  # fmt: skip
            content = body.replace('{"PUT": "IT HERE"}', config)
            answer = await http.post("engines", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 400, answer.text
    assert gateway.state.catalog.bases == {}


async def test_invalid_heartbeat_is_refused(gateway, mock):
    async with enrolled(gateway) as http:
        await http.post("engines", json=said(mock))
        for field in (
            {"started": 10**400},
            {"starts": -1},
            {"cached_bytes": 1 << 60},
            {"epoch": "\x1b[2J"},
            {"more": 1},
        ):
            heartbeat = {"epoch": "e1", "instance": "i1"} | field
            assert code(await http.put("engines/h1/heartbeat", json=heartbeat)) == (400, "invalid_value"), (
                field
            )


async def test_doctor_names_hosts_that_work_with_an_operators_key(gateway):
    async with (
        MockEngine() as first,
        MockEngine() as second,
        gateway.http() as admin,
        enrolled(gateway) as http,
    ):
        await http.post("engines", json=said(first))
        await admin.post("/admin/v1/engines", json=said(second, "h2"))
        checks = (await admin.get("/admin/v1/doctor")).json()["data"]
    found = [(d["subject"], d["status"]) for d in checks if d["check"] == "host_key"]
    assert found == [("h2", "warning")]


# -- files


async def test_a_host_is_given_the_files_of_what_is_placed_on_its_engine_and_no_others(gateway, mock):
    await gateway.add_tenant("acme")
    await gateway.add_engine("h1", mock.url)
    await gateway.add_engine("h2", "http://127.0.0.1:9")
    mine, others, nowhere = [await add_version(gateway, f"acme/{n}") for n in ("mine", "others", "nowhere")]
    store = gateway.state.store
    for engine, version in (("h1", mine), ("h2", others)):
        await store.claim(version.engine_name, engine, slots=2, owner="w", ttl_ms=60_000)

    def path(version) -> str:
        return f"artifacts/{version.digest.removeprefix('sha256:')}/adapter_config.json"

    missing = f"artifacts/{'0' * 64}/adapter_config.json"
    async with enrolled(gateway) as http:
        assert (await http.get(path(mine))).status_code == 200
        refused = [await http.get(p) for p in (path(others), path(nowhere), missing)]
        assert [r.status_code for r in refused] == [404] * 3
        shapes = {r.json()["error"]["message"].split("sha256:")[0] for r in refused}
        assert len(shapes) == 1, "not placed here and not there are told apart"
        await store.unplace("h1", mine.engine_name)
        assert (await http.get(path(mine))).status_code == 404


async def test_a_host_is_given_files_at_its_engines_address_alone(gateway):
    await gateway.add_tenant("acme")
    answers = []
    for name, url in (("h1", "http://192.0.2.7:8000"), ("h2", "http://localhost:9")):
        await gateway.add_engine(name, url)
        version = await add_version(gateway, f"acme/{name}")
        await gateway.state.store.claim(version.engine_name, name, slots=2, owner="w", ttl_ms=60_000)
        async with enrolled(gateway, name) as http:
            digest = version.digest.removeprefix("sha256:")
            answers.append(await http.get(f"artifacts/{digest}/adapter_config.json"))
    elsewhere, there = answers
    assert code(elsewhere) == (403, "engine_pinned")
    assert there.status_code == 200


# -- agents and the gateway


def test_the_gateways_token_for_an_agent_is_of_one_engine_and_one_key():
    control = EngineClient(None, timeout=1, agent_secret=b"of all workers")  # type: ignore[arg-type]  # calls nobody
    of = (("h1", ""), ("h2", ""), ("h1", "k1"), ("h1", "k2"), ("h2", "k1"))
    tokens = {control.agent_token(*engine_and_key) for engine_and_key in of}
    assert len(tokens) == 5
    assert "of all workers" not in tokens


async def test_with_a_new_key_an_engine_registers_again_and_its_agent_hears_a_new_token(gateway, mock):
    async with enrolled(gateway) as old, enrolled(gateway) as new:
        first = (await old.post("engines", json=said(mock))).json()["agent_token"]
        heartbeat = {"epoch": "e1", "instance": "i1"}
        assert (await new.put("engines/h1/heartbeat", json=heartbeat)).json() == {"known": False}
        second = (await new.post("engines", json=said(mock))).json()["agent_token"]
        assert second != first
        assert (await new.put("engines/h1/heartbeat", json=heartbeat)).json() == {"known": True}


# -- enrolment


def sha256(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


async def new_token(admin: httpx2.AsyncClient, **body) -> str:
    answer = await admin.post("/admin/v1/enrolment-tokens", json={"engine": "h1"} | body)
    assert answer.status_code == 201, answer.text
    return answer.json()["token"]


async def exchanged(gateway: Gateway, token: str, secret: str, engine: str = "h1") -> httpx2.Response:
    async with gateway.http(token) as http:
        return await http.post("/admin/v1/enrol", json={"engine": engine, "secret": sha256(secret)})


async def test_a_token_becomes_the_hosts_own_key_once(gateway, mock):
    async with gateway.http() as admin:
        token = await new_token(admin, gpu_type="H100", expires_in=60)
        assert code(await exchanged(gateway, token, "k1", engine="h2")) == (400, "invalid_value")
        done = await exchanged(gateway, token, "k1")
        assert (done.status_code, done.json()["engine"]) == (201, "h1")
        assert done.json()["pins"] == {"gpu_type": "H100"}
        assert code(await exchanged(gateway, token, "k2")) == (401, "revoked_api_key")
        listed = (await admin.get("/admin/v1/keys")).json()["data"]
        assert {(k["role"], k["engine"], k["revoked"] is None) for k in listed} == {
            ("enrolment", "h1", False), ("engine", "h1", True)
        }  # fmt: skip
        entry = (await gateway.state.store.audit())[-1].note
        assert (entry.action, entry.subject, entry.details) == ("token.use", "h1", {"key": done.json()["id"]})
        assert entry.actor == f"key:{next(k['id'] for k in listed if k['role'] == 'enrolment')}"
        text = str(listed) + str(await gateway.state.store.audit())
        assert token not in text
    async with gateway.http("k1") as http:
        assert (await http.post("/admin/v1/engines", json=said(mock))).status_code == 201


async def test_of_many_who_exchange_one_token_at_once_one_succeeds(tmp_path, valkey_url, prefix):
    """By two gateways, that no one process decides."""
    async with (
        running_gateway(tmp_path / "a", valkey_url, prefix) as a,
        running_gateway(tmp_path / "b", valkey_url, prefix) as b,
        a.http() as admin,
    ):
        for round_ in range(3):
            token = await new_token(admin)
            async with b.http(token) as http:
                while (await http.get("/admin/v1/keys")).status_code == 401:
                    await asyncio.sleep(0.01)
            answers = await asyncio.gather(
                *(exchanged(g, token, f"key {round_} {n} {g.url}") for n in range(8) for g in (a, b))
            )
            assert sorted({r.status_code for r in answers}) == [201, 401]
            assert sum(r.status_code == 201 for r in answers) == 1
            keys = (await a.state.store.snapshot()).documents["key"].values()
            assert sum('"role":"engine"' in k and '"revoked"' not in k for k in keys) == 1


async def test_an_expired_token_is_refused_and_so_is_one_that_a_newer_replaced(gateway):
    past = time.time_ns() // 1000 - 1
    expired = await minted(gateway, Role.ENROLMENT, engine="h1", expires=past)
    assert code(await exchanged(gateway, expired, "k")) == (401, "expired_api_key")
    async with gateway.http() as admin:
        old, new = await new_token(admin), await new_token(admin)
        other = await new_token(admin, engine="h2")
        assert code(await exchanged(gateway, old, "k")) == (401, "invalid_api_key")
        assert (await exchanged(gateway, new, "k")).status_code == 201
        assert (await exchanged(gateway, other, "k2", engine="h2")).status_code == 201


async def test_enrolling_anew_revokes_the_key_before_and_frees_what_was_settled(gateway, mock):
    async with gateway.http() as admin:
        await exchanged(gateway, await new_token(admin), "k1")
        async with gateway.http("k1") as first, gateway.http("k2") as second:
            assert (await first.post("/admin/v1/engines", json=said(mock))).status_code == 201
            await exchanged(gateway, await new_token(admin), "k2")
            heartbeat = {"epoch": "e1", "instance": "i1"}
            assert code(await first.put("/admin/v1/engines/h1/heartbeat", json=heartbeat)) == (
                401,
                "revoked_api_key",
            )
            engine = gateway.state.catalog.engines["h1"]
            assert engine.state == "active", "a key that is exchanged cuts nobody off"
            moved = await second.post("/admin/v1/engines", json=said(mock, gpu_type="H200"))
            assert moved.status_code == 200, moved.text


async def test_no_key_but_a_digest_is_taken(gateway):
    async with gateway.http() as admin:
        token = await new_token(admin)
    async with gateway.http(token) as http:
        for secret in ("sha256:x", "k1", "", sha256("x").upper()):
            answer = await http.post("/admin/v1/enrol", json={"engine": "h1", "secret": secret})
            assert code(answer) == (400, "invalid_value")


async def test_a_host_cannot_take_anothers_place_by_its_digest(gateway):
    """An export shows digests: with one, an operator's key would turn into an engine's."""
    async with gateway.http() as admin:
        operator = (await admin.post("/admin/v1/keys", json={"role": "operator"})).json()["key"]
        for taken in (operator, "operator-key-of-the-tests"):
            assert code(await exchanged(gateway, await new_token(admin), taken)) == (409, "conflict")
        assert (await admin.get("/admin/v1/keys")).status_code == 200


async def test_inconsistent_tokens_and_keys_are_refused(gateway):
    await gateway.add_tenant("acme")
    tokens: list[dict] = [
        {"engine": ""}, {"engine": "A B"}, {"engine": "h1", "expires_in": 1}, {"engine": "h1", "gpu_count": 0},
        {"engine": "h1", "address": "http://x/"}, {"engine": "h1", "purchase": "stolen"},
    ]  # fmt: skip
    keys = [
        {"role": "engine"}, {"role": "engine", "engine": "A B"}, {"role": "metrics", "engine": "h1"},
        {"role": "enrolment", "engine": "h1"}, {"role": "metrics", "tenant": "acme"},
        {"role": "engine", "engine": "h1", "tenant": "acme"}, {"role": "engine", "engine": "h1", "address": "http://x/"},
        {"role": "metrics", "address": "h1.internal"},
    ]  # fmt: skip
    async with gateway.http() as admin:
        for path, bodies in (("enrolment-tokens", tokens), ("keys", keys)):
            for body in bodies:
                assert (await admin.post(f"/admin/v1/{path}", json=body)).status_code == 400, body


# -- the end of a key


async def test_revoking_a_hosts_key_drains_its_engine_in_the_same_commit(gateway, mock):
    async with gateway.http() as admin, enrolled(gateway) as http:
        await http.post("engines", json=said(mock))
        key = gateway.state.catalog.engines["h1"].key
        before = gateway.state.follower.seq
        assert (await admin.delete(f"/admin/v1/keys/{key}")).json()["revoked"]
        assert gateway.state.follower.seq == before + 2
        assert gateway.state.catalog.engines["h1"].state == "draining"
        refused = [
            await http.post("engines", json=said(mock)),
            await http.put("engines/h1/heartbeat", json={"epoch": "e1", "instance": "i1"}),
            await http.put("engines/h1/stopping", json={"epoch": "e1"}),
            await http.get(f"artifacts/{'0' * 64}/adapter_config.json"),
        ]
        assert {code(r) for r in refused} == {(401, "revoked_api_key")}
        await admin.put("/admin/v1/engines/h1/state", json={"state": "active"})
        await admin.delete(f"/admin/v1/keys/{key}")
        assert gateway.state.catalog.engines["h1"].state == "active", "a second time changes nothing"


async def test_a_key_that_its_engine_does_not_use_any_more_is_revoked_without_draining_it(gateway, mock):
    async with gateway.http() as admin, enrolled(gateway) as old, enrolled(gateway) as new:
        await old.post("engines", json=said(mock))
        key = gateway.state.catalog.engines["h1"].key
        await new.post("engines", json=said(mock))
        await admin.delete(f"/admin/v1/keys/{key}")
        assert gateway.state.catalog.engines["h1"].state == "active"


async def test_a_registration_that_meets_the_revocation_leaves_no_engine_behind(gateway):
    """The key is revoked while the gateway asks the engine what it serves."""
    asked, revoked = asyncio.Event(), asyncio.Event()

    async def models(_: web.Request) -> web.Response:
        asked.set()
        await revoked.wait()
        return web.json_response({"data": [{"id": "base", "root": "base"}]})

    async def refusal(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=400)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/load_lora_adapter", refusal)
    app.router.add_post("/v1/completions", refusal)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    body = said(MockEngine()) | {"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    try:
        async with enrolled(gateway) as http, gateway.http() as admin:
            key = next(k for k in gateway.state.directory.keys.values() if k.role is Role.ENGINE)
            asking = asyncio.create_task(http.post("engines", json=body))
            await asked.wait()
            await admin.delete(f"/admin/v1/keys/{key.id}")
            revoked.set()
            assert code(await asking) == (401, "revoked_api_key")
        assert gateway.state.catalog.engines == {}
    finally:
        await runner.cleanup()


# -- the installation as a file


async def test_an_export_has_hosts_keys_with_what_they_settled_and_no_tokens(
    gateway, mock, tmp_path, valkey_url, fresh_prefix
):
    async with gateway.http() as admin:
        await exchanged(gateway, await new_token(admin, address="127.0.0.1"), "k1")
        await new_token(admin)
        async with gateway.http("k1") as http:
            await http.post("/admin/v1/engines", json=said(mock))
        await admin.post("/admin/v1/keys", json={"role": "metrics"})
        document = (await admin.get("/admin/v1/export")).json()
        again = (await admin.post("/admin/v1/apply", json=document, params={"prune": True})).json()
        assert again["actions"] == []
    assert sorted(k["role"] for k in document["keys"].values()) == ["engine", "metrics"]
    own = next(k for k in document["keys"].values() if k["role"] == "engine")
    assert own["engine"] == "h1"
    assert own["pins"] == {
        "base": "base", "gpu_type": "H100", "gpu_count": 1, "region": "", "purchase": "on_demand",
        "labels": {}, "serves": "",
        "address": "127.0.0.1",
    }  # fmt: skip
    async with running_gateway(tmp_path / "second", valkey_url, fresh_prefix()) as second:
        async with second.http() as admin:
            result = (await admin.post("/admin/v1/apply", json=document)).json()
            assert result["failed"] == 0, result
            assert (await admin.get("/admin/v1/export")).json() == document
            bare = {
                "florin": 1,
                "keys": {i: {n: v for n, v in k.items() if n != "pins"} for i, k in document["keys"].items()},
            }
            assert (await admin.post("/admin/v1/apply", json=bare)).json()["actions"] == []
        async with second.http("k1") as http:
            assert code(await http.post("/admin/v1/engines", json=said(mock, gpu_type="L4"))) == (
                403,
                "engine_pinned",
            )
            assert (await http.post("/admin/v1/engines", json=said(mock))).status_code == 200


async def test_a_file_brings_no_tokens_and_no_key_that_makes_no_sense(gateway):
    async with gateway.http() as admin:
        for key in (
            {"role": "enrolment", "engine": "h1"},
            {"role": "engine"},
            {"role": "operator", "pins": {"gpu_type": "x"}},
        ):
            document = {"florin": 1, "keys": {"k": key | {"secret": sha256("x" * 30)}}}
            assert code(await admin.post("/admin/v1/apply", json=document)) == (400, "invalid_value"), key


async def test_a_file_that_revokes_a_hosts_key_drains_its_engine(gateway, mock):
    async with gateway.http() as admin, enrolled(gateway) as http:
        await http.post("engines", json=said(mock))
        document = (await admin.get("/admin/v1/export")).json()
        document["keys"] = {i: k | {"revoked": "2026-01-01T00:00:00Z"} for i, k in document["keys"].items()}
        del document["engines"]
        assert (await admin.post("/admin/v1/apply", json=document)).json()["failed"] == 0
        assert gateway.state.catalog.engines["h1"].state == "draining"
    assert dump_model(gateway.state.catalog.engines["h1"])
