"""/finance/v1 and /admin/v1/prices over a real meter and ledger; who asks is given, not looked up."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from gateway.api import finance, prices
from gateway.api.deps import get_state, require_finance, require_operator
from gateway.api.exceptions import install
from gateway.costs.books import Books
from gateway.metering.ledger import Ledger
from gateway.metering.meter import Meter
from gateway.metrics import Metrics
from gateway.tenants.directory import Key, Role
from tests.unit.gateway.metering.make import HOUR, record

RANGE = {"from": "1970-01-01", "to": "2100-01-01"}


@pytest.fixture
async def installed(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(url)
    meter = Meter(tmp_path / "usage", ledger, Metrics())
    await meter.start()
    books = Books(url)
    yield SimpleNamespace(ledger=ledger, meter=meter, books=books)
    await books.close()
    await meter.close()
    ledger.close()


@pytest.fixture
def client_for(installed):
    def client(role=Role.FINANCE, tenant=""):
        app = FastAPI()
        install(app)
        app.include_router(finance.router)
        app.include_router(prices.router)
        key = Key("id", tenant, role, "digest", 0)
        app.dependency_overrides[get_state] = lambda: installed
        app.dependency_overrides[require_finance] = lambda: key
        app.dependency_overrides[require_operator] = lambda: key
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://florin")

    return client


PRICE = {"gpu_type": "H100", "rate_per_gpu_hour": "2.50"}


async def test_prices_are_added_once_and_listed(client_for):
    async with client_for(Role.OPERATOR) as client:
        first = await client.post("/admin/v1/prices", json=PRICE)
        again = await client.post("/admin/v1/prices", json=PRICE)
        listed = await client.get("/admin/v1/prices")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert listed.json() == {"data": [first.json()]}
    shown = {n: first.json()[n] for n in ("gpu_type", "rate_per_gpu_hour", "currency", "purchase", "region")}
    assert shown == {**PRICE, "currency": "USD", "purchase": "on_demand", "region": ""}
    assert (first.json()["valid_from"], first.json()["valid_to"]) == ("1970-01-01T00:00:00Z", None)


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"rate_per_gpu_hour": "two"}, 400, "rate_per_gpu_hour"),
        ({"rate_per_gpu_hour": "-1"}, 400, "rate_per_gpu_hour"),
        ({"rate_per_gpu_hour": 2.5}, 400, "rate_per_gpu_hour"),
        ({"valid_from": "soon"}, 400, "valid_from"),
        ({"valid_from": "2026-02-01", "valid_to": "2026-01-01"}, 400, "valid_to"),
        ({"currency": "usd"}, 400, "currency"),
        ({"purchase": "stolen"}, 400, "purchase"),
        ({"gpu_type": ""}, 400, "gpu_type"),
        ({"other": 1}, 400, "other"),
        ({"rate_per_gpu_hour": "3", "valid_from": "1970-01-01"}, 409, None),
    ],
)
async def test_bad_prices_are_refused_with_the_field(client_for, change, status, param):
    async with client_for(Role.OPERATOR) as client:
        await client.post("/admin/v1/prices", json=PRICE)
        answer = await client.post("/admin/v1/prices", json={**PRICE, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_tenant_does_not_see_the_price_book(client_for):
    async with client_for(Role.TENANT, "acme") as client:
        assert (await client.get("/admin/v1/prices")).status_code == 403


async def test_costs(client_for, installed):
    installed.ledger.insert(
        [record("a", dispatched=0, ended=HOUR), record("b", tenant="bolt", adapter="bolt/x")]
    )
    async with client_for(Role.OPERATOR) as client:
        await client.post("/admin/v1/prices", json=PRICE)
        answer = await client.get("/finance/v1/costs", params=RANGE)
        by_tenant = await client.get("/finance/v1/costs", params={**RANGE, "by": "tenant", "tenant": "bolt"})
    body = answer.json()
    assert {"currency", "from", "to", "rows", "totals", "missing_prices", "retry_waste", "weights"} <= set(
        body
    )
    assert [(r["tenant"], r["adapter"], r["gpu_type"], r["requests"]) for r in body["rows"]] == [
        ("acme", "acme/support", "H100", 1),
        ("bolt", "bolt/x", "H100", 1),
    ]
    assert (body["rows"][0]["cost"], body["rows"][0]["gpu_seconds"]) == ("2.50", 3600.0)
    assert [r["tenant"] for r in by_tenant.json()["rows"]] == ["bolt"]


async def test_what_has_just_ended_is_in_the_report(client_for, installed):
    from gateway.metering.records import Outcome

    attempt = installed.meter.begin(
        request_id="r", attempt=1, tenant="acme", key_id="k", adapter="", version="", base_model="base",
        engine="e", gpu_type="H100", gpu_count=1, n=1,
    )  # fmt: skip
    attempt.observe(3, 4, None, 0)
    attempt.end(Outcome.OK, billable=True, exact=True)
    async with client_for() as client:
        [row] = (await client.get("/finance/v1/costs")).json()["rows"]
    assert (row["adapter"], row["prompt_tokens"], row["completion_tokens"], row["cost"]) == ("", 3, 4, None)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"by": "colour"}, "by"),
        ({"by": ""}, "by"),
        ({"from": "yesterday"}, "from"),
        ({"to": "x"}, "to"),
        ({"month": "2026-13"}, "month"),
        ({"month": "2026-11", "from": "2026-11-01"}, "month"),
        ({"from": "2026-11-02", "to": "2026-11-01"}, "from"),
    ],
)
async def test_bad_questions_are_refused_with_the_parameter(client_for, params, param):
    async with client_for() as client:
        answer = await client.get("/finance/v1/costs", params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_tenant_s_key_sees_its_own_rows_and_cannot_tell_whether_others_exist(client_for, installed):
    installed.ledger.insert([record("a"), record("b", tenant="bolt", adapter="bolt/x")])
    async with client_for(Role.TENANT, "acme") as client:
        own = (await client.get("/finance/v1/costs", params=RANGE)).json()
        others = (await client.get("/finance/v1/costs", params={**RANGE, "tenant": "bolt"})).json()
        nobody = (await client.get("/finance/v1/costs", params={**RANGE, "tenant": "nobody"})).json()
        usage = (await client.get("/finance/v1/usage", params=RANGE)).json()
        other_usage = (await client.get("/finance/v1/usage", params={**RANGE, "tenant": "bolt"})).json()
    assert [r["tenant"] for r in own["rows"]] == ["acme"]
    assert own["totals"]["requests"] == 1
    assert others == nobody
    assert others["rows"] == []
    assert [r["tenant"] for r in usage["data"]] == ["acme"]
    assert other_usage["data"] == []


async def test_usage_is_paged(client_for, installed):
    installed.ledger.insert([record(f"r{i}", ended=1000 + i // 3) for i in range(10)])
    seen, after = [], None
    async with client_for() as client:
        while True:
            params = {**RANGE, "limit": 4} | ({"after": after} if after else {})
            page = (await client.get("/finance/v1/usage", params=params)).json()
            assert len(page["data"]) <= 4
            seen += page["data"]
            after = page["next"]
            if after is None:
                break
    assert len({row["id"] for row in seen}) == len(seen) == 10
    assert seen == sorted(seen, key=lambda row: (row["ended"], row["id"]))


@pytest.mark.parametrize("after", ["x", "zz==", "MTIz", "AAAA", "é"])
async def test_a_made_up_page_is_refused(client_for, after):
    async with client_for() as client:
        answer = await client.get("/finance/v1/usage", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


async def test_a_ledger_that_is_away_is_a_503(client_for, installed, tmp_path):
    (tmp_path / "file").write_text("")
    working = installed.ledger
    installed.ledger = Ledger(f"sqlite:///{tmp_path / 'file' / 'x.db'}")
    async with client_for() as client:
        answer = await client.get("/finance/v1/costs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ledger_unavailable")
    installed.ledger = working


async def test_reports_beside_each_other(client_for, installed):
    installed.ledger.insert([record(f"r{i}") for i in range(100)])
    async with client_for() as client:
        answers = await asyncio.gather(*(client.get("/finance/v1/costs", params=RANGE) for _ in range(8)))
    assert {a.status_code for a in answers} == {200}
    assert len({a.text for a in answers}) == 1
