"""Who did what: every route that changes something leaves its entry, once, with who did it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adapters.model import ServingStatus, dump
from adapters.store.embedded import EmbeddedValkey
from adapters.store.protocol.registry import AuditNote, Change
from gateway.api.finance_requests import token
from gateway.costs.reconciliation.verdicts import line_id
from gateway.metering.ledger.audit_log import Wanted, read
from gateway.metering.ledger.audit_shipper import KEEP, tail
from gateway.tenants import directory
from tests.integration.uploading import adapter_files, path_of, tar_of
from tests.support.harness import Gateway, running_gateway
from tests.support.lora import LLAMA
from tests.support.routes import described
from tests.support.waiting import until

FINANCE = "/finance/v1"
COMMITMENT = {
    "gpu_type": "H100", "gpus": 8, "valid_from": "2026-10-01", "valid_to": "2027-10-01", "rate_per_gpu_hour": "1.80",
}  # fmt: skip
WHY = {"reason": "agreed with the provider"}
WEIGHTS = {"prefill": 1, "cached": 0, "decode": 0, "kv": 0, "load": 0}


@pytest.fixture
async def operator(gateway):
    """A client with an operator's key of its own, and that key's id."""
    async with gateway.http() as bootstrap:
        key = (await bootstrap.post("/admin/v1/keys", json={"role": "operator"})).json()
    async with gateway.http(key["key"]) as client:
        yield client, key["id"]


async def entries(client, **asked):
    answer = await client.get("/admin/v1/audit", params={"limit": 1000} | asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["complete"] is True
    return answer.json()["data"]


def closed_month() -> str:
    """The last one that is over."""
    now = datetime.now(UTC)
    return f"{now.year - (now.month == 1)}-{(now.month - 2) % 12 + 1:02}"


def bill() -> bytes:
    head, day = "start,end,resource,gpu_type,gpu_hours,cost,currency", f"{closed_month()}-01T"
    return f"{head}\n{day}00:00Z,{day}01:00Z,a,H100,1,2.50,USD\n".encode()


def billed_line() -> str:
    return line_id(closed_month(), "bill", "", "H100", "", "on_demand", "down")


ADMIN, SUPPORT = "/admin/v1", "/admin/v1/adapters/acme/support"
ROUTE = "/admin/v1/adapters/{tenant}/{name}"
ENGINE = {
    "name": "a1", "url": "http://127.0.0.1:9", "base": "base", "gpu_type": "H100", "slots": 2, "max_rank": 8,
    "verify": False,
}  # fmt: skip
EXCHANGE_RATE = {
    "currency": "USD", "target": "EUR", "rate": "0.92", "valid_from": "2026-10-01", "source": "ECB",
}  # fmt: skip
RATE_CARD = {"name": "standard", "input_per_million": "0.60", "output_per_million": "2.40"}
MANUAL_LINE = {"kind": "fee", "tenant": "acme", "amount": "250", "begins": "2099-01-01", **WHY}
CREDIT = {"tenant": "acme", "amount": "500", "reason": "Payment", "reference": "pay_1"}
PRICE = {"gpu_type": "H100", "rate_per_gpu_hour": "3"}
CALIBRATION = {"gpu_type": "H100", "base_model": "base", "weights_ps": WEIGHTS}


@dataclass
class Step:
    """One request of an installation's life, and the entry that it leaves."""

    route: str
    action: str
    subject: str | None
    """None: only the answer tells."""
    version: str = ""
    path: str = ""
    """Left out: the route's own."""
    json: dict[str, Any] | None = None
    content: bytes | None = None
    again: bool = False
    """The same again changes nothing, and leaves nothing."""

    async def ask(self, client: httpx2.AsyncClient, **names: str) -> httpx2.Response:
        method, _, route = self.route.partition(" ")
        path = (self.path or route).format(**names)
        body = {"json": self.json} if self.json is not None else {"content": self.content or b""}
        return await client.request(method, path, **body)


