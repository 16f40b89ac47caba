"""What an operator does with tenants and keys, and what their callers notice: over real gateways and sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from loadtests.mock_engine import MockEngine
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.waiting import until

LIMITS = {"requests_per_minute": 600, "tokens_per_minute": 200_000, "concurrent": 20, "queued": 0}
TERMS = {
    "limits": LIMITS | {"max_context": 32_000, "max_output": 4_000},
    "budget": {"tokens_per_day": 10**6, "money_per_month": "99.5", "warn_percent": 75},
    "weight": 2.5,
    "quotas": {
        "adapters": 5,
        "versions": 3,
        "bytes": 10**10,
        "max_rank": 64,
        "uploads_per_hour": 20,
        "keys": 0,
    },
    "policy": {
        "media_hosts": [],
        "chat_templates": False,
        "structured_outputs": True,
        "pass_fields": ["x_note"],
    },
    "cache_group": "group-1",
    "cost_centre": "R&D",
}
KEY_TERMS = {
    "label": "checkout",
    "scopes": {"adapters": ["support"], "endpoints": ["/v1/chat/completions"]},
    "limits": {"concurrent": 2},
    "budget": {"money_per_day": "1"},
    "priority": "high",
    "cost_centre": "R&D",
}

EVERY = ["acme/billing", "acme/support", "base", "billing", "support"]
"""What GET /v1/models lists for a key of acme's without scopes."""


def error(response: httpx2.Response) -> dict[str, Any]:
    return response.json()["error"]


def within(whole: Any, part: Any) -> bool:
    """Whether `part` stands in `whole`."""
    if isinstance(part, dict):
        return all(name in whole and within(whole[name], value) for name, value in part.items())
    return bool(whole == part)


