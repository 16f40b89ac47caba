"""/finance/v1/periods over a real ledger; who asks is given, not looked up."""

import asyncio

import pytest
from sqlalchemy import update

from gateway.costs.closing import operations as closing
from gateway.costs.closing.closing import GRACE, close
from gateway.costs.periods import iso
from gateway.costs.proofs.proof import verify_proof
from gateway.costs.reports.closed_months import close_watched, progress_of
from gateway.metering.ledger.schema import periods, prices, snapshots, usage_records
from gateway.tenants.directory import Role
from tests.support.ledger_rows import put
from tests.support.paging import pages_of
from tests.unit.gateway.costs.month import DECEMBER, fill

OCTOBER, NOVEMBER = "periods/2026-10", "periods/2026-11"


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


async def test_months_before_and_after_closing(ask):
    before = (await ask("periods")).json()["data"]
    closed = (await ask(f"{NOVEMBER}/close", {"policy": "proportional"})).json()
    after = (await ask("periods")).json()["data"]
    again = (await ask(f"{NOVEMBER}/close", {})).json()
    shown = (await ask(NOVEMBER)).json()
    assert [(p["month"], p["state"]) for p in before] == [("2026-10", "closed"), ("2026-11", "open")]
    assert before[1]["can_be_closed"]
    assert (closed["state"], closed["closed_by"], closed["already"]) == ("closed", "id", False)
    assert closed["closed_at"] == iso(DECEMBER + GRACE)
    assert closed["previous_seal"] == before[0]["seal"]
    assert again == {**closed, "already": True}
    assert shown == {name: value for name, value in closed.items() if name != "already"}
    assert after[1]["seal"] == closed["seal"]
    assert [s["tenant"] for s in shown["statements"]] == ["acme", "bolt", "corgi"]
    assert sum(s["amount_cents"] for s in shown["statements"]) == shown["totals"]["billed"]["amount_cents"]


async def test_a_tenant_sees_the_roots_its_own_statement_and_its_own_policy(ask):
    assert (await ask("policy", {"policy": "none", "tenant": "bolt"}, put=True)).status_code == 200
    listed = (await ask("periods", key="bolt")).json()["data"]
    shown = (await ask(OCTOBER, key="bolt")).json()
    common = {"month", "state", "from", "to", "closed_at", "seal", "previous_seal", "currency"}
    assert [set(one) for one in listed] == [common, {"month", "state", "from", "to"}]
    assert set(shown) == common | {"statements"}
    assert [s["tenant"] for s in shown["statements"]] == ["bolt"]
    for month, policy, frozen in (("2026-11", "none", False), ("2026-10", "even", True)):
        own = (await ask("policy", key="bolt", month=month)).json()
        assert own == {"month": month, "policy": policy, "frozen": frozen}
    for path, body in ((f"{NOVEMBER}/close", {}), (f"{OCTOBER}/verify", None), (f"{NOVEMBER}/preview", None)):
        assert (await ask(path, body, key="bolt")).status_code == 403, path
    assert (await ask("policy", {"policy": "none"}, key="bolt", put=True)).status_code == 403


async def test_a_proof_and_the_records_that_it_covers(client_for, ask):
    proof = (await ask(f"{OCTOBER}/proof", key="bolt")).json()
    seal = (await ask(OCTOBER, key="bolt")).json()["seal"]
    async with client_for(Role.TENANT, "bolt", "/finance/v1/") as client:
        pages = [page async for page in pages_of(client, f"{OCTOBER}/records", limit=7)]
    records = [covered for page in pages for covered in page["data"]]
    assert {r["tenant"] for r in records} == {"bolt"}
    assert not [check for check in verify_proof(proof, records, seal) if check.ok is False]
    assert (await ask(f"{OCTOBER}/proof", tenant="bolt")).json() == proof
    assert len((await ask(f"{OCTOBER}/records")).json()["data"]) == 60
    other, nobody = [await ask(f"{OCTOBER}/proof", key="bolt", tenant=name) for name in ("acme", "nobody")]
    unknown = await ask(f"{OCTOBER}/proof", tenant="nobody")
    assert (other.status_code, nobody.status_code) == (404, 404)
    assert other.text.replace("acme", "nobody") == nobody.text == unknown.text
    assert (await ask(f"{OCTOBER}/records", key="bolt", tenant="acme")).json() == {"data": [], "next": None}


async def test_verification(ask, installed):
    right, quick = [(await ask(f"{OCTOBER}/verify", **how)).json() for how in ({}, {"quick": "true"})]
    assert right["ok"]
    assert quick["ok"]
    assert [c["name"] for c in quick["checks"]] == [c["name"] for c in right["checks"]]
    assert {c["name"] for c in quick["checks"] if c["ok"] is None} == {"records", "counts", "attribution"}
    with installed.ledger.write() as connection:
        connection.execute(update(usage_records).values(prompt_tokens=1))
    wrong = (await ask(f"{OCTOBER}/verify")).json()
    assert not wrong["ok"]
    assert "records" in {check["name"] for check in wrong["checks"] if check["ok"] is False}


async def test_the_books_are_compared_with_the_chain_and_its_anchors(ask, installed):
    anchor = (await ask("chain")).json()
    entries, digest = anchor["entries"], anchor["hash"]
    right = (await ask("chain/verify", anchor=["0:", f"{entries}:{digest}"])).json()
    assert (right["ok"], right["entries"], right["hash"]) == (True, entries, digest)
    assert (await ask("chain/verify", anchor="7")).status_code == 400
    with installed.ledger.write() as connection:
        connection.execute(update(periods).values(state="open"))
    wrong = (await ask("chain/verify", anchor=f"{entries}:{'0' * 64}")).json()
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