def life(first: bytes, second: Path, model: Path) -> list[Step]:
    engine = ENGINE | {"base_config": str(model)}
    live, release = f"PUT {ROUTE}/live", f"POST {ROUTE}/versions/{{version}}/release"
    pinned = {"json": {"pinned": True}, "path": f"{SUPPORT}/pin", "again": True}
    return [
        Step(f"POST {ADMIN}/tenants", "tenant.add", "acme", json={"name": "acme"}, again=True),
        Step(f"POST {ADMIN}/tenants", "tenant.update", "acme", json={"name": "acme", "base_access": True}),
        Step(
            f"PATCH {ADMIN}/tenants/{{name}}", "tenant.update", "acme", "", f"{ADMIN}/tenants/acme",
            json={"requires": {"gpu_type": "H100"}}, again=True,
        ),
        Step(
            f"PATCH {ADMIN}/tenants/{{name}}", "tenant.suspend", "acme", "", f"{ADMIN}/tenants/acme",
            json={"suspended": True}, again=True,
        ),
        Step(
            f"PATCH {ADMIN}/tenants/{{name}}", "tenant.resume", "acme", "", f"{ADMIN}/tenants/acme",
            json={"suspended": False}, again=True,
        ),
        Step(f"POST {ADMIN}/keys", "key.create", None, json={"tenant": "acme"}),
        Step(f"PATCH {ADMIN}/keys/{{key_id}}", "key.update", None, json={"label": "checkout"}, again=True),
        Step(f"POST {ADMIN}/keys/{{key_id}}/rotate", "key.rotate", None, json={}),
        Step(f"DELETE {ADMIN}/keys/{{key_id}}", "key.revoke", None, again=True),
        Step(f"POST {ADMIN}/sign-in-links", "key.sign_in_link", None),
        Step(f"POST {ADMIN}/enrolment-tokens", "token.create", "gpu1", json={"engine": "gpu1"}),
        Step(f"POST {ADMIN}/engines", "engine.add", "a1", json=engine, again=True),
        Step(f"POST {ADMIN}/engines", "engine.update", "a1", json=engine | {"slots": 3}, again=True),
        Step(f"POST {ADMIN}/adapters/upload", "adapter.add", "acme/support", "v1", path_of(), content=first, again=True),
        Step(
            f"POST {ADMIN}/adapters", "adapter.add", "acme/support", "v2",
            json={"adapter": "acme/support", "source": str(second)}, again=True,
        ),
        Step(
            live, "adapter.canary", "acme/support", "v2", f"{SUPPORT}/live",
            json={"version": "v2", "weight": 10, "wait": False}, again=True,
        ),
        Step(
            live, "adapter.promote", "acme/support", "v2", f"{SUPPORT}/live",
            json={"version": "v2", "wait": False}, again=True,
        ),
        Step(f"POST {ROUTE}/rollback", "adapter.rollback", "acme/support", "v1", f"{SUPPORT}/rollback"),
        Step(f"PUT {ROUTE}/pin", "adapter.pin", "acme/support", "v1", **pinned),
        Step(f"PUT {ROUTE}/pin", "adapter.unpin", "acme/support", "v1", **pinned | {"json": {"pinned": False}}),
        Step(
            f"PUT {ROUTE}/replicas", "adapter.scale", "acme/support", "", f"{SUPPORT}/replicas",
            json={"min_replicas": 1}, again=True,
        ),
        Step(
            f"PUT {ROUTE}/evaluation-policy", "adapter.eval_policy", "acme/support", "",
            f"{SUPPORT}/evaluation-policy", json={"require_eval": True}, again=True,
        ),
        Step(
            f"PUT {ROUTE}/cost-centre", "adapter.label", "acme/support", "", f"{SUPPORT}/cost-centre",
            json={"cost_centre": "R&D"}, again=True,
        ),
        Step(release, "adapter.release", "acme/support", "v2", f"{SUPPORT}/versions/v2/release", again=True),
        Step(
            f"POST {ROUTE}/versions/{{version}}/retire", "adapter.retire", "acme/support", "v2",
            f"{SUPPORT}/versions/v2/retire", again=True,
        ),
        Step(f"DELETE {ROUTE}", "adapter.remove", "acme/support", "", SUPPORT, again=True),
        Step(
            f"PUT {ADMIN}/engines/{{name}}/trial", "engine.trial", "a1", "", f"{ADMIN}/engines/a1/trial",
            json={"share": 5}, again=True,
        ),
        Step(
            f"DELETE {ADMIN}/engines/{{name}}/trial", "engine.trial", "a1", "", f"{ADMIN}/engines/a1/trial",
            again=True,
        ),
        Step(
            f"PUT {ADMIN}/engines/{{name}}/state", "engine.state", "a1", "", f"{ADMIN}/engines/a1/state",
            json={"state": "cordoned"}, again=True,
        ),
        Step(
            f"POST {ADMIN}/engines/{{name}}/drain", "engine.drain", "a1", "", f"{ADMIN}/engines/a1/drain",
            json={"timeout": 60}, again=True,
        ),
        Step(
            f"PUT {ADMIN}/engines/{{name}}/stopping", "engine.stop", "a1", "", f"{ADMIN}/engines/a1/stopping",
            json={"epoch": "e1"}, again=True,
        ),
        Step(f"DELETE {ADMIN}/engines/{{name}}", "engine.remove", "a1", "", f"{ADMIN}/engines/a1", again=True),
        Step(f"POST {ADMIN}/apply", "tenant.add", "bolt", json={"florin": 1, "tenants": {"bolt": {}}}, again=True),
        Step(
            f"DELETE {ADMIN}/tenants/{{name}}", "tenant.remove", "bolt", "", f"{ADMIN}/tenants/bolt", again=True
        ),
        Step(f"POST {ADMIN}/prices", "price.add", "H100", json=PRICE, again=True),
        Step(
            f"POST {ADMIN}/prices/{{number}}/correct", "price.correct", "H100", "", f"{ADMIN}/prices/1/correct",
            json={"rate_per_gpu_hour": "2.50", "reason": "typed wrongly"},
        ),
        Step(f"POST {ADMIN}/exchange-rates", "exchange_rate.add", "USD to EUR", json=EXCHANGE_RATE, again=True),
        Step(f"POST {ADMIN}/calibrations", "calibration.add", "H100", json=CALIBRATION),
        Step(
            "PUT /finance/v1/budgets", "cost_budget.set", "installation", json={"amount": "5"}, again=True
        ),
        Step("PUT /finance/v1/budgets", "cost_budget.remove", "installation", json={"amount": None}, again=True),
        Step(
            "PUT /finance/v1/energy/power", "power.set", "H100",
            json={"gpu_type": "H100", "watts": "700", "source": "us"}, again=True,
        ),
        Step(
            "PUT /finance/v1/energy/grid", "grid.set", "eu-1",
            json={"region": "eu-1", "grams_per_kwh": "56", "source": "us"}, again=True,
        ),
        Step("POST /finance/v1/bills", "bill.import", None, content=bill(), again=True),
        Step(
            f"POST {FINANCE}/reconciliation/acceptances", "bill.accept", closed_month(),
            json={"lines": [billed_line()], **WHY}, again=True,
        ),
        Step(
            f"POST {FINANCE}/true-ups/{{month}}", "bill.true_up", closed_month(), json={"invoice": "2.50"},
            again=True,
        ),
        Step(
            f"POST {FINANCE}/reconciliation/acceptances/{{line}}/withdraw", "bill.withdraw_acceptance", closed_month(), "",
            f"{FINANCE}/reconciliation/acceptances/{billed_line()}/withdraw", json=WHY,
        ),
        Step(
            f"POST {ADMIN}/events/{{stream}}/replay", "events.replay", "audit", "",
            f"{ADMIN}/events/audit/replay", json={"since": "2026-05-01"},
        ),
        Step(
            f"POST {ADMIN}/events/{{stream}}/skip", "events.skip", "usage", "",
            f"{ADMIN}/events/usage/skip", json={"until": "2026-05-01"},
        ),
        Step(f"POST {FINANCE}/commitments", "commitment.add", "1", json=COMMITMENT, again=True),
        Step(
            f"POST {FINANCE}/commitments/{{number}}/withdraw", "commitment.withdraw", "1", "",
            f"{FINANCE}/commitments/1/withdraw", json=WHY,
        ),
        Step("DELETE /finance/v1/bills/{source}", "bill.remove", None),
        Step("PUT /finance/v1/policy", "policy.set", "installation", json={"policy": "even"}, again=True),
        Step("POST /finance/v1/periods/{month}/close", "period.close", closed_month(), json={}, again=True),
        Step("POST /finance/v1/rate-cards", "rate_card.add", "standard", json=RATE_CARD, again=True),
        Step(
            "POST /finance/v1/rate-cards/assignments", "rate_card.assign", "default",
            json={"tenant": None, "card": "standard"}, again=True,
        ),
        Step("POST /finance/v1/manual-lines", "manual_line.add", "acme", json=MANUAL_LINE, again=True),
        Step(
            "POST /finance/v1/manual-lines/{number}/end", "manual_line.add", "acme", "",
            "/finance/v1/manual-lines/1/end", json={"ends": "2099-12-31", **WHY}, again=True,
        ),
        Step("POST /finance/v1/credits", "credit.grant", "acme", json=CREDIT, again=True),
        Step(
            "POST /finance/v1/credits/{number}/end", "credit.end", "acme", "", "/finance/v1/credits/1/end",
            json={"ends": "2099-12"}, again=True,
        ),
    ]  # fmt: skip


