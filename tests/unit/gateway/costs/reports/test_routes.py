"""/finance/v1 and /admin/v1/prices over a real ledger; who asks is given, not looked up."""

import asyncio
import csv
import io
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
from pyarrow import parquet

from adapters.store.protocol.registry import Event
from gateway.api.finance_requests import token
from gateway.costs.periods import instant, month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours
from gateway.metering.meter import Meter
from gateway.metering.records import Outcome
from gateway.observability.metrics import Metrics
from gateway.tenants.directory import Role, Tenant, dump
from gateway.units import HOUR
from tests.doubles.ledger_process import LedgerProcessHere
from tests.support.ledger_rows import engine_hour, put
from tests.support.paging import pages_of
from tests.support.waiting import until
from tests.unit.gateway.metering.make import record

RANGE = {"from": "1970-01-01", "to": "2100-01-01"}


PRICE = {"gpu_type": "H100", "rate_per_gpu_hour": "2.50"}


async def test_prices_are_added_once_and_listed(client_for):
    async with client_for(Role.OPERATOR) as client:
        first = await client.post("/admin/v1/prices", json=PRICE)
        again = await client.post("/admin/v1/prices", json=PRICE)
        listed = await client.get("/admin/v1/prices")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    warned = first.json()
    assert warned.pop("warnings") == []
    assert listed.json() == {"data": [warned]}
    shown = {n: first.json()[n] for n in ("gpu_type", "rate_per_gpu_hour", "currency", "purchase", "region")}
    assert shown == {**PRICE, "currency": "USD", "purchase": "on_demand", "region": ""}
    assert (first.json()["valid_from"], first.json()["valid_to"]) == ("1970-01-01T00:00:00Z", None)


async def test_a_finance_key_adds_and_corrects_prices(client_for, installed):
    installed.catalog.engines["e"] = SimpleNamespace(gpu_type="H100")
    async with client_for(Role.FINANCE) as client:
        slip = await client.post("/admin/v1/prices", json={**PRICE, "gpu_type": "H10"})
        path = f"/admin/v1/prices/{slip.json()['id']}/correct"
        said = {"gpu_type": "h100", "rate_per_gpu_hour": "2", "reason": "typo"}
        unreasoned = await client.post(path, json={"gpu_type": "H100"})
        right = await client.post(path, json=said)
        twice = await client.post(path, json=said)
        nowhere = await client.post("/admin/v1/prices/99/correct", json=said)
        spelled = await client.post(
            "/admin/v1/prices", json={**PRICE, "gpu_type": "H100", "valid_from": "2026-10-01"}
        )
        listed = (await client.get("/admin/v1/prices")).json()["data"]
        history = (await client.get("/admin/v1/prices", params={"history": "true"})).json()["data"]
    assert slip.json()["warnings"] == ["No registered engine has GPU type H10; there are H100."]
    assert (right.status_code, right.json()["supersedes"], right.json()["warnings"]) == (201, 1, [])
    assert [answer.status_code for answer in (unreasoned, twice, nowhere)] == [400, 409, 404]
    assert spelled.json()["warnings"] == ["H100 is spelled h100, as in the price book."]
    assert [(p["id"], p["gpu_type"]) for p in listed] == [(2, "h100"), (3, "h100")]
    assert [(p["id"], p["superseded_by"]) for p in history] == [(1, 2), (2, None), (3, None)]


async def test_times_without_a_price_are_warned_of(client_for, installed):
    """An engine has run since 1 October, and no month is closed."""
    hour = month_of("2026-10").start // HOUR
    put(installed.ledger, engine_hours, engine_hour(hour))
    spot = {**PRICE, "purchase": "spot", "region": "eu"}
    week = {"valid_from": "2026-10-08", "valid_to": "2026-10-15"}
    async with client_for(Role.FINANCE) as client:
        alone = await client.post("/admin/v1/prices", json={**spot, **week})
        base = await client.post("/admin/v1/prices", json={**spot, "region": "", "valid_from": "2026-10-10"})
        again = await client.post("/admin/v1/prices", json={**spot, **week})
    before, after = "2026-10-08T00:00:00Z", "2026-10-15T00:00:00Z"
    assert alone.json()["warnings"][-2:] == [
        f"No price applies to H100 (spot, eu) from 2026-10-01T00:00:00Z to {before}.",
        f"No price applies to H100 (spot, eu) from {after} on.",
    ]
    assert base.json()["warnings"][-1].endswith("from 2026-10-01T00:00:00Z to 2026-10-10T00:00:00Z.")
    assert again.json()["warnings"][-1].endswith(f"from 2026-10-01T00:00:00Z to {before}.")


