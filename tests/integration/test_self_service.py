"""What a tenant's own administrator can do, what its quotas allow, and the walls between tenants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from adapters.model import BaseModel, Engine, dump
from adapters.store.protocol.registry import Change
from gateway.tenants import directory
from gateway.tenants.directory import Role
from gateway.tenants.terms import Budget, Limits, Priority, Quotas, Scopes
from loadtests.mock_engine import MockEngine
from tests.integration.uploading import adapter_files, path_of, tar_of
from tests.support.harness import Gateway, running_gateway
from tests.support.lora import LLAMA
from tests.support.waiting import until

SECRETS = ("engine-of-the-fleet", "gpu-of-the-fleet", "host-of-the-fleet")
BASE = BaseModel("base", ("/path-of-the-fleet/base",), LLAMA.config)


async def grant(gateway: Gateway, tenant: str, **quotas) -> None:
    known = gateway.state.directory.tenants[tenant]
    changed = replace(known, quotas=Quotas(**quotas))
    await gateway.commit(Change("tenant", tenant, directory.dump(changed)))


@asynccontextmanager
async def fleet(tmp_path: Path, valkey_url: str, prefix: str, **settings) -> AsyncIterator[Gateway]:
    async with (
        running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway,
        MockEngine() as mock,
    ):
        for tenant in ("acme", "bolt"):
            await gateway.add_tenant(tenant)
        name, gpu, host = SECRETS
        engine = Engine(name, mock.url, "base", gpu, slots=4, max_rank=8, host=host)
        await gateway.commit(
            Change("base", "base", dump(BASE)),
            Change("engine", name, dump(engine)),
        )
        yield gateway


@pytest.fixture
async def gateway(tmp_path, valkey_url, prefix):
    async with fleet(tmp_path, valkey_url, prefix) as running:
        yield running


@pytest.fixture
async def acme(gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with gateway.http(await gateway.add_key(Role.TENANT_ADMIN, "acme")) as client:
        yield client


@pytest.fixture
async def bolt(gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with gateway.http(await gateway.add_key(Role.TENANT_ADMIN, "bolt")) as client:
        yield client


@pytest.fixture
async def clients(acme, bolt) -> dict[str, httpx2.AsyncClient]:
    return {"acme": acme, "bolt": bolt}


async def upload(
    client: httpx2.AsyncClient, tmp_path: Path, fill: int = 0, name: str = "acme/support"
) -> httpx2.Response:
    return await client.post(path_of(name), content=tar_of(adapter_files(tmp_path, fill=fill)))


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# -- a customer's own adapters


async def test_a_customer_runs_its_adapters_from_the_first_version_to_the_last(gateway, acme, tmp_path):
    seen = []

    async def ask(method: str, path: str, **body) -> dict:
        answer = await acme.request(method, f"/admin/v1/adapters{path}", json=body or None)
        assert answer.status_code == 200, answer.text
        seen.append(answer.text)
        return answer.json()

    for fill in (0, 1):
        answer = await upload(acme, tmp_path, fill)
        assert answer.status_code == 201, answer.text
        seen.append(answer.text)
    wrong = adapter_files(tmp_path, fill=2)
    wrong["adapter_config.json"] = wrong["adapter_config.json"].replace(b'"base"', b'"another"')
    refused = await acme.post(path_of("acme/wrong"), content=tar_of(wrong))
    assert "base_mismatch" in refused.text
    seen.append(refused.text)
    canary = await ask("PUT", "/acme/support/live", version="v2", weight=10)
    assert canary["canary"] == {"version": "v2", "weight": 10, "guard": None, "held": None}
    assert (await ask("PUT", "/acme/support/live", version="v2"))["live"] == "v2"
    shown = await ask("GET", "/acme/support")
    assert (shown["live"], shown["loaded"]) == ("v2", True)
    assert [v["state"] for v in shown["version_details"]] == ["ready", "live"]
    assert (await ask("POST", "/acme/support/rollback"))["live"] == "v1"
    assert (await ask("POST", "/acme/support/versions/v2/retire"))["state"] == "retired"
    assert [v["version"] for v in (await ask("GET", "/acme/support/versions"))["data"]] == ["v1", "v2"]
    assert [a["adapter"] for a in (await ask("GET", ""))["data"]] == ["acme/support"]

    client = gateway.client("acme")
    answered = await client.chat.completions.create(
        model="support", messages=[{"role": "user", "content": "?"}]
    )
    assert answered.choices[0].message.content
    await client.close()

    assert (await ask("DELETE", "/acme/support"))["removed"] is True
    assert (await ask("DELETE", "/acme/support"))["removed"] is False
    for path in ("bases", "audit", "me"):
        answer = await acme.get(f"/admin/v1/{path}")
        assert answer.status_code == 200, answer.text
        seen.append(answer.text)
    state_dir, urls = (
        str(gateway.state.settings.state_dir),
        [e.url for e in gateway.state.catalog.engines.values()],
    )
    for text in seen:
        assert not [
            secret
            for secret in (*SECRETS, "path-of-the-fleet", state_dir, *urls, "fl-", "operator-key")
            if secret in text
        ], text


async def test_what_stays_with_the_operator(acme, tmp_path):
    await upload(acme, tmp_path)
    for method, path, body in (
        ("PUT", "adapters/acme/support/pin", {"pinned": True}),
        ("PUT", "adapters/acme/support/replicas", {"min_replicas": 2}),
        ("POST", "adapters/acme/support/versions/v1/release", None),
        ("PATCH", "tenants/acme", {"base_access": True}),
        ("GET", "placement", None),
        ("GET", "engines", None),
        ("GET", "audit/requests/req-1", None),
        ("POST", "adapters", {"adapter": "acme/x", "source": "hf://a/b", "unverified_shapes": True}),
        ("POST", "adapters/upload?adapter=acme/x&unverified_shapes=true", None),
    ):
        answer = await acme.request(method, f"/admin/v1/{path}", json=body)
        assert code_of(answer) == (403, "insufficient_role"), path


async def test_a_read_only_key_and_one_for_some_adapters(gateway, acme, tmp_path):
    for name in ("acme/support", "acme/sales"):
        assert (await upload(acme, tmp_path, name=name)).status_code == 201
    reading = await gateway.add_key(Role.TENANT_ADMIN, "acme", scopes=Scopes(read_only=True))
    async with gateway.http(reading) as client:
        assert len((await client.get("/admin/v1/adapters")).json()["data"]) == 2
        assert code_of(await client.delete("/admin/v1/adapters/acme/sales")) == (403, "insufficient_scope")
    some = await gateway.add_key(Role.TENANT_ADMIN, "acme", scopes=Scopes(adapters=("sup*",)))
    async with gateway.http(some) as client:
        assert [a["adapter"] for a in (await client.get("/admin/v1/adapters")).json()["data"]] == [
            "acme/support"
        ]
        assert (await client.get("/admin/v1/adapters/acme/support")).status_code == 200
        hidden, absent = [await client.get(f"/admin/v1/adapters/acme/{name}") for name in ("sales", "nosuc")]
        assert hidden.text.replace("sales", "nosuc") == absent.text
        assert code_of(await upload(client, tmp_path, 1, "acme/other")) == (404, "not_found")


# -- its own keys


async def test_a_customer_manages_its_own_keys(gateway, acme):
    made = await acme.post("/admin/v1/keys", json={"label": "checkout", "expires": "90d"})
    assert made.status_code == 201, made.text
    key = made.json()
    assert (key["tenant"], key["role"], key["label"]) == ("acme", "tenant", "checkout")
    assert not key.keys() & {"digest", "engine", "pins"}
    async with gateway.http(key["key"]) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/admin/v1/me")).json()["label"] == "checkout"
        assert code_of(await client.get("/admin/v1/keys")) == (403, "insufficient_role")
    one = f"/admin/v1/keys/{key['id']}"
    assert (await acme.patch(one, json={"label": "shop"})).json()["label"] == "shop"
    rotated = (await acme.post(f"{one}/rotate", json={"overlap": "1h"})).json()
    assert rotated["replaced"]["replaced_by"] == rotated["id"]
    assert (await acme.delete(one)).json()["revoked"]
    ids = {k["id"] for k in (await acme.get("/admin/v1/keys")).json()["data"]}
    assert {key["id"], rotated["id"]} < ids
    assert {k.own_tenant for k in gateway.state.directory.keys.values() if k.id in ids} == {"acme"}
    actions = [e["action"] for e in (await acme.get("/admin/v1/audit")).json()["data"]]
    assert actions == ["key.revoke", "key.rotate", "key.update", "key.create"]


async def test_a_customer_makes_no_key_of_another_role(acme, subtests):
    for role in set(Role) - directory.TENANT_ROLES:
        with subtests.test(role=role):
            body = {"role": role} | ({"engine": "a1", "tenant": ""} if role is Role.ENGINE else {})
            answer = await acme.post("/admin/v1/keys", json=body)
            assert answer.status_code in (400, 403), answer.text
    assert len((await acme.get("/admin/v1/keys")).json()["data"]) == 2


async def test_the_keys_that_an_administrator_makes_reach_no_further_than_its_own(gateway):
    bounds = {
        "scopes": Scopes(adapters=("sup*",), endpoints=("/v1/chat/completions",)),
        "limits": Limits(requests_per_minute=10),
        "budget": Budget(tokens_per_day=1000),
        "priority": Priority.LOW,
    }
    async with gateway.http(await gateway.add_key(Role.TENANT_ADMIN, "acme", **bounds)) as client:

        async def made(**terms) -> httpx2.Response:
            return await client.post("/admin/v1/keys", json=terms)

        inherited = (await made()).json()
        assert inherited["scopes"]["adapters"] == ["sup*"]
        assert inherited["limits"]["requests_per_minute"] == 10
        assert inherited["budget"]["tokens_per_day"] == 1000
        assert inherited["priority"] == "low"
        assert (
            await made(scopes={"adapters": ["support"]}, limits={"requests_per_minute": 9})
        ).status_code == 201
        for terms, param in (
            ({"scopes": {"adapters": ["sales"]}}, "scopes.adapters"),
            ({"scopes": {"adapters": ["s*"]}}, "scopes.adapters"),
            ({"scopes": {"adapters": ["bolt/support"]}}, "scopes.adapters"),
            ({"scopes": {"endpoints": ["/v1/completions"]}}, "scopes.endpoints"),
            ({"limits": {"requests_per_minute": 11}}, "limits.requests_per_minute"),
            ({"budget": {"tokens_per_day": 1001}}, "budget.tokens_per_day"),
            ({"priority": "high"}, "priority"),
        ):
            answer = await made(**terms)
            assert (answer.status_code, answer.json()["error"]["param"]) == (403, param), answer.text
        widened = await client.patch(
            f"/admin/v1/keys/{inherited['id']}", json={"limits": None, "scopes": None}
        )
        assert widened.json()["limits"]["requests_per_minute"] == 10
        [operators] = [
            k
            for k in gateway.state.directory.keys.values()
            if k.own_tenant == "acme" and k.role is Role.TENANT
        ][:1]
        stolen = await client.post(f"/admin/v1/keys/{operators.id}/rotate", json={})
        assert code_of(stolen) == (403, "insufficient_scope")


async def test_the_quota_of_keys_holds_through_rotation_and_revival(gateway, acme):
    await grant(gateway, "acme", keys=3)  # it has two
    key = (await acme.post("/admin/v1/keys", json={})).json()
    answer = await acme.post("/admin/v1/keys", json={})
    assert code_of(answer) == (403, "quota_exceeded")
    assert "3 of at most 3 valid keys" in answer.json()["error"]["message"]
    ids = [key["id"]]
    for _ in range(3):
        ids.append((await acme.post(f"/admin/v1/keys/{ids[-1]}/rotate", json={})).json()["id"])
    assert code_of(await acme.post(f"/admin/v1/keys/{ids[-1]}/rotate", json={})) == (403, "quota_exceeded")
    async with gateway.http() as operator:
        expired = (await operator.post("/admin/v1/keys", json={"tenant": "acme", "expires": "1s"})).json()
    await until(lambda: gateway.state.clock.now() > expired["expires"])
    revived = await acme.patch(f"/admin/v1/keys/{expired['id']}", json={"expires": None})
    assert code_of(revived) == (403, "quota_exceeded")


async def test_keys_made_at_once_do_not_exceed_the_quota(gateway, acme):
    await grant(gateway, "acme", keys=5)
    answers = await asyncio.gather(*(acme.post("/admin/v1/keys", json={}) for _ in range(7)))
    assert [a.status_code for a in answers].count(201) == 3


KEYS_OWN = [("GET", "", None), ("PATCH", "", {}), ("POST", "/rotate", {}), ("DELETE", "", None)]


async def test_anothers_key_and_an_absent_one_are_one_answer(gateway, acme, store_calls, subtests):
    keys = gateway.state.directory.keys.values()
    other = next(k for k in keys if k.own_tenant == "bolt" and k.role is Role.TENANT)
    for method, rest, body in KEYS_OWN:
        with subtests.test(method=method, rest=rest):
            seen = []
            for id_ in (other.id, "0" * len(other.id)):
                store_calls.clear()
                answer = await acme.request(method, f"/admin/v1/keys/{id_}{rest}", json=body)
                asked = [c for c in store_calls if c not in BACKGROUND]
                seen.append((answer.status_code, answer.text.replace(id_, "ID"), asked))
            assert seen[0] == seen[1]
            assert seen[0][0] == 404
            assert gateway.state.directory.keys[other.id] == other


# -- quotas


async def test_each_quota_says_what_is_used_and_what_to_do(gateway, acme, tmp_path):
    size = sum(len(content) for content in adapter_files(tmp_path).values())

    async def refused(quotas: dict, name: str = "acme/support", fill: int = 1) -> str:
        await grant(gateway, "acme", **quotas)
        answer = await upload(acme, tmp_path, fill, name)
        assert code_of(answer) == (403, "quota_exceeded"), answer.text
        return answer.json()["error"]["message"]

    assert "and this tenant's may have at most 1" in await refused({"max_rank": 1})
    await grant(gateway, "acme")
    assert (await upload(acme, tmp_path)).status_code == 201
    assert "has 1 of at most 1 adapters" in await refused({"adapters": 1}, "acme/other")
    assert "has 1 of at most 1 versions" in await refused({"versions": 1})
    assert f"at most {size + 1:,} bytes" in await refused({"bytes": size + 1})
    assert "florin adapter retire" in await refused({"bytes": size + 1})
    await grant(gateway, "acme", adapters=1, versions=1, bytes=size, max_rank=8)
    again = await upload(acme, tmp_path)  # what is there already costs nothing
    assert (again.status_code, again.json()["created"]) == (200, False)


async def test_an_upload_that_cannot_fit_is_refused_before_it_is_sent(gateway, acme):
    await grant(gateway, "acme", bytes=1000)
    answer = await acme.post(path_of(), content=b"x" * 1_100_000)
    assert code_of(answer) == (403, "quota_exceeded")
    assert answer.headers["connection"] == "close"


async def test_uploads_per_hour(gateway, acme, tmp_path):
    await grant(gateway, "acme", uploads_per_hour=2)
    for fill in (0, 1):
        assert (await upload(acme, tmp_path, fill)).status_code == 201
    answer = await upload(acme, tmp_path, 2)
    assert code_of(answer) == (429, "upload_quota_exceeded")
    assert 3500 < int(answer.headers["retry-after"]) <= 3600
    async with gateway.http() as operator:  # whose uploads do not count
        assert (await upload(operator, tmp_path, 2)).status_code == 201
    used = (await acme.get("/admin/v1/me")).json()["tenant_terms"]["quotas"]
    assert used["uploads_per_hour"] == {"limit": 2, "used": 2}
    assert used["versions"] == {"limit": None, "used": 3}


@pytest.mark.parametrize("quota", ["adapters", "uploads_per_hour"])
async def test_registrations_at_once_on_two_workers_do_not_exceed_a_quota(
    tmp_path, valkey_url, prefix, quota
):
    async with (
        fleet(tmp_path / "one", valkey_url, prefix) as one,
        running_gateway(
            tmp_path / "two", valkey_url, prefix, artifact_dir=tmp_path / "one" / "state" / "artifacts"
        ) as two,
    ):
        await grant(one, "acme", **{quota: 3})
        key = await one.add_key(Role.TENANT_ADMIN, "acme")
        await two.state.follower.wait_for(one.state.follower.seq, 30)
        async with one.http(key) as first, two.http(key) as second:
            answers = await asyncio.gather(
                *(upload((first, second)[n % 2], tmp_path, n, f"acme/a{n}") for n in range(8))
            )
        codes = [a.status_code for a in answers]
        assert codes.count(201) == 3, [a.text for a in answers]
        assert len(one.state.catalog.adapters) <= 3


# -- the sources that a customer may use


async def test_sources_that_would_use_what_is_the_gateway_s(acme, subtests):
    for source in ("/etc", "file:///etc", "s3://bucket/key", "http://example.com/a.tar", "gopher://x"):
        with subtests.test(source=source):
            answer = await acme.post("/admin/v1/adapters", json={"adapter": "acme/support", "source": source})
            assert code_of(answer) == (403, "source_not_allowed")
            assert answer.json()["error"]["param"] == "source"


async def test_a_customer_cannot_tell_which_private_names_there_are(tmp_path, valkey_url, prefix):
    """A name that leads to a private address and one that does not exist get the same answer."""
    async with (
        fleet(tmp_path, valkey_url, prefix, tenant_sources="http") as gateway,
        gateway.http(await gateway.add_key(Role.TENANT_ADMIN, "acme")) as client,
    ):
        answers = []
        for host in ("localhost", "none.invalid"):
            body = {"adapter": "acme/support", "source": f"http://{host}:9/a.tar"}
            answer = await client.post("/admin/v1/adapters", json=body)
            answers.append((answer.status_code, answer.text.replace(host, "HOST")))
    assert answers[0] == answers[1]
    assert "source_not_public" in answers[0][1]


async def test_a_public_source_does_not_lead_into_the_gateway_s_network(tmp_path, valkey_url, prefix):
    settings = {"tenant_sources": "http", "source_private": "127.0.0.1,localhost"}
    async with (
        fleet(tmp_path, valkey_url, prefix, **settings) as gateway,
        gateway.http(await gateway.add_key(Role.TENANT_ADMIN, "acme")) as client,
    ):
        body = {"adapter": "acme/support", "source": "http://localhost:9/a.tar"}
        answer = await client.post("/admin/v1/adapters", json=body)
    assert code_of(answer) == (422, "adapter_rejected")
    [finding] = answer.json()["error"]["findings"]
    assert finding["code"] == "source_not_public"
    assert "127.0.0.1" not in answer.text


async def test_a_digest_does_not_stand_for_another_tenant_s_files(gateway, acme, bolt, tmp_path):
    digest = (await upload(acme, tmp_path)).json()["digest"]
    theft = await bolt.post(
        path_of("bolt/support", digest=digest), content=tar_of(adapter_files(tmp_path, fill=1))
    )
    assert code_of(theft) == (422, "adapter_rejected")
    unknown = await bolt.post(
        path_of("bolt/support", digest="sha256:" + "0" * 64), content=tar_of(adapter_files(tmp_path, fill=1))
    )
    assert unknown.text.replace("0" * 64, digest[7:]) == theft.text


# -- walls


OWN = [
    ("GET", "/admin/v1/adapters/{name}", None),
    ("GET", "/admin/v1/adapters/{name}/versions", None),
    ("PUT", "/admin/v1/adapters/{name}/live", {"version": "v1"}),
    ("PUT", "/admin/v1/adapters/{name}/live", {"version": "v1", "wait": False}),
    ("POST", "/admin/v1/adapters/{name}/rollback", None),
    ("POST", "/admin/v1/adapters/{name}/versions/v1/retire", None),
    ("DELETE", "/admin/v1/adapters/{name}", None),
    ("POST", "/admin/v1/adapters", {"adapter": "{name}", "source": "https://127.0.0.1:9/a.tar"}),
    ("POST", "/admin/v1/adapters/upload?adapter={name}", b"x" * 1000),
    ("GET", "/admin/v1/adapters?tenant={tenant}", None),
    ("GET", "/admin/v1/audit?subject={name}", None),
    ("GET", "/finance/v1/usage?tenant={tenant}", None),
    ("GET", "/finance/v1/costs?tenant={tenant}", None),
    ("GET", "/finance/v1/statements/{tenant}?month=2026-01", None),
]


def filled(value, tenant: str, name: str):
    if isinstance(value, bytes) or value is None:
        return value
    if isinstance(value, str):
        return value.format(tenant=tenant, name=name)
    return {key: filled(v, tenant, name) if isinstance(v, str) else v for key, v in value.items()}


async def test_anothers_and_absent_are_one_answer(clients, gateway, tmp_path, store_calls, subtests):
    """Byte for byte; and Florin asks its store the same for both."""
    for tenant, client in clients.items():
        assert (await upload(client, tmp_path, name=f"{tenant}/support")).status_code == 201
    for method, path, body in OWN:
        with subtests.test(method=method, path=path):
            seen = []
            for tenant in ("bolt", "nobo"):  # as long, so that the answers' lengths can be compared, too
                store_calls.clear()
                given = filled(body, tenant, f"{tenant}/support")
                url = path.format(tenant=tenant, name=f"{tenant}/support")
                how = {"content": given} if isinstance(given, bytes) else {"json": given}
                answer = await clients["acme"].request(method, url, **how)
                text = answer.text.replace(tenant, "TENANT")
                shown = {k: v for k, v in answer.headers.items() if k not in ("date", "x-request-id", "etag")}
                asked = [c for c in store_calls if c not in BACKGROUND]
                seen.append((answer.status_code, _timeless(text), shown, asked))
            assert seen[0] == seen[1]
            assert gateway.state.catalog.adapters["bolt/support"].live == 1


BACKGROUND = ("lead", "touch", "heartbeats")
"""What workers ask all the time, whatever is asked of them."""


@pytest.fixture
def store_calls(gateway, monkeypatch) -> list[str]:
    """What the gateway has asked its store."""
    calls: list[str] = []
    store = type(gateway.state.store)

    def spied(name: str):
        real = getattr(store, name)

        def called(self, *args):
            calls.append(args[0] if name == "_run" else name)
            return real(self, *args)

        return called

    for name in ("_run", "snapshot"):
        monkeypatch.setattr(store, name, spied(name))
    return calls


def _timeless(text: str) -> str:
    try:
        body = json.loads(text)
    except ValueError:
        return text
    for name in ("to", "from"):
        if isinstance(body, dict):
            body.pop(name, None)
    return json.dumps(body)


async def test_the_audit_shows_a_tenant_its_own_entries(gateway, acme, bolt, tmp_path):
    await upload(acme, tmp_path)
    await upload(bolt, tmp_path, name="bolt/support")
    async with gateway.http() as operator:
        await operator.put("/admin/v1/adapters/acme/support/pin", json={"pinned": True})
    found = (await acme.get("/admin/v1/audit")).json()["data"]
    assert [(e["action"], e["subject"]) for e in found] == [
        ("adapter.pin", "acme/support"),
        ("adapter.add", "acme/support"),
    ]
    assert found[0]["actor"] == "operator"
    assert found[1]["actor_key"]["role"] == "tenant-admin"
    assert (await bolt.get("/admin/v1/audit", params={"subject": "acme/*"})).json()["data"] == []


async def test_one_tenant_s_slow_uploads_leave_room_for_another_s(gateway, acme, bolt, tmp_path):
    async def slow():
        yield b"x"
        await asyncio.sleep(600)

    held = [asyncio.create_task(acme.post(path_of(f"acme/a{n}"), content=slow())) for n in range(6)]
    queue = gateway.state.intake.tenant_uploads
    await until(lambda: (queue.running, queue.waiting) == (2, 4))
    assert code_of(await upload(acme, tmp_path)) == (503, "too_many_uploads")
    assert (await upload(bolt, tmp_path, name="bolt/support")).status_code == 201
    async with gateway.http() as operator:
        assert (await upload(operator, tmp_path, name="acme/other")).status_code == 201
    for task in held:
        task.cancel()
    await asyncio.wait(held)