NO_CHANGES = {f"PUT {ADMIN}/engines/{{name}}/heartbeat", f"POST {ADMIN}/tenants/{{name}}/limits-dry-run"}
"""What is said there is true for seconds, or only asked: nothing that an audit asks about."""

ELSEWHERE = {
    f"POST {ADMIN}/registry/rewrite",
    f"POST {ADMIN}/registry/accept",
    f"POST {ADMIN}/engines/{{name}}/trust",
    f"POST {ADMIN}/engines/{{name}}/restart",
    f"POST {ADMIN}/enrol",
    "POST /finance/v1/credits/top-ups",
    "POST /finance/v1/set-aside/exclude",
    "POST /finance/v1/quarantine/dismiss",
    "POST /finance/v1/invoices",
    "POST /finance/v1/manual-lines/{number}/approve",
    "POST /finance/v1/manual-lines/{number}/withdraw",
    f"POST {ADMIN}/batches/{{batch_id}}/cancel",
    f"POST {ROUTE}/versions/{{version}}/evaluations",
    f"POST {ROUTE}/versions/{{version}}/try",
}
"""The first two need a registry that was lost: their entries are looked at in the tests of that. The next
asks an engine: in those of verification; and one its agent: in those of rolls. Then one takes a token: in those of engines' keys. The next needs
an hour that is set aside, and one a record in quarantine: in those of their rooms. Then one needs a statement: in those of issued statements. Two need a second person: in those of manual lines. The next
needs a batch: in those of batches. The last two need engines that answer: in those of evaluations and of the console's adapters."""