RATE = {"currency": "USD", "target": "EUR", "rate": "0.92", "valid_from": "2026-10-01", "source": "ECB"}


async def test_exchange_rates_are_dated_and_never_edited(client_for):
    path = "/admin/v1/exchange-rates"
    async with client_for(Role.FINANCE) as client:
        first = await client.post(path, json=RATE)
        for change, status in (
            ({}, 200),
            ({"rate": "0.93"}, 409),
            ({"rate": "0"}, 400),
            ({"rate": 0.92}, 400),
            ({"target": "USD"}, 400),
            ({"valid_from": "2026-10-01T12:00"}, 400),
            ({"valid_from": "soon"}, 400),
        ):
            assert (await client.post(path, json={**RATE, **change})).status_code == status, change
        assert (await client.get(path)).json()["data"] == [first.json()]
        for change in (
            {"rate": "0.93", "reason": "published later"},
            {"valid_from": "2026-10-02", "rate": "0.5"},
        ):
            assert (await client.post(path, json={**RATE, **change})).status_code == 201, change
        listed = (await client.get(path)).json()["data"]
    assert (listed[0], len(listed)) == (first.json(), 3)


@pytest.mark.parametrize("kind", ["json", "csv"])
async def test_a_report_in_another_currency(client_for, installed, kind):
    installed.ledger.insert([record("a", ended=101 * HOUR)])
    params = {**RANGE, "currency": "EUR", "format": kind}
    async with client_for(Role.FINANCE) as client:
        await client.post("/admin/v1/prices", json=PRICE)
        without = await client.get("/finance/v1/costs", params=params)
        await client.post("/admin/v1/exchange-rates", json=RATE)
        answer = await client.get("/finance/v1/costs", params=params)
        wrong = await client.get("/finance/v1/costs", params={**params, "currency": "euro"})
    assert (without.status_code, without.json()["error"]["param"]) == (400, "currency")
    assert "florin exchange-rate add" in without.json()["error"]["message"]
    assert wrong.status_code == 400
    row = answer.json()["rows"][0] if kind == "json" else next(csv.DictReader(io.StringIO(answer.text)))
    assert Decimal(row["cost"]) == Decimal("2.30")


async def test_bad_prices_are_refused_with_the_field(client_for):
    async with client_for(Role.OPERATOR) as client:
        await client.post("/admin/v1/prices", json=PRICE)
        for change, status, param in (
            ({"rate_per_gpu_hour": "two"}, 400, "rate_per_gpu_hour"),
            ({"rate_per_gpu_hour": 2.5}, 400, "rate_per_gpu_hour"),
            ({"valid_from": "soon"}, 400, "valid_from"),
            ({"valid_from": "2026-02-01", "valid_to": "2026-01-01"}, 400, "valid_to"),
            ({"currency": "usd"}, 400, "currency"),
            ({"purchase": "stolen"}, 400, "purchase"),
            ({"gpu_type": ""}, 400, "gpu_type"),
            ({"other": 1}, 400, "other"),
            ({"rate_per_gpu_hour": "3", "valid_from": "1970-01-01"}, 409, None),
        ):
            answer = await client.post("/admin/v1/prices", json={**PRICE, **change})
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), change


SPEEDUP = {"speedup": "2.5", "speedup_reference": "A100", "speedup_source": "vendor, 2026"}