async def ask(
    gateway: Gateway, key: str, model: str = "support", path: str = "/v1/chat/completions", **more: Any
) -> httpx2.Response:
    async with gateway.http(key) as client:
        return await client.post(
            path, json={"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
        )


async def new_key(admin: httpx2.AsyncClient, **terms: Any) -> dict[str, Any]:
    made = await admin.post("keys", json={"tenant": "acme"} | terms)
    assert made.status_code == 201, made.text
    return made.json()


@pytest.fixture
async def acme(gateway: Gateway, admin: httpx2.AsyncClient, tmp_path):
    """Two tenants whose adapters are served by one engine."""
    async with MockEngine() as engine:
        await gateway.add_engine("a", engine.url, slots=4)
        for tenant in ("acme", "bolt"):
            await gateway.add_tenant(tenant, base_access=True)
            for name in ("support", "billing"):
                await gateway.add_adapter(f"{tenant}/{name}", fake_adapter(tmp_path / tenant / name))
        yield engine


@pytest.fixture
async def second(tmp_path, valkey_url, prefix, gateway):
    """Another worker of the same installation."""
    async with running_gateway(tmp_path / "second", valkey_url, prefix) as running:
        yield running


# -- terms


async def test_terms_are_kept_updated_in_part_and_audited(admin):
    new = await admin.post("tenants", json={"name": "acme"} | TERMS)
    assert new.status_code == 201, new.text
    assert within(new.json(), TERMS)
    again = await admin.post("tenants", json={"name": "acme"} | TERMS)
    assert (again.status_code, again.json()) == (200, new.json() | {"name_used_before": None})
    part = {
        "limits": {"concurrent": None},
        "budget": {"money_per_month": "100"},
        "policy": {"media_hosts": None},
    }
    changed = (await admin.patch("tenants/acme", json=part)).json()
    assert changed["limits"] == new.json()["limits"] | {"concurrent": None}
    assert changed["budget"] == new.json()["budget"] | {"money_per_month": "100"}
    assert changed["policy"] == new.json()["policy"] | {"media_hosts": None}
    notes = (await admin.get("audit", params={"subject": "acme"})).json()["data"]
    assert [n["action"] for n in notes] == ["tenant.update", "tenant.add"]
    assert notes[0]["details"] == {
        "limits.concurrent": {"old": 20, "new": None},
        "budget.money_per_month": {"old": "99.5", "new": "100"},
        "policy.media_hosts": {"old": [], "new": None},
    }
    assert notes[1]["details"]["limits.queued"] == {"new": 0}
    bare = (
        await admin.patch("tenants/acme", json=dict.fromkeys(("limits", "budget", "quotas", "policy")))
    ).json()
    default = (await admin.post("tenants", json={"name": "bolt"})).json()
    assert {n: bare[n] for n in ("limits", "budget", "quotas", "policy")} == {
        n: default[n] for n in ("limits", "budget", "quotas", "policy")
    }
    assert (await admin.patch("tenants/none", json=TERMS)).status_code == 404


async def test_bad_terms_are_refused_with_the_field(admin, subtests):
    """`tests/unit/gateway/tenants/test_terms.py` has the rules of each field."""
    await admin.post("tenants", json={"name": "acme"})
    for method, path, body, param in (
        ("PATCH", "tenants/acme", {"limits": {"request_per_minute": 5}}, "limits.request_per_minute"),
        ("PATCH", "tenants/acme", {"budget": {"warn_percent": 101}}, "budget.warn_percent"),
        ("PATCH", "tenants/acme", {"policy": {"media_hosts": ["https://a.com"]}}, "policy.media_hosts"),
        ("PATCH", "tenants/acme", {"cost_centre": "__other__"}, "cost_centre"),
        ("POST", "keys", {"expires": "2020-01-01"}, "expires"),
        ("POST", "keys", {"scopes": {"endpoints": ["/metrics"]}}, "scopes.endpoints"),
        ("POST", "keys", {"role": "finance", "priority": "high"}, "priority"),
        ("POST", "keys", {"role": "finance", "cost_centre": "R&D"}, "cost_centre"),
        ("POST", "keys", {"role": "operator", "tenant": "", "scopes": {"read_only": True}}, "scopes"),
        ("POST", "keys", {"role": "operator"}, "tenant"),
        ("POST", "keys", {"role": "tenant-admin", "tenant": ""}, "tenant"),
        ("POST", "keys", {"role": "enrolment"}, "role"),
    ):
        with subtests.test(path=path, body=body):
            whose = {"tenant": "acme"} if path == "keys" else {}
            refused = await admin.request(method, path, json=whose | body)
            assert (refused.status_code, error(refused)["code"]) == (400, "invalid_value")
            assert error(refused)["param"].startswith(param)
            assert "Value error" not in error(refused)["message"]
            assert not error(refused)["message"].endswith("..")
    assert (await admin.get("keys")).json()["data"] == []


async def test_two_operators_at_once_lose_no_change(gateway, second, admin):
    await admin.post("tenants", json={"name": "acme"})
    key = await new_key(admin)
    fields = ("requests_per_minute", "tokens_per_minute", "concurrent", "queued", "max_context", "max_output")
    async with gateway.http() as one, second.http() as other:
        answers = await asyncio.gather(
            *(
                client.patch(f"/admin/v1/{path}", json={"limits": {field: n + 1}})
                for n, field in enumerate(fields)
                for client in (one, other)
                for path in ("tenants/acme", f"keys/{key['id']}")
            )
        )
        assert {a.status_code for a in answers} == {200}
        limits = {field: n + 1 for n, field in enumerate(fields)}
        for path in ("tenants/acme", f"keys/{key['id']}"):
            assert within((await other.get(f"/admin/v1/{path}")).json(), {"limits": limits})


async def test_terms_of_a_key_are_kept_and_updated_in_part(admin):
    await admin.post("tenants", json={"name": "acme"})
    key = await new_key(admin, expires="90d", **KEY_TERMS)
    assert within(key, KEY_TERMS)
    assert key["expires"] - key["created"] == 90 * 86_400_000_000
    path = f"keys/{key['id']}"
    part = {"scopes": {"read_only": True}, "label": None, "expires": None}
    changed = (await admin.patch(path, json=part)).json()
    assert changed["scopes"] == key["scopes"] | {"read_only": True}
    assert (changed["label"], changed["expires"], changed["priority"]) == ("", None, "high")
    note = (await admin.get("audit", params={"action": "key.update"})).json()["data"][0]
    assert note["details"].keys() == {"label", "expires", "scopes.read_only"}
    assert key["key"].split("_", 2)[2] not in json.dumps(note)
    await admin.delete(path)
    refused = await admin.patch(path, json={"label": "x"})
    assert (refused.status_code, error(refused)["code"]) == (409, "conflict")
    assert (await admin.patch("keys/none", json={"label": "x"})).status_code == 404


async def test_limits_are_tried_before_a_tenant_has_them(gateway, admin, acme):
    tried = await admin.post("tenants/acme/limits-dry-run", json={"rules": ["requests/day=5"], "days": 2})
    [limit] = tried.json()["limits"]
    assert (limit["limit"], limit["requests"], limit["would_refuse"]) == ("requests/day=5", 0, 0)
    by_session = await admin.post("tenants/acme/limits-dry-run", json={"rules": ["requests/session=5"]})
    assert (by_session.status_code, error(by_session)["param"]) == (400, "rules")


# -- removal


async def test_a_tenant_goes_when_nothing_needs_it(gateway, admin, acme):
    keys = (await admin.get("keys", params={"tenant": "acme"})).json()["data"]
    planned = (await admin.delete("tenants/acme", params={"dry_run": True})).json()
    assert planned.pop("charges")["months"] == []
    assert planned == {
        "tenant": "acme",
        "removed": False,
        "exists": True,
        "obstacles": [
            {"kind": "adapter", "id": f"acme/{n}", "command": f"florin adapter remove acme/{n}"}
            for n in ("billing", "support")
        ]
        + [{"kind": "key", "id": k["id"], "command": f"florin key revoke {k['id']}"} for k in keys],
    }
    refused = await admin.delete("tenants/acme")
    assert (refused.status_code, error(refused)["code"]) == (409, "in_use")
    assert "florin adapter remove acme/billing" in error(refused)["message"]
    for name in ("billing", "support"):
        await admin.delete(f"adapters/acme/{name}")
    await admin.delete(f"keys/{keys[0]['id']}")
    assert (await admin.delete("tenants/acme", params={"dry_run": True})).json()["obstacles"] == []
    assert (await admin.get("tenants/acme")).status_code == 200
    removed = (await admin.delete("tenants/acme")).json()
    assert (removed["removed"], removed["exists"]) == (True, True)
    again = (await admin.delete("tenants/acme")).json()
    assert (again["removed"], again["exists"]) == (False, False)
    assert (await admin.get("keys", params={"tenant": "acme"})).json()["data"] == []
    assert (await ask(gateway, gateway.keys["acme"])).status_code == 401


async def test_no_key_is_left_of_a_tenant_that_goes_while_it_is_made(gateway, second, admin):
    async with second.http() as other:
        for n in range(8):
            await admin.post("tenants", json={"name": f"t{n}"})
            removed, made = await asyncio.gather(
                admin.delete(f"tenants/t{n}"), other.post("/admin/v1/keys", json={"tenant": f"t{n}"})
            )
            assert (removed.status_code, made.status_code) in {(200, 404), (409, 201)}


# -- suspension


async def test_suspension_refuses_everything_new_and_lets_streams_end(gateway, second, admin, acme):
    acme.faults.update({"event_delay": 0.05})
    mine, other = gateway.keys["acme"], gateway.keys["bolt"]

    async def refused(worker: Gateway) -> bool:
        answer = await ask(worker, mine)
        return answer.status_code == 403 and error(answer)["code"] == "tenant_suspended"

    async def served(worker: Gateway) -> bool:
        return (await ask(worker, mine, max_tokens=1)).status_code == 200

    assert await served(gateway)
    body = {"model": "support", "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    async with (
        gateway.http(mine) as client,
        client.stream(
            "POST", "/v1/chat/completions", json=body | {"stream": True, "max_tokens": 40}
        ) as stream,
    ):
        lines = stream.aiter_lines()
        events = [await anext(lines)]
        suspended = (await admin.patch("tenants/acme", json={"suspended": True})).json()
        assert suspended["suspended"] > 0
        for worker in (gateway, second):
            await until(lambda w=worker: refused(w))
        events += [line async for line in lines if line]
    assert len(events) > 40
    assert events[-1] == "data: [DONE]"
    assert not any('"error"' in line for line in events)
    async with gateway.http(mine) as client:
        for path in ("/v1/models", "/finance/v1/usage"):
            answer = await client.get(path)
            assert (answer.status_code, error(answer)["code"]) == (403, "tenant_suspended")
    assert (await ask(gateway, other, max_tokens=1)).status_code == 200
    again = (await admin.patch("tenants/acme", json={"suspended": True})).json()
    assert again["suspended"] == suspended["suspended"]
    await admin.patch("tenants/acme", json={"suspended": False})
    for worker in (gateway, second):
        await until(lambda w=worker: served(w))


# -- scopes


async def models(gateway: Gateway, key: str) -> list[str]:
    async with gateway.http(key) as client:
        answer = await client.get("/v1/models")
        assert answer.status_code == 200, answer.text
        return [card["id"] for card in answer.json()["data"]]


def bare(answer: httpx2.Response, model: str) -> tuple[int, set[str], str]:
    """An answer without what differs between two requests."""
    return answer.status_code, set(answer.headers), answer.text.replace(model, "MODEL")


async def test_what_is_out_of_scope_looks_as_if_it_were_not_there(gateway, admin, acme):
    key = (await new_key(admin, scopes={"adapters": ["support"]}))["key"]
    assert await models(gateway, key) == ["acme/support", "support"]
    assert await models(gateway, gateway.keys["acme"]) == EVERY
    for model in ("support", "acme/support", "support@v1"):
        assert (await ask(gateway, key, model)).status_code == 200
    unknown = bare(await ask(gateway, key, "nothing"), "nothing")
    assert unknown[0] == 404
    for model in ("billing", "acme/billing", "billing@v1", "bolt/support", "base"):
        assert bare(await ask(gateway, key, model), model) == unknown, model
        async with gateway.http(key) as client:
            absent = bare(await client.get("/v1/models/nothing"), "nothing")
            assert bare(await client.get(f"/v1/models/{model}"), model) == absent, model
    assert (await ask(gateway, gateway.keys["acme"], "billing")).status_code == 200


async def test_scopes_of_endpoints_and_reading(gateway, admin, acme):
    chat = (await new_key(admin, scopes={"endpoints": ["chat/completions"]}))["key"]
    assert (await ask(gateway, chat)).status_code == 200
    refused = await ask(gateway, chat, path="/v1/completions")
    assert (refused.status_code, error(refused)["code"]) == (403, "insufficient_scope")
    made = await new_key(admin, scopes={"read_only": True})
    refused = await ask(gateway, made["key"])
    assert (refused.status_code, error(refused)["code"]) == (403, "insufficient_scope")
    assert await models(gateway, made["key"]) == EVERY
    async with gateway.http(made["key"]) as client:
        assert (await client.get("/finance/v1/usage")).status_code == 200
    await admin.patch(f"keys/{made['id']}", json={"scopes": None})
    assert (await ask(gateway, made["key"])).status_code == 200


async def test_a_tenants_administrator_calls_models_as_its_scopes_allow(gateway, admin, acme):
    made = await new_key(admin, role="tenant-admin")
    assert (await ask(gateway, made["key"])).status_code == 200
    assert await models(gateway, made["key"]) == EVERY
    await admin.patch(f"keys/{made['id']}", json={"scopes": {"read_only": True}})
    assert error(await ask(gateway, made["key"]))["code"] == "insufficient_scope"


# -- the life of a key


async def test_rotation_under_traffic_fails_no_request(gateway, second, admin, acme, monkeypatch):
    old = await new_key(admin, expires="90d", **KEY_TERMS | {"limits": None, "budget": None})
    answers: list[tuple[str, int]] = []
    keys = [old["key"]]
    busy = True

    async def call(worker: Gateway) -> None:
        while busy:
            key = keys[-1]
            answers.append((key, (await ask(worker, key, max_tokens=1)).status_code))

    callers = [asyncio.create_task(call(gateway)) for _ in range(4)]
    await until(lambda: len(answers) > 20)
    rotated = await admin.post(f"keys/{old['id']}/rotate", json={"overlap": "60s"})
    assert rotated.status_code == 201, rotated.text
    new = rotated.json()
    keys.append(new["key"])
    await until(lambda: sum(key == new["key"] for key, _ in answers) > 20)
    assert (await ask(gateway, old["key"])).status_code == 200, "both are valid meanwhile"
    replaced = new["replaced"]
    busy = False
    await asyncio.gather(*callers)
    assert {status for _, status in answers} == {200}
    same = ("tenant", "role", "label", "scopes", "limits", "budget", "priority", "cost_centre")
    assert {name: new[name] for name in same} == {name: old[name] for name in same}
    assert (replaced["id"], replaced["replaced_by"]) == (old["id"], new["id"])
    assert replaced["expires"] == new["created"] + 60_000_000
    assert new["expires"] - new["created"] == 90 * 86_400_000_000
    for worker in (gateway, second):
        monkeypatch.setattr(worker.state.directory, "_clock", lambda: replaced["expires"])
        refused = await ask(worker, old["key"])
        assert (refused.status_code, error(refused)["code"]) == (401, "expired_api_key")
        assert (await ask(worker, new["key"])).status_code == 200
    note = (await admin.get("audit", params={"action": "key.rotate"})).json()["data"][0]
    assert (note["subject"], note["details"]["new"], note["details"]["overlap"]) == (
        old["id"],
        new["id"],
        "60s",
    )
    assert new["key"].split("_", 2)[2] not in json.dumps(note)


async def test_a_key_is_replaced_once_until_its_successor_is_revoked(gateway, second, admin):
    await admin.post("tenants", json={"name": "acme"})
    old = await new_key(admin)
    async with gateway.http() as one, second.http() as other:
        answers = await asyncio.gather(
            *(
                client.post(f"/admin/v1/keys/{old['id']}/rotate", json={})
                for client in (one, other)
                for _ in range(4)
            )
        )
        assert sorted(a.status_code for a in answers) == [201] + [409] * 7
        (new,) = (a.json() for a in answers if a.status_code == 201)
        refusal = next(error(a) for a in answers if a.status_code == 409)
        assert f"florin key revoke {new['id']}" in refusal["message"]
    assert len((await admin.get("keys")).json()["data"]) == 2
    await admin.delete(f"keys/{new['id']}")
    assert (await admin.post(f"keys/{old['id']}/rotate", json={})).status_code == 201


async def test_what_cannot_be_rotated_says_what_to_do(admin, subtests):
    await admin.post("tenants", json={"name": "acme"})
    key = await new_key(admin)
    for overlap in ("soon", "31d", "-1h", "2027-01-01", ""):
        with subtests.test(overlap=overlap):
            refused = await admin.post(f"keys/{key['id']}/rotate", json={"overlap": overlap})
            assert (refused.status_code, error(refused)["param"]) == (400, "overlap")
    host = (await admin.post("keys", json={"role": "engine", "engine": "a1"})).json()
    refused = await admin.post(f"keys/{host['id']}/rotate", json={})
    assert (refused.status_code, "florin engine token create --name a1" in refused.text) == (400, True)
    gone = await new_key(admin)
    await admin.delete(f"keys/{gone['id']}")
    refused = await admin.post(f"keys/{gone['id']}/rotate", json={})
    assert (refused.status_code, error(refused)["code"]) == (409, "conflict")
    assert (await admin.post("keys/none/rotate", json={})).status_code == 404


async def test_the_overlap_never_lengthens_a_keys_life(admin):
    await admin.post("tenants", json={"name": "acme"})
    key = await new_key(admin, expires="1h")
    new = (await admin.post(f"keys/{key['id']}/rotate", json={"overlap": "7d", "expires": "30d"})).json()
    assert new["replaced"]["expires"] == key["expires"]
    assert new["expires"] - new["created"] == 30 * 86_400_000_000


async def test_a_key_that_expires_during_a_stream_lets_it_end(gateway, admin, acme, monkeypatch):
    acme.faults.update({"event_delay": 0.02})
    made = await new_key(admin, expires="60s")
    key = made["key"]
    body = {
        "model": "support",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "ignore_eos": True,
    }
    async with (
        gateway.http(key) as client,
        client.stream("POST", "/v1/chat/completions", json=body | {"max_tokens": 60}) as stream,
    ):
        lines = stream.aiter_lines()
        events = [await anext(lines)]
        monkeypatch.setattr(gateway.state.directory, "_clock", lambda: made["expires"])
        assert error(await ask(gateway, key))["code"] == "expired_api_key"
        events += [line async for line in lines if line]
    assert len(events) > 60
    assert events[-1] == "data: [DONE]"
    assert not any('"error"' in line for line in events)


# -- the page of a tenant


async def test_the_page_shows_uses_and_errors_of_all_workers(gateway, second, admin, acme):
    fresh = await new_key(admin, label="checkout")
    page = (await admin.get("tenants/acme")).json()
    assert [a["adapter"] for a in page["adapters"]] == ["acme/billing", "acme/support"]
    assert (page["usage"], page["queue"]["waiting"]) == ([], 0)
    await admin.patch("tenants/acme", json={"limits": {"concurrent": 5, "requests_per_minute": 60}})
    usage = {row["limit"]: row for row in (await admin.get("tenants/acme")).json()["usage"]}
    assert (usage["concurrent"]["used"], usage["requests_per_minute"]["allowed"]) == (0, 60)
    assert {k["id"]: k["last_used"] for k in page["keys"]}[fresh["id"]] is None
    assert page["errors"] == []
    secret = "words of a customer"
    async with second.http(fresh["key"]) as client:
        for model in ("support", "nothing"):
            body = {"model": model, "messages": [{"role": "user", "content": secret}]}
            answer = await client.post("/v1/chat/completions", json=body)
    request_id = answer.headers["x-request-id"]
    await second.state.lifecycle.activity.report()
    page = (await admin.get("tenants/acme")).json()
    (used,) = (k for k in page["keys"] if k["id"] == fresh["id"])
    assert used["last_used"] > fresh["created"]
    (last,) = page["errors"]
    assert (last["code"], last["status"], last["request_id"]) == ("model_not_found", 404, request_id)
    assert last["key"] == fresh["id"]
    assert secret not in json.dumps(page)
    assert fresh["key"].split("_", 2)[2] not in json.dumps(page)
    async with second.http() as other:
        assert (await other.get("/admin/v1/tenants/acme")).json()["errors"] == [last]
        assert (await other.get("/admin/v1/tenants/bolt")).json()["errors"] == []
        (listed,) = (
            k
            for k in (await other.get("/admin/v1/keys", params={"tenant": "acme"})).json()["data"]
            if k["id"] == fresh["id"]
        )
        assert listed == used == (await other.get(f"/admin/v1/keys/{fresh['id']}")).json()


async def test_a_tenant_of_the_same_name_does_not_see_the_errors_of_the_old_one(gateway, admin, acme):
    await ask(gateway, gateway.keys["bolt"], "nothing")
    assert len((await admin.get("tenants/bolt")).json()["errors"]) == 1
    for name in ("support", "billing"):
        await admin.delete(f"adapters/bolt/{name}")
    for key in (await admin.get("keys", params={"tenant": "bolt"})).json()["data"]:
        await admin.delete(f"keys/{key['id']}")
    assert (await admin.delete("tenants/bolt")).json()["removed"]
    await admin.post("tenants", json={"name": "bolt"})
    assert (await admin.get("tenants/bolt")).json()["errors"] == []
