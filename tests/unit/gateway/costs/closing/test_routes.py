"""/finance/v1/periods over a real ledger; who asks is given, not looked up."""

import asyncio

import pytest
from sqlalchemy import update

from gateway.costs.closing import operations as closing
from gateway.costs.closing.closing import GRACE, close
from gateway.costs.proofs.proof import verify_proof
from gateway.costs.reports.closed_months import close_watched, progress_of
from gateway.metering.ledger.schema import periods, prices, snapshots, usage_records
from gateway.tenants.directory import Role
from tests.support.ledger_rows import put
from tests.support.paging import pages_of
from tests.unit.gateway.costs.month import DECEMBER, fill

PATH = "/finance/v1/periods"
CHAIN = "/finance/v1/chain"


def october_closed(ledger):
    """November is over."""
    fill(ledger)
    close(ledger, "2026-10", now=DECEMBER + GRACE, by="key", policy="even")


@pytest.fixture
def contents():
    return october_closed


@pytest.fixture
def now():
    return lambda: DECEMBER + GRACE


async def test_months_before_and_after_closing(client_for):
    async with client_for() as client:
        before = (await client.get(PATH)).json()["data"]
        answer = await client.post(f"{PATH}/2026-11/close", json={"policy": "proportional"})
        after = (await client.get(PATH)).json()["data"]
        again = await client.post(f"{PATH}/2026-11/close", json={})
        shown = (await client.get(f"{PATH}/2026-11")).json()
    assert [(p["month"], p["state"]) for p in before] == [("2026-10", "closed"), ("2026-11", "open")]
    assert before[1]["can_be_closed"]
    assert (answer.status_code, again.status_code) == (200, 200)
    closed = answer.json()
    assert (closed["state"], closed["closed_by"], closed["already"]) == ("closed", "id", False)
    assert closed["previous_seal"] == before[0]["seal"]
    assert again.json() == {**closed, "already": True}
    assert shown == {name: value for name, value in closed.items() if name != "already"}
    assert after[1]["seal"] == closed["seal"]
    assert [s["tenant"] for s in shown["statements"]] == ["acme", "bolt", "corgi"]
    assert sum(s["amount_cents"] for s in shown["statements"]) == shown["totals"]["billed"]["amount_cents"]


async def test_a_tenant_sees_the_roots_and_its_own_statement(client_for):
    async with client_for(Role.TENANT, "bolt") as client:
        listed = (await client.get(PATH)).json()["data"]
        shown = (await client.get(f"{PATH}/2026-10")).json()
        refused = [
            await client.post(f"{PATH}/2026-11/close", json={}),
            await client.get(f"{PATH}/2026-10/verify"),
        ]
    common = {"month", "state", "from", "to", "closed_at", "seal", "previous_seal", "currency"}
    assert set(listed[0]) == common
    assert set(listed[1]) == {"month", "state", "from", "to"}
    assert set(shown) == common | {"statements"}
    assert [s["tenant"] for s in shown["statements"]] == ["bolt"]
    assert [answer.status_code for answer in refused] == [403, 403]


async def test_a_proof_and_the_records_that_it_covers(client_for):
    async with client_for(Role.TENANT, "bolt") as client:
        proof = (await client.get(f"{PATH}/2026-10/proof")).json()
        pages = [page async for page in pages_of(client, f"{PATH}/2026-10/records", limit=7)]
        root = (await client.get(f"{PATH}/2026-10")).json()["seal"]
    records = [covered for page in pages for covered in page["data"]]
    assert {r["tenant"] for r in records} == {"bolt"}
    assert not [check for check in verify_proof(proof, records, root) if check.ok is False]
    async with client_for() as client:
        assert (await client.get(f"{PATH}/2026-10/proof", params={"tenant": "bolt"})).json() == proof
        everybody = (await client.get(f"{PATH}/2026-10/records")).json()["data"]
    assert len(everybody) == 60


