"""/finance/v1 and /admin/v1/prices over a real ledger; who asks is given, not looked up."""

import csv
import io
from decimal import Decimal
from types import SimpleNamespace

import pytest

from adapters.store.protocol.registry import Event
from gateway.api.finance_requests import token
from gateway.costs.periods import month_of
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours
from gateway.tenants.directory import Role, Tenant, dump
from gateway.units import HOUR
from tests.doubles.ledger_process import LedgerProcessHere
from tests.support.ledger_rows import engine_hour, put
from tests.support.paging import pages_of
from tests.unit.gateway.metering.make import record

RANGE = {"from": "1970-01-01", "to": "2100-01-01"}
COSTS, USAGE = "/finance/v1/costs", "/finance/v1/usage"
PRICES, RATES = "/admin/v1/prices", "/admin/v1/exchange-rates"
PRICE = {"gpu_type": "H100", "rate_per_gpu_hour": "2.50"}
SPEEDUP = {"speedup": "2.5", "speedup_reference": "A100", "speedup_source": "vendor, 2026"}
RATE = {"currency": "USD", "target": "EUR", "rate": "0.92", "valid_from": "2026-10-01", "source": "ECB"}


async def test_prices_are_added_once_and_listed(client_for):
    async with client_for(Role.OPERATOR) as client:
        first, again = [await client.post(PRICES, json=PRICE) for _ in range(2)]
        listed = await client.get(PRICES)
    assert (first.status_code, again.status_code, again.json()) == (201, 200, first.json())
    warned = first.json()
    assert warned.pop("warnings") == []
    assert listed.json() == {"data": [warned]}
    terms = {
        "currency": "USD",
        "purchase": "on_demand",
        "region": "",
        "valid_from": "1970-01-01T00:00:00Z",
        "valid_to": None,
    }
    assert warned.items() >= (PRICE | terms).items()


async def test_a_finance_key_adds_and_corrects_prices(client_for, installed):
    installed.catalog.engines["e"] = SimpleNamespace(gpu_type="H100")
    said = {"gpu_type": "h100", "rate_per_gpu_hour": "2", "reason": "typo"}
    async with client_for(Role.FINANCE) as client:
        slip = await client.post(PRICES, json={**PRICE, "gpu_type": "H10"})
        path = f"{PRICES}/{slip.json()['id']}/correct"
        answers = [
            await client.post(where, json=body)
            for where, body in (
                (path, {"gpu_type": "H100"}),
                (path, said),
                (path, said),
                (f"{PRICES}/99/correct", said),
            )
        ]
        spelled = await client.post(PRICES, json={**PRICE, "gpu_type": "H100", "valid_from": "2026-10-01"})
        listed = (await client.get(PRICES)).json()["data"]
        history = (await client.get(PRICES, params={"history": "true"})).json()["data"]
    assert slip.json()["warnings"] == ["No registered engine has GPU type H10; there are H100."]
    assert [answer.status_code for answer in answers] == [400, 201, 409, 404]
    assert answers[1].json()["supersedes"] == 1
    assert spelled.json()["warnings"] == ["H100 is spelled h100, as in the price book."]
    assert [(p["id"], p["gpu_type"]) for p in listed] == [(2, "h100"), (3, "h100")]
    assert [(p["id"], p["superseded_by"]) for p in history] == [(1, 2), (2, None), (3, None)]