async def test_every_changing_route_leaves_its_entry(gateway, operator, tmp_path):
    client, key_id = operator
    model = tmp_path / "config.json"
    model.write_text(json.dumps(LLAMA.config))
    adapter_files(tmp_path, fill=2)
    steps = life(tar_of(adapter_files(tmp_path, fill=1)), tmp_path / "made-2", model)
    known = {"month": closed_month(), "key_id": "", "source": ""}
    [last] = await entries(client, limit=1)
    for step in steps:
        await _prepare(gateway, step)
        answer = await step.ask(client, **known)
        assert answer.status_code in {200, 201}, (step.route, answer.text)
        told = answer.json()
        known |= {"key_id": told.get("id", known["key_id"]), "source": told.get("source", known["source"])}
        entry, before = await entries(client, limit=2)
        assert (before, entry["action"]) == (last, step.action), step.route
        assert (entry["subject"], entry["version"]) == (
            step.subject or told.get("source") or told.get("replaced", told)["id"],
            step.version,
        ), step.route
        assert entry["actor"] == f"key:{key_id}"
        assert entry["actor_key"] == {"tenant": "", "role": "operator", "revoked": False}
        last = entry
        if step.again:
            assert (await step.ask(client, **known)).status_code in {200, 201}, step.route
            assert await entries(client, limit=1) == [last], step.route
    changing = {
        f"{m.upper()} {p}"
        for p, methods in described()["paths"].items()
        for m in methods
        if m != "get" and not p.startswith("/v1/")
    }
    changing -= {
        "POST /tokenize",
        "POST /detokenize",
        "POST /v2/rerank",
    }  # vLLM's and Cohere's paths of models
    assert changing == {step.route for step in steps} | NO_CHANGES | ELSEWHERE
    shown = json.dumps(await entries(client))
    assert client.headers["authorization"].split("_", 2)[2] not in shown