async def test_a_price_says_how_fast_its_gpu_is(client_for):
    async with client_for(Role.OPERATOR) as client:
        added = await client.post("/admin/v1/prices", json={**PRICE, **SPEEDUP})
        silent = await client.post("/admin/v1/prices", json=PRICE)
        other = await client.post(
            "/admin/v1/prices", json={**PRICE, **SPEEDUP, "speedup": "3", "valid_from": "1970-01-01"}
        )
        half = [
            await client.post("/admin/v1/prices", json={**PRICE, **SPEEDUP, name: None}) for name in SPEEDUP
        ]
        bad = await client.post("/admin/v1/prices", json={**PRICE, **SPEEDUP, "speedup": "0"})
    assert added.json().items() >= {**SPEEDUP, "speedup": "2.50"}.items()
    assert (silent.status_code, silent.json()) == (200, added.json())
    assert other.status_code == 409
    assert [(a.status_code, a.json()["error"]["param"]) for a in (*half, bad)] == [(400, "speedup")] * 4


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
    assert {"basis", "state", "whole", "idle", "headroom", "startup", "utilization", "complete"} <= set(body)
    assert [(r["tenant"], r["adapter"], r["gpu_type"], r["requests"]) for r in body["rows"]] == [
        ("acme", "acme/support", "H100", 1),
        ("bolt", "bolt/x", "H100", 1),
    ]
    assert (body["rows"][0]["cost"], body["rows"][0]["gpu_seconds"]) == ("2.50", 3600.0)
    assert [r["tenant"] for r in by_tenant.json()["rows"]] == ["bolt"]


async def test_what_has_just_ended_is_in_the_report(client_for, installed, tmp_path):
    installed.meter = Meter(tmp_path / "usage", installed.ledger, Metrics())
    await installed.meter.start()
    attempt = installed.meter.begin(
        request_id="r", attempt=1, tenant="acme", key_id="k", adapter="", version="", base_model="base",
        engine="e", gpu_type="H100", gpu_count=1, n=1,
    )  # fmt: skip
    attempt.observe(3, 4, None, 0)
    attempt.end(Outcome.OK, billable=True, exact=True)
    async with client_for() as client:

        async def rows():  # none while the log is still on its way to the ledger
            return (await client.get("/finance/v1/costs")).json()["rows"]

        [row] = await until(rows)
    await installed.meter.close()
    assert (row["adapter"], row["prompt_tokens"], row["completion_tokens"], row["cost"]) == ("", 3, 4, None)


async def test_bad_questions_are_refused_with_the_parameter(client_for):
    made_up = "x", "zz==", "MTIz", "AAAA", "é", token(["1"]), token(["x", "y"]), token(["1", "\0", "2", "3"])
    both = (
        *({"after": after} for after in made_up),
        {"from": "yesterday"}, {"month": "9000-01"}, {"from": "9000-01-01", "to": "9001-01-01"},
    )  # fmt: skip
    costs = (
        *({"by": by} for by in ("colour", "")),
        {"to": "x"}, {"month": "2026-13"}, {"month": "2026-11", "from": "2026-11-01"},
        {"from": "2026-11-02", "to": "2026-11-01"},
        {"policy": "mine"}, {"shares": "acme=0"}, {"shares": "acme=1,acme=2", "policy": "fixed"},
    )  # fmt: skip  # the first of a question is what is wrong
    async with client_for() as client:
        for noun, questions in (("usage", both), ("costs", (*both, *costs))):
            for params in questions:
                answer = await client.get(f"/finance/v1/{noun}", params=params)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, next(iter(params))), (noun, params)
                assert ("is in the future" in error["message"]) == ("9000" in str(params))


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
    assert others == nobody == other_usage
    assert (others["error"]["code"], others["error"]["param"]) == ("not_found", "tenant")
    assert others["error"]["message"] == "This key sees only its own tenant, acme."
    assert [r["tenant"] for r in usage["data"]] == ["acme"]