async def test_another_tenant_s_proof_is_not_there(client_for):
    async with client_for(Role.TENANT, "bolt") as client:
        other = await client.get(f"{PATH}/2026-10/proof", params={"tenant": "acme"})
        nobody = await client.get(f"{PATH}/2026-10/proof", params={"tenant": "nobody"})
        records = await client.get(f"{PATH}/2026-10/records", params={"tenant": "acme"})
    async with client_for() as client:
        unknown = await client.get(f"{PATH}/2026-10/proof", params={"tenant": "nobody"})
    assert (other.status_code, nobody.status_code) == (404, 404)
    assert other.text.replace("acme", "nobody") == nobody.text == unknown.text
    assert records.json() == {"data": [], "next": None}


async def test_verification(client_for, installed):
    async with client_for() as client:
        right = (await client.get(f"{PATH}/2026-10/verify")).json()
        quick = (await client.get(f"{PATH}/2026-10/verify", params={"quick": "true"})).json()
        assert quick["ok"]
        assert [c["name"] for c in quick["checks"]] == [c["name"] for c in right["checks"]]
        assert {c["name"] for c in quick["checks"] if c["ok"] is None} == {"records", "counts", "attribution"}
        with installed.ledger.write() as connection:
            connection.execute(update(usage_records).values(prompt_tokens=1))
        wrong = (await client.get(f"{PATH}/2026-10/verify")).json()
    assert right["ok"]
    assert {check["ok"] for check in right["checks"]} == {True}
    assert not wrong["ok"]
    assert "records" in {check["name"] for check in wrong["checks"] if check["ok"] is False}


async def test_the_books_are_compared_with_the_chain_and_its_anchors(client_for, installed):
    async with client_for() as client:
        anchor = (await client.get(CHAIN)).json()
        text = f"{anchor['entries']}:{anchor['hash']}"
        right = (await client.get(f"{CHAIN}/verify", params={"anchor": ["0:", text]})).json()
        nonsense = await client.get(f"{CHAIN}/verify", params={"anchor": "7"})
        with installed.ledger.write() as connection:
            connection.execute(update(periods).values(state="open"))
        other = f"{anchor['entries']}:{'0' * 64}"
        wrong = (await client.get(f"{CHAIN}/verify", params={"anchor": other})).json()
    assert right["ok"]
    assert (right["entries"], right["hash"]) == (anchor["entries"], anchor["hash"])
    assert nonsense.status_code == 400
    assert [c["name"] for c in wrong["checks"] if not c["ok"]] == ["anchor", "closed months"]


@pytest.fixture
def looks(installed, monkeypatch):
    """Closings and verifications that were waited for: none goes on before the third wait, and the first two end."""
    waited_for, going = [], installed.ledger_process.aside().going
    going.clear()

    async def finished(task):
        waited_for.append(task)
        if len(waited_for) < 3:
            return False
        going.set()
        await asyncio.wait([task])
        return True

    monkeypatch.setattr(closing, "finished", finished)
    return waited_for


async def test_a_long_verification_is_kept_alive(client_for, looks):
    async with client_for() as client:
        answer = await client.get(f"{PATH}/2026-10/verify")
    assert answer.text.startswith(" ")
    assert answer.json()["ok"]


async def test_a_long_verification_that_fails_says_so(client_for, looks):
    async with client_for() as client:
        answer = await client.get(f"{PATH}/2026-11/verify")
    assert answer.json()["checks"] == [{"name": "ledger", "ok": False, "detail": "2026-11 is not closed."}]