async def test_a_long_verification_is_kept_alive(ask, looks):
    answer = await ask(f"{OCTOBER}/verify")
    assert (answer.text[0], answer.json()["ok"]) == (" ", True)


async def test_a_long_verification_that_fails_says_so(ask, looks):
    [failed] = (await ask(f"{NOVEMBER}/verify")).json()["checks"]
    assert failed == {"name": "ledger", "ok": False, "detail": "2026-11 is not closed."}


async def test_a_long_closing_is_202_until_it_is_done_and_who_asks_again_joins(ask, looks):
    answers = [await ask(f"{NOVEMBER}/close", {}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 200]
    assert len(set(looks)) == 1


async def test_while_another_worker_closes_this_one_waits(ask, installed, monkeypatch):
    monkeypatch.setattr(closing, "ANSWER_SECONDS", 0.0)
    far = '{"doing": "records", "done": 5, "of": 60}'
    put(installed.ledger, snapshots, {"name": "closing 2026-11", "at": DECEMBER + GRACE, "document": far})
    waiting = await ask(f"{NOVEMBER}/close", {})
    assert (waiting.status_code, waiting.json()["state"]) == (202, "open")
    monkeypatch.undo()
    with installed.ledger.write() as connection:  # it has died meanwhile
        connection.execute(update(snapshots).values(at=DECEMBER))
    assert (await ask(f"{NOVEMBER}/close", {})).json()["state"] == "closed"


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


async def test_shares_sum_as_stated_and_a_missing_price_is_named(ask, installed):
    terms = {"policy": "fixed", "shares": {"acme": 60, "bolt": 30}, "shares_total": 100}
    percent = {"policy": "fixed", "shares": "acme=60%,bolt=30%"}
    for short in (await ask(f"{NOVEMBER}/close", terms), await ask(f"{NOVEMBER}/preview", **percent)):
        assert short.json()["error"]["message"] == "shares: they sum to 90 %, not to 100 %."
    terms["shares"]["new"] = 10  # a tenant without usage
    with installed.ledger.write() as connection:
        connection.execute(prices.delete().where(prices.c.gpu_type == "L40"))
    error = (await ask(f"{NOVEMBER}/close", terms)).json()["error"]
    assert (error["code"], "L40" in error["message"]) == ("missing_price", True)
    closed = (await ask(f"{NOVEMBER}/close", terms | {"allow_missing_prices": True})).json()
    assert (closed["missing_prices"], closed["shares"]) == (["L40 on_demand"], terms["shares"])


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
    async with client_for(path="/finance/v1/periods") as client:
        for method, path, body, status, code in REFUSED:
            answer = await client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (path, body)


async def test_shares_of_a_tenant_who_does_not_exist_are_refused(ask):
    """`acmee=100` issued a statement to nobody."""
    typo, text = {"policy": "fixed", "shares": {"acmee": 100}}, {"policy": "fixed", "shares": "acmee=100"}
    for answer in (
        await ask(f"{NOVEMBER}/close", typo), await ask(f"{NOVEMBER}/preview", **text), await ask("costs", **text),
        await ask("policy", typo, put=True), await ask("policy", {"policy": "none", "tenant": "acmee"}, put=True),
    ):  # fmt: skip
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_value")
        assert "no tenant is named 'acmee'. Did you mean acme?" in error["message"]
    assert (await ask("periods")).json()["data"][1]["state"] == "open"


async def test_a_preview_is_what_is_closed_and_the_standing_policy_decides(ask):
    reasoned = {"policy": "proportional", "reason": "as agreed"}
    own = {"policy": "none", "tenant": "corgi", "valid_from": "2026-11"}
    first, again, _ = [(await ask("policy", body, put=True)).json() for body in (reasoned, reasoned, own)]
    preview, even = [(await ask(f"{NOVEMBER}/preview", **how)).json() for how in ({}, {"policy": "even"})]
    costs = (await ask("costs", month="2026-11", by="tenant")).json()
    closed = (await ask(f"{NOVEMBER}/close", {})).json()
    shown = (await ask("policy", month="2026-11")).json()
    early = await ask("policy", {"policy": "even", "valid_from": "2026-10"}, put=True)
    odd = await ask("policy", {"policy": "fixed", "shares": {"acme": 1}, "tenant": "acme"}, put=True)
    assert (first["changed"], first["month"], again["changed"]) == (True, "2026-11", False)
    assert (preview["policy"], preview["own"], preview["standing"]) == (
        "proportional",
        {"corgi": "none"},
        True,
    )
    assert (even["policy"], even["standing"]) == ("even", False)
    amounts = {one["tenant"]: one["amount_cents"] for one in closed["statements"]}
    assert {one["tenant"]: one["amount_cents"] for one in preview["statements"]} == amounts
    assert costs["billed_cents"] == sum(amounts.values()) == closed["totals"]["billed"]["amount_cents"]
    assert (closed["policy"], closed["own"]) == ("proportional", {"corgi": "none"})
    assert (shown["frozen"], [row["reason"] for row in shown["history"]]) == (True, ["as agreed", ""])
    for answer, param in ((early, "valid_from"), (odd, "policy")):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "the first open month is 2026-12" in early.json()["error"]["message"]


async def test_a_worker_whose_log_is_not_in_the_ledger_does_not_close(ask, installed):
    installed.meter.flushed = False
    answer = await ask(f"{NOVEMBER}/close", {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cannot_close")
