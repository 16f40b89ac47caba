"""The operator's API over real sockets and a real Valkey, with mock engines."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from adapters.store.protocol.registry import Change
from loadtests.mock_engine import MockEngine
from tests.support.harness import running_gateway
from tests.support.lora import LLAMA, lora_config, write_adapter
from tests.support.waiting import until

CONFIG = LLAMA.config


@pytest.fixture
def make_adapter(tmp_path):
    """A function that writes a sound adapter; each name has weights of its own."""

    def make(name: str):
        config = lora_config(base_model_name_or_path="base")
        return write_adapter(tmp_path / name, config=config, fill=len(name))

    return make


def registration(engine: MockEngine | None = None, **fields):
    url = engine.url if engine else "http://127.0.0.1:9"
    return {"name": "a1", "url": url, "base": "base", "gpu_type": "H200", "slots": 2, "max_rank": 8} | fields


def error(response: httpx2.Response) -> dict:
    body = response.json()["error"]
    assert set(body) >= {"message", "type", "param", "code"}
    return body


async def answers(client: httpx2.AsyncClient, status: int) -> bool:
    return (await client.get("/admin/v1/keys")).status_code == status


async def health_is(admin: httpx2.AsyncClient, health: str) -> bool:
    return (await admin.get("engines")).json()["data"][0]["health"] == health


async def nothing_placed(admin: httpx2.AsyncClient) -> bool:
    return not (await admin.get("placement")).json()["data"][0]["placements"]


async def one_resident(admin: httpx2.AsyncClient) -> bool:
    """Once the feed has brought it."""
    placed = (await admin.get("placement")).json()["data"][0]["placements"]
    return [p["state"] for p in placed] == ["resident"]


# -- tenants and keys


def shown_of(changed: httpx2.Response) -> dict:
    body = changed.json()
    assert body.pop("warnings") == []
    body.pop("name_used_before", None)
    return body


async def test_tenant_lifecycle(admin):
    new = await admin.post("tenants", json={"name": "acme"})
    assert (new.status_code, new.json()["base_access"]) == (201, False)
    again = await admin.post("tenants", json={"name": "acme"})
    shown = new.json() | {"name_used_before": None}
    assert (again.status_code, again.json()) == (200, shown)
    changed = await admin.post("tenants", json={"name": "acme", "base_access": True})
    assert (changed.status_code, changed.json()) == (200, {**shown, "base_access": True})
    kept = await admin.post("tenants", json={"name": "acme"})
    assert kept.json()["base_access"] is True
    assert (await admin.get("tenants")).json() == {"data": [shown_of(kept)]}
    key = (await admin.post("keys", json={"tenant": "acme"})).json()
    shown = (await admin.get("tenants/acme")).json()
    assert shown["adapters"] == []
    assert [k["id"] for k in shown["keys"]] == [key["id"]]
    assert key["key"] not in json.dumps(shown)


async def test_what_a_tenant_requires_is_kept_checked_and_audited(admin, engine):
    assert (await admin.patch("tenants/acme", json={"requires": {}})).status_code == 404
    new = await admin.post("tenants", json={"name": "acme", "requires": {"region": "eu"}})
    assert (new.status_code, new.json()["warnings"]) == (201, []), "there is no fleet yet"
    await admin.post("engines", json=registration(engine, region="us", labels={"pool": "a"}))
    again = await admin.patch("tenants/acme", json={"base_access": True})
    assert again.json()["requires"] == {"region": "eu"}
    assert again.json()["warnings"] == [
        "No engine of base has region=eu: requests of acme are refused until one has"
    ]
    doctor = (await admin.get("doctor")).json()["data"]
    assert [c["subject"] for c in doctor if c["check"] == "tenant_requirements"] == ["acme"]
    met = await admin.patch("tenants/acme", json={"requires": {"pool": "a", "gpu_type": "H200"}})
    assert met.json()["warnings"] == []
    note = (await admin.get("audit", params={"action": "tenant.update"})).json()["data"][0]
    assert note["details"] == {
        "requires": {"old": {"region": "eu"}, "new": {"pool": "a", "gpu_type": "H200"}}
    }
    for wrong in ({"Region": "eu"}, {"region": ""}, {"region": "é"}, {f"l{n}": "x" for n in range(33)}):
        assert (await admin.patch("tenants/acme", json={"requires": wrong})).status_code == 400


async def test_ten_who_add_one_tenant_at_once_all_succeed(admin):
    answers = await asyncio.gather(*(admin.post("tenants", json={"name": "acme"}) for _ in range(10)))
    assert sorted(a.status_code for a in answers) == [200] * 9 + [201]
    assert len({a.json()["created"] for a in answers}) == 1


WRONG_TENANTS: list[tuple[dict[str, Any], str, str | None]] = [
    *(({"json": {"name": n}}, "invalid_name", None) for n in ("", "Acme", "a/b", "..", "a" * 64, "a\n", "ä", "-a")),
    ({"json": {}}, "invalid_value", "name"),
    ({"json": {"name": 7}}, "invalid_value", "name"),
    ({"json": {"name": "acme", "base_access": "perhaps"}}, "invalid_value", "base_access"),
    ({"json": {"name": "acme", "base_acess": True}}, "invalid_value", "base_acess"),
    ({"json": []}, "invalid_json", None),
    ({"content": b"{", "headers": {"content-type": "application/json"}}, "invalid_json", None),
]  # fmt: skip


async def test_a_wrong_body_is_refused_with_the_field(admin, subtests):
    for body, code, param in WRONG_TENANTS:
        with subtests.test(**body):
            answer = await admin.post("tenants", **body)
            assert (answer.status_code, error(answer)["code"], error(answer)["param"]) == (400, code, param)


async def test_key_lifecycle(gateway, admin):
    made = await admin.post("keys", json={"role": "operator"})
    key = made.json()
    assert made.status_code == 201
    shown = {name: value for name, value in key.items() if name != "key"}
    assert (await admin.get(f"keys/{key['id']}")).json() == shown | {"last_used": None}
    async with gateway.http(key["key"]) as mine:
        assert (await mine.get("/admin/v1/tenants")).status_code == 200
        revoked = await admin.delete(f"keys/{key['id']}")
        assert revoked.json()["revoked"] > 0
        refused = await mine.get("/admin/v1/tenants")
        assert (refused.status_code, error(refused)["code"]) == (401, "revoked_api_key")
    assert (await admin.delete(f"keys/{key['id']}")).json() == revoked.json()
    listed = (await admin.get("keys")).json()["data"]
    assert [k.pop("last_used") > key["created"] for k in listed] == [True]
    assert listed == [revoked.json()]
    assert (await admin.get("keys", params={"tenant": "bolt"})).json()["data"] == []
    assert key["key"].split("_", 2)[2] not in json.dumps(listed)


async def test_a_key_needs_a_tenant_that_exists(admin):
    none = await admin.post("keys", json={})
    assert (none.status_code, error(none)["param"]) == (400, "tenant")
    misspelled = await admin.get("keys", params={"tennant": "acme"})
    assert (misspelled.status_code, error(misspelled)["param"]) == (400, "tennant")
    unknown = await admin.post("keys", json={"tenant": "acme"})
    assert unknown.status_code == 404
    assert (await admin.post("keys", json={"role": "finance"})).status_code == 201
    assert (await admin.delete("keys/nope")).status_code == 404


async def test_changes_reach_other_workers(tmp_path, valkey_url, prefix, admin):
    async with running_gateway(tmp_path / "other", valkey_url, prefix) as other, other.http() as there:
        for n in range(20):
            await admin.post("tenants", json={"name": f"t{n}"})
            # at once, through the other worker
            assert (await there.get(f"/admin/v1/tenants/t{n}")).status_code == 200
        key = (await admin.post("keys", json={"role": "operator"})).json()
        async with other.http(key["key"]) as mine:
            await until(lambda: answers(mine, 200))
            await admin.delete(f"keys/{key['id']}")
            await until(lambda: answers(mine, 401))


# -- engines


async def test_engine_lifecycle(gateway, admin, engine, model):
    new = await admin.post("engines", json=registration(engine, base_aliases=["org/base"]))
    assert new.status_code == 201, new.text
    registered = new.json()["registered"]
    assert abs(registered - time.time_ns() // 1000) < 60_000_000
    # Its first probe may have come meanwhile: what that tells is not compared.
    assert new.json() | {"health": "", "kv_usage": None, "started": 0} == {
        **registration(engine),
        "gpu_count": 1,
        "region": "",
        "purchase": "on_demand",
        "labels": {},
        "host": "",
        "drain": None,
        "registered": registered,
        "cpu_slots": 2,
        "state": "active",
        "health": "",
        "running": 0,
        "waiting": 0,
        "resident": 0,
        "lost": 0,
        "started": 0,
        "epoch": "",
        "agent": "",
        "stopping": False,
        "stopped": 0,
        "hang": None,
        "key": "",
        "version": "0.32.0",
        "prompt_scores": "unsafe",
        "declared_scores": "",
        "unloads": "unknown",
        "seats": 0,
        "max_model_len": 4096,
        "tasks": ["generate"],
        "driver": "vllm",
        "holds": [],
        "serves": "",
        "trial": None,
        "tenant": "",
        "capabilities": {
            "loading": "call",
            "lists": True,
            "unloads": "unknown",
            "base_for_unknown": False,
            "running_counts": True,
            "salts": True,
            "resumes": True,
            "prompt_scores": True,
            "dora": False,
            "routes": ["/v1/chat/completions", "/v1/completions"],
            "tasks": ["embed", "generate", "score"],
        },
        "heartbeat": None,
        "kv_usage": None,
        "reason": None,
        "base_config": True,
    }
    base = gateway.state.catalog.bases["base"]
    assert base.config == CONFIG
    assert set(base.aliases) == {str(model), "org/base"}
    assert (await admin.put("engines/a1/state", json={"state": "cordoned"})).json()["state"] == "cordoned"
    same = await admin.post("engines", json=registration(engine, url=engine.url + "/v1/"))
    assert (same.status_code, same.json()["state"]) == (200, "cordoned")
    spot = await admin.post("engines", json=registration(engine, region="eu-1", purchase="spot"))
    assert [spot.json()[k] for k in ("region", "purchase", "registered")] == ["eu-1", "spot", registered]
    labelled = await admin.post("engines", json=registration(engine, labels={"pool": "a"}, host="rack7"))
    assert [labelled.json()[k] for k in ("labels", "host")] == [{"pool": "a"}, "rack7"]
    tasks = registration(engine, tasks=["score", "embed", "score"])
    refused = await admin.post("engines", json=tasks)
    assert (refused.status_code, "does not embed" in error(refused)["message"]) == (422, True)
    tasks = await admin.post("engines", json=tasks | {"verify": False})
    assert tasks.json()["tasks"] == ["embed", "score"], tasks.text
    twice = await admin.post("engines", json=registration(engine, labels={"region": "eu"}))
    assert (twice.status_code, "set the field region" in error(twice)["message"]) == (400, True)
    changed = await admin.post("engines", json=registration(engine, slots=4, gpu_type="H100"))
    assert (changed.status_code, changed.json()["slots"], changed.json()["cpu_slots"]) == (200, 4, 4)
    assert [e["gpu_type"] for e in (await admin.get("engines")).json()["data"]] == ["H100"]
    assert (await admin.delete("engines/a1")).json() == {"name": "a1", "removed": True}
    assert (await admin.delete("engines/a1")).json() == {"name": "a1", "removed": False}
    assert (await admin.get("engines")).json() == {"data": []}
    assert (await admin.put("engines/a1/state", json={"state": "active"})).status_code == 404


async def test_slots_that_the_engine_does_not_have_are_refused_once_it_tells(admin, engine):
    """vLLM tells its --max-loras from its first request on."""
    wrong = registration(engine, slots=3, cpu_slots=8)
    assert (await admin.post("engines", json=wrong)).status_code == 201
    async with httpx2.AsyncClient() as client:
        await client.post(f"{engine.url}/v1/completions", json={"prompt": "hello", "max_tokens": 1})
    answer = await admin.post("engines", json=wrong)
    assert (answer.status_code, error(answer)["code"]) == (422, "engine_rejected")
    assert "--max-loras 2, not 3" in error(answer)["message"]
    assert (await admin.post("engines", json=registration(engine))).status_code == 200


async def test_engine_health_follows_its_process(admin, engine):
    await admin.post("engines", json=registration(engine))
    await until(lambda: health_is(admin, "up"))
    await engine.stop()
    await until(lambda: health_is(admin, "down"))


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"slots": 0}, "slots"),
    ({"slots": 10**9}, "slots"),
    ({"slots": None}, "slots"),
    ({"serves": "acme/support@v1"}, "slots"),
    ({"max_rank": "big"}, "max_rank"),
    ({"slots": 4, "cpu_slots": 2}, "cpu_slots"),
    ({"url": "10.0.0.7:8000"}, "url"),
    ({"url": "ftp://host"}, "url"),
    ({"url": "http://u:p@host"}, "url"),
    ({"url": "http://host:99999"}, "url"),
    ({"url": "http://host/?x=1"}, "url"),
    ({"gpu_type": ""}, "gpu_type"),
    ({"gpu_type": "a\nb"}, "gpu_type"),
    ({"base_config": "relative/config.json"}, "base_config"),
    ({"gpu": "H200"}, "gpu"),
    ({"purchase": "stolen"}, "purchase"),
    ({"region": "eu\n1"}, "region"),
    ({"tasks": []}, "tasks"),
    ({"tasks": ["sing"]}, "tasks.0"),
    ({"region": "r" * 64}, "region"),
]


async def test_impossible_registration_is_refused(admin, subtests):
    for fields, param in IMPOSSIBLE:
        with subtests.test(**fields):
            answer = await admin.post("engines", json=registration(verify=False) | fields)
            assert (answer.status_code, error(answer)["param"]) == (400, param), answer.text


async def test_verification(admin, engine):
    wrong = await admin.post("engines", json=registration(engine, base="other"))
    assert (wrong.status_code, error(wrong)["code"]) == (422, "engine_rejected")
    assert "serves base, not other" in error(wrong)["message"]
    nobody = await admin.post("engines", json=registration())
    assert (nobody.status_code, error(nobody)["code"]) == (422, "engine_rejected")
    unasked = await admin.post("engines", json=registration(verify=False))
    assert (unasked.status_code, unasked.json()["base_config"]) == (201, False)


async def test_an_engine_without_runtime_loading_is_refused(admin):
    async def bare(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        card = json.dumps({"data": [{"id": "base", "root": "/none", "max_model_len": 64}]}).encode()
        status, body = (
            (b"200 OK", card) if request.startswith(b"GET /v1/models") else (b"404 Not Found", b"{}")
        )
        writer.write(
            b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
        )
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(bare, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        answer = await admin.post("engines", json=registration(url=f"http://127.0.0.1:{port}"))
    assert answer.status_code == 422
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in error(answer)["message"]


async def test_one_url_is_one_engine(admin, engine):
    await admin.post("engines", json=registration(engine))
    twin = await admin.post("engines", json=registration(engine, name="a2"))
    assert (twin.status_code, error(twin)["code"]) == (409, "conflict")


async def test_a_base_model_has_one_config(admin, engine, model, tmp_path):
    await admin.post("engines", json=registration(engine))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(CONFIG | {"hidden_size": 128}))
    second = registration(name="a2", verify=False, base_config=str(other))
    refused = await admin.post("engines", json=second)
    assert refused.status_code == 409
    assert "hidden_size" in error(refused)["message"]
    other.write_text(json.dumps(CONFIG | {"transformers_version": "9"}))
    assert (await admin.post("engines", json=second)).status_code == 201
    missing = await admin.post("engines", json=second | {"base_config": str(tmp_path / "none")})
    assert missing.status_code == 404


# -- adapters


async def test_adapters_and_their_placement(gateway, admin, engine, make_adapter):
    await admin.post("tenants", json={"name": "acme"})
    await admin.post("engines", json=registration(engine))
    source = make_adapter("first")
    added = await admin.post("adapters", json={"adapter": "acme/support", "source": str(source)})
    assert added.status_code == 201, added.text
    assert added.json() | {"digest": ""} == {
        "warnings": [],
        "adapter": "acme/support",
        "version": "v1",
        "digest": "",
        "live": "v1",
        "created": True,
    }
    again = await admin.post("adapters", json={"adapter": "acme/support", "source": f"file://{source}"})
    assert (again.status_code, again.json()) == (200, added.json() | {"created": False})
    second = await admin.post(
        "adapters", json={"adapter": "acme/support", "source": str(make_adapter("the-second"))}
    )
    assert (second.json()["version"], second.json()["live"]) == ("v2", "v1")

    explained = (await admin.get("explain/acme/support")).json()
    assert explained["version"] == "acme/support@v1"
    assert (explained["decision"]["action"], explained["decision"]["engine"]) == ("load", "a1")

    promoted = await admin.put("adapters/acme/support/live", json={"version": "v2", "wait": False})
    assert (promoted.json()["live"], promoted.json()["previous"]) == ("v2", "v1")
    assert (await admin.post("adapters/acme/support/rollback")).json()["live"] == "v1"
    assert (await admin.put("adapters/acme/support/pin", json={"pinned": True})).json()["pinned"] is True

    scaled = await admin.put("adapters/acme/support/replicas", json={"min_replicas": 2, "max_replicas": 3})
    assert [scaled.json()[k] for k in ("min_replicas", "max_replicas")] == [2, 3]
    assert scaled.json()["warnings"] == ["acme/support can be on 1 engine, fewer than the 2 wanted"]
    crossed = await admin.put("adapters/acme/support/replicas", json={"min_replicas": 3, "max_replicas": 2})
    assert (crossed.status_code, error(crossed)["code"]) == (400, "invalid_value")
    assert (await admin.put("adapters/acme/support/replicas", json={"max_replicas": 1})).status_code == 409
    limitless = {"min_replicas": 0, "max_replicas": None}
    assert (await admin.put("adapters/acme/support/replicas", json=limitless)).json()["warnings"] == []

    gateway.keys["acme"] = (await admin.post("keys", json={"tenant": "acme"})).json()["key"]
    async with gateway.client("acme") as chat:
        await chat.chat.completions.create(model="support", messages=[{"role": "user", "content": "hi"}])
    await until(lambda: one_resident(admin))
    row = (await admin.get("placement")).json()["data"][0]
    assert (row["engine"], row["gpu_type"], row["slots"]) == ("a1", "H200", 2)
    assert [p["version"] for p in row["placements"]] == ["acme/support@v1"]
    assert row["placements"][0]["idle_seconds"] >= 0
    assert (await admin.get("explain/acme/support")).json()["decision"]["action"] == "serve"

    listed = (await admin.get("adapters", params={"tenant": "acme"})).json()["data"]
    assert listed[0]["versions"] == ["v1", "v2"]
    assert listed[0]["placed"] == [{"engine": "a1", "state": "resident", "version": "v1"}]
    details = (await admin.get("adapters/acme/support/versions")).json()["data"]
    assert [d["version"] for d in details] == ["v1", "v2"]
    assert (await admin.get("adapters/acme/support")).json()["version_details"] == details
    assert (await admin.get("adapters", params={"tenant": "bolt"})).json() == {"data": []}
    assert (await admin.get("engines")).json()["data"][0]["resident"] == 1

    assert len(engine.state.adapters) == 1
    removed = await admin.delete("adapters/acme/support")
    assert removed.json() == {"adapter": "acme/support", "removed": True}
    assert engine.state.adapters == {}
    await until(lambda: nothing_placed(admin))
    assert (await admin.delete("adapters/acme/support")).json() == {
        "adapter": "acme/support",
        "removed": False,
    }
    assert (await admin.get("adapters/acme/support")).status_code == 404
    assert (await admin.get("explain/acme/support")).status_code == 404


async def test_a_refused_adapter_comes_with_its_findings(admin, engine, tmp_path):
    await admin.post("tenants", json={"name": "acme"})
    await admin.post("engines", json=registration(engine))
    answer = await admin.post("adapters", json={"adapter": "acme/x", "source": str(tmp_path / "none")})
    assert (answer.status_code, error(answer)["code"]) == (422, "adapter_rejected")
    assert [f["code"] for f in error(answer)["findings"]] == ["directory_missing"]
    assert set(error(answer)["findings"][0]) == {
        *("code", "message", "found", "expected", "remedy", "severity"),
    }
    assert (await admin.get("adapters")).json() == {"data": []}


async def test_what_an_adapter_needs(admin, engine, subtests):
    await admin.post("tenants", json={"name": "acme"})
    await admin.post("engines", json=registration(engine))
    for body, status in (
        ({"adapter": "support", "source": "/x"}, 400),
        ({"adapter": "acme/a/b", "source": "/x"}, 400),
        ({"adapter": "acme/support", "source": ""}, 400),
        ({"adapter": "bolt/support", "source": "/x"}, 404),
        ({"adapter": "acme/support", "source": "/x", "base_model": "other"}, 404),
    ):
        with subtests.test(**body):
            answer = await admin.post("adapters", json=body)
            assert answer.status_code == status, answer.text
            error(answer)
    for version in ("2", "v0", "v02", "latest", "v-1", "v9999999999", 2, None):
        with subtests.test(version=version):
            answer = await admin.put("adapters/acme/x/live", json={"version": version})
            assert (answer.status_code, error(answer)["param"]) == (400, "version")


async def test_an_engine_that_moves_or_leaves_is_unplaced(gateway, admin, engine, model, make_adapter):
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(MockEngine(root=str(model)))
        await admin.post("tenants", json={"name": "acme"})
        await admin.post("engines", json=registration(engine))
        await admin.post("adapters", json={"adapter": "acme/support", "source": str(make_adapter("first"))})
        gateway.keys["acme"] = (await admin.post("keys", json={"tenant": "acme"})).json()["key"]
        chat = gateway.client("acme")
        stack.push_async_callback(chat.close)
        for url in (other.url, engine.url):
            await chat.chat.completions.create(model="support", messages=[{"role": "user", "content": "hi"}])
            assert (await admin.post("engines", json=registration(url=url))).status_code == 200
            await until(lambda: nothing_placed(admin))
        await chat.chat.completions.create(model="support", messages=[{"role": "user", "content": "hi"}])
        await admin.delete("engines/a1")
        assert (await gateway.state.store.snapshot()).documents.get("placement", {}) == {}


async def test_what_an_older_florin_wrote_can_still_be_changed(gateway, admin):
    written = {
        "name": "a1",
        "url": "http://127.0.0.1:9",
        "base_model": "base",
        "gpu_type": "H200",
        "slots": 2,
        "max_rank": 8,
    }
    await gateway.commit(
        Change("engine", "a1", json.dumps(written)),
        Change("tenant", "acme", '{"created": 1, "name": "acme", "base_access": false}'),
    )
    assert (await admin.put("engines/a1/state", json={"state": "draining"})).json()["state"] == "draining"
    assert (await admin.post("tenants", json={"name": "acme", "base_access": True})).json()["created"] == 1


async def test_changes_at_once_are_all_kept(gateway, admin):
    bodies = [
        registration(name=f"a{n}", url=f"http://127.0.0.1:{n + 1}", verify=False, base_aliases=[f"org/{n}"])
        for n in range(8)
    ]
    answers = await asyncio.gather(*(admin.post("engines", json=body) for body in bodies))
    assert [a.status_code for a in answers] == [201] * 8
    assert set(gateway.state.catalog.bases["base"].aliases) == {f"org/{n}" for n in range(8)}
