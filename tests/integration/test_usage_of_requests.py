"""GET /finance/v1/usage, newest first and filtered, and the attempts of one request: each tenant its own."""

from __future__ import annotations

from tests.support.harness import OPERATOR_KEY
from tests.support.waiting import until


async def test_usage_of_requests(deployment):
    gateway = deployment.gateway
    ids = []
    for tenant in ("acme", "bolt", "acme"):
        async with gateway.client(tenant) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="support", messages=[{"role": "user", "content": "hello"}], max_tokens=4
            )
            ids.append(raw.headers["x-request-id"])

    async def ask(path: str, key: str = OPERATOR_KEY, **query: object):
        async with gateway.http(key) as client:
            return await client.get(f"/finance/v1/usage{path}", params=query)

    await until(lambda: _has(ask, ids[-1]))
    newest = (await ask("", order="newest", limit=2)).json()
    assert [r["request_id"] for r in newest["data"]] == ids[:0:-1]
    rest = (await ask("", order="newest", limit=2, after=newest["next"])).json()
    assert [r["request_id"] for r in rest["data"]] == [ids[0]]
    assert rest["next"] is None
    found = (await ask("", adapter="bolt/support", outcome="ok")).json()["data"]
    assert [r["request_id"] for r in found] == [ids[1]]
    assert (await ask("", outcome=["failover", "engine_error"])).json()["data"] == []
    assert (await ask("", outcome="nonsense")).status_code == 400

    [own] = (await ask(f"/{ids[0]}", gateway.keys["acme"])).json()["data"]
    assert (own["adapter"], own["version"], own["completion_tokens"] > 0) == ("acme/support", "v1", True)
    assert "engine" not in own
    [whole] = (await ask(f"/{ids[0]}")).json()["data"]
    assert whole["engine"] in {"a", "b"}
    others = await ask(f"/{ids[1]}", gateway.keys["acme"])
    never = await ask(f"/{ids[1]}x", gateway.keys["acme"])
    assert (others.status_code, never.status_code) == (404, 404)
    assert others.json()["error"]["message"] == never.json()["error"]["message"].replace(f"{ids[1]}x", ids[1])

    mine = (await ask(f"/{ids[0]}/cost", gateway.keys["acme"])).json()
    assert mine["pending"] in {"hour_not_over", "hour_not_computed"}  # the hour may end here
    assert mine["priced_by"] == "cost"
    assert "shares" not in mine
    shares = (await ask(f"/{ids[0]}/cost")).json()["shares"]
    assert {(share["attempt"], share["billable"]) for share in shares} == {(1, True)}
    assert sum(share["nano_gpu_hours"] for share in shares) > 0
    assert (await ask(f"/{ids[1]}/cost", gateway.keys["acme"])).status_code == 404


async def _has(ask, request_id: str) -> bool:
    return (await ask(f"/{request_id}")).status_code == 200


async def test_changes_of_the_placement_are_told_as_they_happen(deployment):
    gateway = deployment.gateway
    async with gateway.client("acme") as client:
        await client.chat.completions.create(model="support", messages=[{"role": "user", "content": "x"}])
    async with gateway.http() as admin:

        async def both() -> list:
            told = (await admin.get("/admin/v1/placement/changes")).json()["data"]
            return told if len(told) > 1 else []

        found = await until(both)
        assert [(c["version"], c["kind"]) for c in found] == [
            ("acme/support@v1", "loaded"),
            ("acme/support@v1", "loading"),
        ]
        assert found[0]["seconds"] >= 0
        engine = found[0]["engine"]
        elsewhere = "b" if engine == "a" else "a"
        assert (await admin.get("/admin/v1/placement/changes", params={"engine": elsewhere})).json()[
            "data"
        ] == []
        [shown] = [e for e in (await admin.get("/admin/v1/engines")).json()["data"] if e["name"] == engine]
        assert shown["reason"] is None