@pytest.mark.parametrize("noun", ["usage", "costs"])
async def test_a_mistyped_tenant_is_an_error_and_one_that_was_removed_is_not(client_for, installed, noun):
    installed.ledger.insert([record("a", tenant="gone")])
    installed.directory.apply(Event(1, "tenant", "acme", dump(Tenant("acme", base_access=True, created=0))))
    async with client_for() as client:
        codes = {
            name: (await client.get(f"/finance/v1/{noun}", params={"tenant": name})).status_code
            for name in ("acme", "gone", "acmee", "\0")
        }
        wrong = (await client.get(f"/finance/v1/{noun}", params={"tenant": "acmee"})).json()["error"]
    assert codes == {"acme": 200, "gone": 200, "acmee": 404, "\0": 404}
    assert wrong["param"] == "tenant"
    assert wrong["message"].endswith("Did you mean 'acme'?")


async def test_a_local_month(client_for, installed):
    """A record at half past ten in the evening of 30 September in UTC is one of October in Berlin."""
    ended = instant("t", "2026-09-30T22:30:00Z")
    installed.ledger.insert([record("a", dispatched=ended - 1000, ended=ended)])
    params = {"month": "2026-10", "timezone": "Europe/Berlin"}
    async with client_for() as client:
        report = (await client.get("/finance/v1/costs", params={**params, "by": "day"})).json()
        usage = (await client.get("/finance/v1/usage", params=params)).json()
        table = await client.get("/finance/v1/costs", params={**params, "by": "day", "format": "csv"})
        bad = [
            await client.get("/finance/v1/costs", params={**params, "timezone": name})
            for name in ("Berlin", "+5:30")
        ]
    assert [row["day"] for row in report["rows"]] == ["2026-10-01"]
    assert report["local"]["from"] == "2026-10-01T00:00:00+02:00"
    assert (report["from"], report["to"]) == ("2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z")
    assert [one["ended"] for one in usage["data"]] == [ended]
    assert "2026-10-01" in table.text.splitlines()[1]
    assert [(answer.status_code, answer.json()["error"]["param"]) for answer in bad] == [
        (400, "timezone")
    ] * 2