async def test_a_long_closing_is_202_until_it_is_done_and_who_asks_again_joins(client_for, looks):
    async with client_for() as client:
        answers = [await client.post(f"{PATH}/2026-11/close", json={}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 200]
    assert len(set(looks)) == 1


async def test_while_another_worker_is_at_it_this_one_waits(client_for, installed, monkeypatch):
    monkeypatch.setattr(closing, "ANSWER_SECONDS", 0.0)
    document = '{"doing": "records", "done": 5, "of": 60}'
    put(
        installed.ledger, snapshots, {"name": "closing 2026-11", "at": DECEMBER + GRACE, "document": document}
    )
    async with client_for() as client:
        waiting = await client.post(f"{PATH}/2026-11/close", json={})
        monkeypatch.undo()
        with installed.ledger.write() as connection:  # it has died meanwhile
            connection.execute(update(snapshots).values(at=DECEMBER))
        done = await client.post(f"{PATH}/2026-11/close", json={})
    assert (waiting.status_code, waiting.json()["state"]) == (202, "open")
    assert done.json()["state"] == "closed"


def test_how_far_a_closing_is_can_be_seen_while_it_runs(ledger_with, monkeypatch):
    ledger, seen = ledger_with(october_closed), []

    def fake(ledger, of, *, progress, **terms):
        progress("records", 5, 60)
        seen.append(progress_of(ledger, of, terms["now"]))
        return {"already": False}

    monkeypatch.setattr("gateway.costs.reports.closed_months.close", fake)
    monkeypatch.setattr("gateway.costs.reports.closed_months.time.time_ns", lambda: DECEMBER * 1000)
    assert close_watched(ledger, "2026-11", now=DECEMBER) is False
    assert seen == [{"doing": "records", "done": 5, "of": 60}]
    assert progress_of(ledger, "2026-11", DECEMBER) is None


REFUSED = (
    ("GET", "/2026-13", None, 400, "invalid_value"),
    ("GET", "/2026-11/verify", None, 404, "not_found"),
    ("GET", "/2026-11/proof?tenant=acme", None, 404, "not_found"),
    ("GET", "/2026-10/proof", None, 400, "invalid_value"),
    ("GET", "/2026-11/records", None, 404, "not_found"),
    ("GET", "/2026-10/records?after=x", None, 400, "invalid_value"),
    ("POST", "/2026-13/close", {}, 400, "invalid_value"),
    ("POST", "/2026-12/close", {}, 409, "cannot_close"),
    ("POST", "/2026-10/close", {"policy": "none"}, 409, "cannot_close"),
    ("POST", "/2026-11/close", {"policy": "fixed"}, 400, "invalid_value"),
    ("POST", "/2026-11/close", {"policy": "even", "shares": {"acme": 1}}, 400, "invalid_value"),
    ("POST", "/2026-11/close", {"policy": "fixed", "shares": {"acme": -1}}, 400, "invalid_value"),
    ("POST", "/2026-11/close", {"policy": "fair"}, 400, "invalid_value"),
    ("POST", "/2026-11/close", {"other": 1}, 400, "invalid_value"),
)


async def test_what_cannot_be_is_refused(client_for):
    async with client_for() as client:
        for method, path, body, status, code in REFUSED:
            answer = await client.request(method, PATH + path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (path, body)


async def test_shares_of_a_tenant_who_does_not_exist_are_refused(client_for):
    """`acmee=100` issued a statement to nobody."""
    async with client_for() as client:
        typo = {"policy": "fixed", "shares": {"acmee": 100}}
        answers = [
            await client.post(f"{PATH}/2026-11/close", json=typo),
            await client.get(f"{PATH}/2026-11/preview", params={"policy": "fixed", "shares": "acmee=100"}),
            await client.get("/finance/v1/costs", params={"policy": "fixed", "shares": "acmee=100"}),
            await client.put("/finance/v1/policy", json=typo),
            await client.put("/finance/v1/policy", json={"policy": "none", "tenant": "acmee"}),
        ]
        months = (await client.get(PATH)).json()["data"]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_value")
        assert "no tenant is named 'acmee'. Did you mean acme?" in error["message"]
    assert months[1]["state"] == "open"


async def test_shares_sum_as_stated(client_for):
    terms = {"policy": "fixed", "shares": {"acme": 60, "bolt": 30}, "shares_total": 100}
    async with client_for() as client:
        short = await client.post(f"{PATH}/2026-11/close", json=terms)
        percent = {"policy": "fixed", "shares": "acme=60%,bolt=30%"}
        asked = await client.get(f"{PATH}/2026-11/preview", params=percent)
        terms["shares"]["new"] = 10  # a tenant without usage
        closed = await client.post(f"{PATH}/2026-11/close", json=terms)
    for answer in (short, asked):
        assert answer.json()["error"]["message"] == "shares: they sum to 90 %, not to 100 %."
    assert closed.json()["shares"] == {"acme": 60, "bolt": 30, "new": 10}


async def test_a_preview_is_what_is_closed_and_the_standing_policy_decides(client_for):
    async with client_for() as client:
        put = await client.put("/finance/v1/policy", json={"policy": "proportional", "reason": "as agreed"})
        again = await client.put("/finance/v1/policy", json={"policy": "proportional"})
        own = {"policy": "none", "tenant": "corgi", "valid_from": "2026-11"}
        await client.put("/finance/v1/policy", json=own)
        preview = (await client.get(f"{PATH}/2026-11/preview")).json()
        even = (await client.get(f"{PATH}/2026-11/preview", params={"policy": "even"})).json()
        costs = (await client.get("/finance/v1/costs", params={"month": "2026-11", "by": "tenant"})).json()
        closed = (await client.post(f"{PATH}/2026-11/close", json={})).json()
        shown = (await client.get("/finance/v1/policy", params={"month": "2026-11"})).json()
        early = await client.put("/finance/v1/policy", json={"policy": "even", "valid_from": "2026-10"})
        odd = await client.put(
            "/finance/v1/policy", json={"policy": "fixed", "shares": {"acme": 1}, "tenant": "acme"}
        )
    assert (put.json()["changed"], put.json()["month"], again.json()["changed"]) == (True, "2026-11", False)
    assert (preview["policy"], preview["own"]) == ("proportional", {"corgi": "none"})
    assert preview["standing"]
    assert (even["policy"], even["standing"]) == ("even", False)
    amounts = {one["tenant"]: one["amount_cents"] for one in closed["statements"]}
    assert {one["tenant"]: one["amount_cents"] for one in preview["statements"]} == amounts
    assert costs["billed_cents"] == sum(amounts.values()) == closed["totals"]["billed"]["amount_cents"]
    assert (closed["policy"], closed["own"]) == ("proportional", {"corgi": "none"})
    assert (shown["frozen"], [row["reason"] for row in shown["history"]]) == (True, ["as agreed", ""])
    for answer, param in ((early, "valid_from"), (odd, "policy")):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "the first open month is 2026-12" in early.json()["error"]["message"]


async def test_a_tenant_sees_its_own_policy_and_no_preview(client_for):
    async with client_for() as client:
        await client.put("/finance/v1/policy", json={"policy": "none", "tenant": "bolt"})
    async with client_for(Role.TENANT, "bolt") as client:
        shown = await client.get("/finance/v1/policy", params={"month": "2026-11"})
        before = await client.get("/finance/v1/policy", params={"month": "2026-10"})
        refused = [
            await client.get(f"{PATH}/2026-11/preview"),
            await client.put("/finance/v1/policy", json={"policy": "none"}),
        ]
    assert shown.json() == {"month": "2026-11", "policy": "none", "frozen": False}
    assert before.json() == {"month": "2026-10", "policy": "even", "frozen": True}
    assert [answer.status_code for answer in refused] == [403, 403]


async def test_a_missing_price_is_named(client_for, installed):
    with installed.ledger.write() as connection:
        connection.execute(prices.delete().where(prices.c.gpu_type == "L40"))
    async with client_for() as client:
        answer = await client.post(f"{PATH}/2026-11/close", json={})
        allowed = await client.post(f"{PATH}/2026-11/close", json={"allow_missing_prices": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "missing_price")
    assert "L40" in answer.json()["error"]["message"]
    assert allowed.json()["missing_prices"] == ["L40 on_demand"]


async def test_a_worker_whose_log_is_not_in_the_ledger_does_not_close(client_for, installed):
    installed.meter.flushed = False
    async with client_for() as client:
        answer = await client.post(f"{PATH}/2026-11/close", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cannot_close")