async def _prepare(gateway: Gateway, step: Step) -> None:
    """What the parts of Florin that work by themselves would have written."""
    state = gateway.state
    if step.action == "adapter.release":
        version = state.catalog.versions["acme/support@v2"]
        serving_status = ServingStatus(
            "quarantined", version.id, "answers_like_base", "It answers like base.", "a1", 1
        )
        await gateway.commit(Change("serving_status", version.engine_name, dump(serving_status)))
    if step.action == "engine.stop":
        engine = replace(state.catalog.engines["a1"], epoch="e1")
        await gateway.commit(Change("engine", "a1", dump(engine)))


async def test_refused_and_idempotent_calls_leave_no_audit_entry(gateway, operator):
    client, _ = operator
    before = await entries(client)
    refused = [
        await client.post("/admin/v1/tenants", json={"name": "No"}),
        await client.delete("/admin/v1/keys/nope"),
        await client.post("/admin/v1/adapters", json={"adapter": "acme/x", "source": "/nowhere"}),
        await client.put("/admin/v1/engines/a1/state", json={"state": "active"}),
        await client.post("/admin/v1/prices", json={"gpu_type": "a", "rate_per_gpu_hour": "cheap"}),
    ]
    assert all(answer.status_code >= 400 for answer in refused)
    await client.delete("/admin/v1/adapters/acme/none")
    await client.delete("/admin/v1/engines/none")
    assert await entries(client) == before


async def test_old_and_new_and_the_bootstrap_key(gateway):
    async with gateway.http() as client:
        await client.post("/admin/v1/tenants", json={"name": "acme"})
        await client.post("/admin/v1/tenants", json={"name": "acme", "base_access": True})
        newest, older = (await entries(client))[:2]
    assert (newest["actor"], newest["actor_key"]) == ("bootstrap", None)
    assert newest["details"] == {"base_access": {"old": False, "new": True}}
    assert older["details"]["base_access"] == {"new": False}


async def test_filters_pages_and_the_ledger_behind_redis(gateway, operator):
    """More entries than Redis keeps, half of them asked for while they are on their way."""
    client, key_id = operator
    state = gateway.state
    total = KEEP + 60
    for n in range(total):
        note = AuditNote("reconciler", "version.recover", f"acme/{n % 2}", f"v{n}", {"n": n})
        await state.store.commit((), audit=note)
    found, cursor = [], None
    while True:
        page = (
            await client.get(
                "/admin/v1/audit",
                params={"actor": "reconciler", "limit": 37} | ({"cursor": cursor} if cursor else {}),
            )
        ).json()
        found += page["data"]
        cursor = page["next"]
        if cursor is None:
            break
    assert [e["details"]["n"] for e in found] == list(reversed(range(total)))

    async def moved() -> bool:
        return len(await tail(state.store)) <= KEEP

    await until(moved)
    again = await entries(client, actor="reconciler")
    assert again == found
    odd = await entries(client, subject="acme/1", action="version.*")
    assert [e["details"]["n"] for e in odd] == [n for n in reversed(range(total)) if n % 2]
    middle = found[50]["recorded_at"]
    late = await entries(client, actor="reconciler", since=middle)
    early = await entries(client, actor="reconciler", until=middle)
    assert late + early == found
    assert {e["subject"] for e in await entries(client, subject="acme/*")} == {"acme/0", "acme/1"}
    assert await entries(client, actor=f"key:{key_id}") == []
    huge = token([str(1 << 63), "0", "1-0", "x"])
    for bad in ({"since": "yesterday"}, {"cursor": "x"}, {"cursor": huge}, {"limit": 0}):
        answer = await client.get("/admin/v1/audit", params=bad)
        assert answer.status_code == 400, bad
        assert answer.json()["error"]["param"].endswith(*bad)