async def test_times_without_a_price_are_warned_of(client_for, installed):
    """An engine has run since 1 October, and no month is closed."""
    put(installed.ledger, engine_hours, engine_hour(month_of("2026-10").start // HOUR))
    spot = {**PRICE, "purchase": "spot", "region": "eu"}
    week = {"valid_from": "2026-10-08", "valid_to": "2026-10-15"}
    async with client_for(Role.FINANCE) as client:
        alone = await client.post(PRICES, json={**spot, **week})
        base = await client.post(PRICES, json={**spot, "region": "", "valid_from": "2026-10-10"})
    assert alone.json()["warnings"][-2:] == [
        "No price applies to H100 (spot, eu) from 2026-10-01T00:00:00Z to 2026-10-08T00:00:00Z.",
        "No price applies to H100 (spot, eu) from 2026-10-15T00:00:00Z on.",
    ]
    assert base.json()["warnings"][-1].endswith("from 2026-10-01T00:00:00Z to 2026-10-10T00:00:00Z.")


async def test_exchange_rates_are_dated_and_never_edited(client_for):
    async with client_for(Role.FINANCE) as client:
        first = await client.post(RATES, json=RATE)
        for change, status in (
            ({}, 200), ({"rate": "0.93"}, 409), ({"rate": "0"}, 400), ({"rate": 0.92}, 400), ({"target": "USD"}, 400),
            ({"valid_from": "2026-10-01T12:00"}, 400), ({"rate": "0.93", "reason": "published later"}, 201),
            ({"valid_from": "2026-10-02", "rate": "0.5"}, 201),
        ):  # fmt: skip  # a case each
            assert (await client.post(RATES, json={**RATE, **change})).status_code == status, change
        listed = (await client.get(RATES)).json()["data"]
    assert (listed[0], len(listed)) == (first.json(), 3)


async def test_bad_prices_are_refused_with_the_field(client_for):
    async with client_for(Role.OPERATOR) as client:
        await client.post(PRICES, json={**PRICE, **SPEEDUP})
        for change, status, param in (
            ({"rate_per_gpu_hour": "two"}, 400, "rate_per_gpu_hour"),
            ({"rate_per_gpu_hour": 2.5}, 400, "rate_per_gpu_hour"),
            ({"valid_from": "soon"}, 400, "valid_from"),
            ({"valid_from": "2026-02-01", "valid_to": "2026-01-01"}, 400, "valid_to"),
            ({"purchase": "stolen"}, 400, "purchase"),
            ({"other": 1}, 400, "other"),
            ({"rate_per_gpu_hour": "3", "valid_from": "1970-01-01"}, 409, None),
            ({**SPEEDUP, "speedup": "3", "valid_from": "1970-01-01"}, 409, None),
            ({**SPEEDUP, "speedup": "0"}, 400, "speedup"),
            ({**SPEEDUP, "speedup_source": None}, 400, "speedup"),
            ({}, 200, None),  # says nothing of the speed
        ):
            answer = await client.post(PRICES, json={**PRICE, **change})
            refused = answer.json().get("error", {}).get("param")
            assert (answer.status_code, refused) == (status, param), change
    assert answer.json().items() >= {**SPEEDUP, "speedup": "2.50"}.items()


async def test_costs(client_for, installed):
    installed.ledger.insert(
        [record("a", dispatched=0, ended=HOUR), record("b", tenant="bolt", adapter="bolt/x")]
    )
    async with client_for(Role.OPERATOR) as client:
        await client.post(PRICES, json=PRICE)
        body = (await client.get(COSTS, params=RANGE)).json()
        by_tenant = (await client.get(COSTS, params={**RANGE, "by": "tenant", "tenant": "bolt"})).json()
    assert {"basis", "state", "provisioned", "idle", "headroom", "startup", "utilization", "complete"} <= set(
        body
    )
    assert [(r["tenant"], r["adapter"], r["gpu_type"], r["requests"]) for r in body["rows"]] == [
        ("acme", "acme/support", "H100", 1), ("bolt", "bolt/x", "H100", 1),
    ]  # fmt: skip
    assert (body["rows"][0]["cost"], body["rows"][0]["gpu_seconds"]) == ("2.50", 3600.0)
    assert [r["tenant"] for r in by_tenant["rows"]] == ["bolt"]


async def test_bad_questions_are_refused_with_the_parameter(client_for):
    made_up = "x", "zz==", "MTIz", "AAAA", "é", token(["1"]), token(["x", "y"]), token(["1", "\0", "2", "3"])
    both = (
        *({"after": after} for after in made_up),
        {"from": "yesterday"}, {"month": "9000-01"}, {"from": "9000-01-01", "to": "9001-01-01"},
    )  # fmt: skip
    costs = (
        *({"by": by} for by in ("colour", "")),
        {"to": "x"}, {"month": "2026-13"}, {"month": "2026-11", "from": "2026-11-01"},
        {"from": "2026-11-02", "to": "2026-11-01"}, {"timezone": "Berlin"}, {"currency": "euro"},
        {"policy": "mine"}, {"shares": "acme=0"}, {"shares": "acme=1,acme=2", "policy": "fixed"},
    )  # fmt: skip  # the first of a question is what is wrong
    async with client_for() as client:
        for path, questions in ((USAGE, both), (COSTS, (*both, *costs))):
            for params in questions:
                answer = await client.get(path, params=params)
                error = answer.json()["error"]
                param = error["param"].removeprefix("query.")
                assert (answer.status_code, param) == (400, next(iter(params))), (path, params)
                assert ("is in the future" in error["message"]) == ("9000" in str(params))


async def test_a_tenant_s_key_sees_its_own_rows_and_cannot_tell_whether_others_exist(client_for, installed):
    installed.ledger.insert([record("a"), record("b", tenant="bolt", adapter="bolt/x")])
    async with client_for(Role.TENANT, "acme") as client:
        own, usage = [(await client.get(path, params=RANGE)).json() for path in (COSTS, USAGE)]
        others, nobody, other_usage = [
            (await client.get(path, params={**RANGE, "tenant": name})).json()
            for path, name in ((COSTS, "bolt"), (COSTS, "nobody"), (USAGE, "bolt"))
        ]
        kept_out = [await client.get(PRICES), await client.get(COSTS, params={"policy": "even"})]
    assert [r["tenant"] for r in own["rows"]] == [r["tenant"] for r in usage["data"]] == ["acme"]
    assert own["totals"]["requests"] == 1
    assert others == nobody == other_usage
    assert (others["error"]["code"], others["error"]["param"]) == ("not_found", "tenant")
    assert others["error"]["message"] == "This key sees only its own tenant, acme."
    assert [answer.status_code for answer in kept_out] == [403, 403]


@pytest.mark.parametrize("path", [USAGE, COSTS])
async def test_a_mistyped_tenant_is_an_error_and_one_that_was_removed_is_not(client_for, installed, path):
    installed.ledger.insert([record("a", tenant="gone")])
    installed.directory.apply(Event(1, "tenant", "acme", dump(Tenant("acme", base_access=True, created=0))))
    async with client_for() as client:
        answers = {
            name: await client.get(path, params={"tenant": name}) for name in ("acme", "gone", "acmee", "\0")
        }
    assert {name: answer.status_code for name, answer in answers.items()} == {
        "acme": 200,
        "gone": 200,
        "acmee": 404,
        "\0": 404,
    }
    wrong = answers["acmee"].json()["error"]
    assert (wrong["param"], wrong["message"].endswith("Did you mean 'acme'?")) == ("tenant", True)


async def test_usage_and_costs_are_paged(client_for, installed):
    installed.ledger.insert([record(f"r{i}", tenant=f"t{i}", ended=1000 + i // 3) for i in range(10)])
    async with client_for() as client:
        whole = (await client.get(COSTS, params=RANGE)).json()
        pages = [page async for page in pages_of(client, COSTS, **RANGE, limit=4)]
        usage = [page["data"] async for page in pages_of(client, USAGE, **RANGE, limit=4)]
    assert all(page["totals"] == whole["totals"] for page in pages)
    assert [row for page in pages for row in page["rows"]] == whole["rows"]
    seen = [row for page in usage for row in page]
    assert (max(map(len, usage)), len({row["id"] for row in seen}), len(seen)) == (4, 10, 10)
    assert seen == sorted(seen, key=lambda row: (row["ended"], row["id"]))


@pytest.mark.parametrize("path", [USAGE, COSTS])
async def test_who_has_the_answer_already_is_told_so(client_for, installed, path):
    installed.ledger.insert([record("a")])
    async with client_for() as client:
        tag = (await client.get(path, params=RANGE)).headers["etag"]
        for held in (tag, f'"other", W/{tag}', "*"):
            again = await client.get(path, params=RANGE, headers={"if-none-match": held})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        installed.ledger.insert([record("b")])
        changed = await client.get(path, params=RANGE, headers={"if-none-match": tag})
        refused = await client.get(path, params={"from": "x"}, headers={"if-none-match": "*"})
    assert (changed.status_code, changed.headers["etag"] == tag) == (200, False)
    assert (refused.status_code, "etag" in refused.headers) == (400, False)


async def test_the_form_is_asked_for(client_for):
    async with client_for() as client:
        for params, accept, media in (
            ({}, "*/*", "application/json"),
            ({}, "text/csv;q=0.5, application/json;q=0.9", "application/json"),
            ({}, "text/*, application/json;q=0.1", "text/csv; charset=utf-8"),
            ({}, "text/csv;q=many", "application/json"),
            ({"format": "csv"}, "application/json", "text/csv; charset=utf-8"),
            ({"format": "parquet"}, "*/*", "application/vnd.apache.parquet"),
        ):
            answer = await client.get(COSTS, params=params, headers={"accept": accept})
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
            await client.post(PRICES, json={**PRICE, "gpu_type": gpu_type})
        unknown = await client.get(COSTS, params={**RANGE, "currency": "EUR"})
        await client.post(RATES, json=RATE)
        whole = (await client.get(COSTS, params=RANGE)).json()["provisioned"]
        answer, page, euros = [
            await client.get(COSTS, params={**RANGE, "format": "csv", **more})
            for more in ({}, {"limit": 1}, {"currency": "EUR"})
        ]
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "currency")
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    for name in ("cost", "gpu_hours"):
        assert sum(Decimal(r[name]) for r in rows) == Decimal(whole[name])
    converted = csv.DictReader(io.StringIO(euros.text, newline=""))
    in_euros = sum(Decimal(r["cost"]) for r in converted)
    assert abs(in_euros - Decimal(whole["cost"]) * Decimal("0.92")) < Decimal("1e-12")
    assert {r["gpu_type"] for r in rows} == {"H100", "'=1+1"}
    assert [(r["bucket"], r["tenant"]) for r in rows] == [
        ("usage", "acme"), ("usage", "bolt"), ("retry_waste", "acme"),
    ]  # fmt: skip
    assert answer.headers["x-florin-complete"] == "true"
    assert ("x-florin-next" in answer.headers, "x-florin-next" in page.headers) == (False, True)


async def test_a_ledger_that_is_away_is_a_503(client_for, installed, tmp_path):
    (tmp_path / "file").write_text("")
    installed.ledger = Ledger(f"sqlite:///{tmp_path / 'file' / 'x.db'}")
    installed.ledger_process = LedgerProcessHere(installed.ledger)
    async with client_for() as client:
        answers = [await client.get(path) for path in (COSTS, USAGE)]
    installed.ledger.close()
    assert {(a.status_code, a.json()["error"]["code"]) for a in answers} == {(503, "ledger_unavailable")}