async def test_usage_is_paged(client_for, installed):
    installed.ledger.insert([record(f"r{i}", ended=1000 + i // 3) for i in range(10)])
    async with client_for() as client:
        pages = [page async for page in pages_of(client, "/finance/v1/usage", **RANGE, limit=4)]
    assert max(len(page["data"]) for page in pages) <= 4
    seen = [row for page in pages for row in page["data"]]
    assert len({row["id"] for row in seen}) == len(seen) == 10
    assert seen == sorted(seen, key=lambda row: (row["ended"], row["id"]))


async def test_costs_are_paged(client_for, installed):
    installed.ledger.insert([record(f"r{i}", tenant=f"t{i}", adapter="") for i in range(10)])
    async with client_for() as client:
        whole = (await client.get("/finance/v1/costs", params=RANGE)).json()
        pages = [page async for page in pages_of(client, "/finance/v1/costs", **RANGE, limit=4)]
    assert all(page["totals"] == whole["totals"] for page in pages)
    seen = [row for page in pages for row in page["rows"]]
    assert (seen, whole["next"], len(seen)) == (whole["rows"], None, 10)


# -- ETags


@pytest.mark.parametrize("noun", ["usage", "costs"])
async def test_who_has_the_answer_already_is_told_so(client_for, installed, noun):
    installed.ledger.insert([record("a")])
    async with client_for() as client:
        first = await client.get(f"/finance/v1/{noun}", params=RANGE)
        tag = first.headers["etag"]
        for held in (tag, f'"other", W/{tag}', "*"):
            again = await client.get(f"/finance/v1/{noun}", params=RANGE, headers={"if-none-match": held})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        installed.ledger.insert([record("b")])
        changed = await client.get(f"/finance/v1/{noun}", params=RANGE, headers={"if-none-match": tag})
        refused = await client.get(
            f"/finance/v1/{noun}", params={"from": "x"}, headers={"if-none-match": "*"}
        )
    assert (changed.status_code, changed.headers["etag"] == tag) == (200, False)
    assert (refused.status_code, "etag" in refused.headers) == (400, False)


# -- files


async def test_the_form_is_asked_for(client_for):
    async with client_for() as client:
        for params, accept, media in (
            ({}, "*/*", "application/json"),
            ({}, "text/csv", "text/csv; charset=utf-8"),
            ({}, "text/csv;q=0.5, application/json;q=0.9", "application/json"),
            ({}, "text/*, application/json;q=0.1", "text/csv; charset=utf-8"),
            ({}, "image/png", "application/json"),
            ({}, "text/csv;q=many", "application/json"),
            ({"format": "csv"}, "application/json", "text/csv; charset=utf-8"),
            ({"format": "parquet"}, "*/*", "application/vnd.apache.parquet"),
        ):
            answer = await client.get("/finance/v1/costs", params=params, headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (200, media), (params, accept)


async def test_the_costs_of_a_file_sum_to_the_whole_and_nothing_in_it_is_a_formula(client_for, installed):
    installed.ledger.insert(
        [
            record("a", ended=101 * HOUR),
            record("b", gpu_type="=1+1", billable=False),
            record("c", tenant="bolt"),
        ]
    )
    async with client_for(Role.OPERATOR) as client:
        for gpu_type in ("H100", "=1+1"):
            await client.post("/admin/v1/prices", json={**PRICE, "gpu_type": gpu_type})
        answer = await client.get("/finance/v1/costs", params={**RANGE, "format": "csv"})
        whole = (await client.get("/finance/v1/costs", params=RANGE)).json()["whole"]
        page = await client.get("/finance/v1/costs", params={**RANGE, "format": "csv", "limit": 1})
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert sum(Decimal(r["cost"]) for r in rows) == Decimal(whole["cost"])
    assert sum(Decimal(r["gpu_hours"]) for r in rows) == Decimal(whole["gpu_hours"])
    assert {r["gpu_type"] for r in rows} == {"H100", "'=1+1"}
    assert [(r["bucket"], r["tenant"]) for r in rows] == [
        ("usage", "acme"), ("usage", "bolt"), ("retry_waste", "acme"),
    ]  # fmt: skip
    assert answer.headers["x-florin-complete"] == "true"
    assert "x-florin-next" not in answer.headers
    assert "x-florin-next" in page.headers


async def test_parquet_holds_the_same(client_for, installed):
    installed.ledger.insert([record("a", ended=101 * HOUR)])
    async with client_for(Role.OPERATOR) as client:
        await client.post("/admin/v1/prices", json=PRICE)
        answer = await client.get("/finance/v1/costs", params={**RANGE, "format": "parquet"})
    [row] = parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    assert (row["cost"], row["gpu_hours"], row["requests"]) == (Decimal("2.50"), Decimal(1), 1)
    assert row["from"] == datetime(1970, 1, 1, tzinfo=UTC)


# -- policies


async def test_a_policy_is_for_staff(client_for):
    async with client_for(Role.TENANT, "acme") as client:
        refused = await client.get("/finance/v1/costs", params={"policy": "even"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_role")
    async with client_for() as client:
        answer = await client.get("/finance/v1/costs", params={"policy": "fixed", "shares": "acme=1,bolt=3"})
    assert (answer.json()["policy"], answer.json()["shares"]) == ("fixed", {"acme": 1, "bolt": 3})


async def test_a_ledger_that_is_away_is_a_503(client_for, installed, tmp_path):
    (tmp_path / "file").write_text("")
    installed.ledger = Ledger(f"sqlite:///{tmp_path / 'file' / 'x.db'}")
    installed.ledger_process = LedgerProcessHere(installed.ledger)
    async with client_for() as client:
        answers = [await client.get(f"/finance/v1/{noun}") for noun in ("costs", "usage")]
    installed.ledger.close()
    assert {a.status_code for a in answers} == {503}
    assert {a.json()["error"]["code"] for a in answers} == {"ledger_unavailable"}


async def test_reports_beside_each_other(client_for, installed):
    installed.ledger.insert([record(f"r{i}") for i in range(100)])
    async with client_for() as client:
        answers = await asyncio.gather(*(client.get("/finance/v1/costs", params=RANGE) for _ in range(8)))
    assert {a.status_code for a in answers} == {200}
    assert len({a.text for a in answers}) == 1