async def test_while_redis_is_away_the_ledgers_entries_are_shown(tmp_path, prefix):
    with EmbeddedValkey(tmp_path / "redis") as server:
        async with (
            running_gateway(tmp_path / "state", server.url, prefix) as gateway,
            gateway.http() as client,
        ):
            await client.post("/admin/v1/tenants", json={"name": "acme"})
            await until(lambda: read(gateway.state.ledger, Wanted(), 10))
            server.stop()
            answer = (await client.get("/admin/v1/audit")).json()
            assert answer["complete"] is False
            assert [e["action"] for e in answer["data"]] == ["tenant.add"]


# -- which version on which engine answered a request


async def ask(deployment):
    async with deployment.gateway.client("acme") as client:
        return await client.chat.completions.with_raw_response.create(
            model="support", messages=[{"role": "user", "content": "hi"}], max_tokens=5
        )


async def test_each_attempt_of_a_request_is_told(deployment):
    """The engine that holds the adapter fails from the first answer on; the other one answers."""
    first = await ask(deployment)
    holder = first.headers["x-florin-engine"]
    (deployment.a if holder == "a" else deployment.b).faults.update({"status": 500})
    second = await ask(deployment)
    await deployment.gateway.shipped()
    async with deployment.gateway.http() as admin:
        whole, moved = [
            (await admin.get(f"/admin/v1/audit/requests/{answer.headers['x-request-id']}")).json()
            for answer in (first, second)
        ]
    assert (whole["request_id"], whole["complete"]) == (first.headers["x-request-id"], True)
    [attempt] = whole["attempts"]
    assert attempt["engine"] == holder
    assert f"{attempt['adapter']}@{attempt['version']}" == first.headers["x-florin-adapter"]
    assert (attempt["tenant"], attempt["key_role"], attempt["outcome"]) == ("acme", "tenant", "ok")
    assert attempt["gpu_type"] == {"a": "h100", "b": "l40s"}[attempt["engine"]]
    assert attempt["completion_tokens"] == 5
    assert attempt["dispatched"] < attempt["ended"]
    failed, *_, last = moved["attempts"]
    assert (failed["engine"], failed["outcome"], failed["billable"]) == (holder, "failover", False)
    assert (last["engine"], last["outcome"]) == (second.headers["x-florin-engine"], "ok")
    assert last["engine"] != holder
    assert [a["attempt"] for a in moved["attempts"]] == sorted(a["attempt"] for a in moved["attempts"])


async def test_unknown_request(gateway):
    async with gateway.http() as admin:
        told = (await admin.get("/admin/v1/audit/requests/req-none")).json()
    assert told == {"request_id": "req-none", "attempts": [], "complete": False, "error": None}


async def test_a_refused_request_is_told_with_its_error_and_its_tenant(gateway):
    await gateway.add_tenant("acme")
    body = {"model": "none", "messages": [{"role": "user", "content": "hi"}]}
    async with gateway.http(gateway.keys["acme"]) as client:
        refused = await client.post("/v1/chat/completions", json=body)
    path = f"/admin/v1/audit/requests/{refused.headers['x-request-id']}"
    async with gateway.http() as admin:
        told = (await admin.get(path)).json()
        assert (told["attempts"], told["error"]["code"], told["error"]["tenant"]) == (
            [],
            "model_not_found",
            "acme",
        )
        known = gateway.state.directory.tenants["acme"]
        later = replace(known, created=told["error"]["failed_at"] + 1)
        await gateway.commit(Change("tenant", "acme", directory.dump(later)))
        assert (await admin.get(path)).json()["error"] is None  # of a removed tenant of the same name
