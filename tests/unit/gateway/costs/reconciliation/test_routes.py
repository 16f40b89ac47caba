"""Bills, reconciliation and comparison over HTTP; who asks is given, not looked up."""

from functools import partial

import pytest

from gateway.costs.reconciliation.routes import bills

HEAD = "start,end,resource,gpu_type,gpu_hours,cost,currency\n"
GOOD = "2026-10-01T00:00Z,2026-10-01T01:00Z,gpu-a,H100,1,2.50,USD\n"
BAD = "2026-10-01T00:00Z,2026-10-01T01:00Z,gpu-a,H100,lots,2.50,USD\n"


@pytest.fixture
def client_for(client_for):
    return partial(client_for, path="/finance/v1")


async def test_a_bill_is_imported_listed_and_removed(client_for):
    async with client_for() as client:
        first = await client.post("/bills", params={"file_name": "o.csv"}, content=HEAD + GOOD)
        again = await client.post("/bills", content=HEAD + GOOD)
        listed = (await client.get("/bills")).json()["data"]
        removed = await client.delete(f"/bills/{first.json()['source'][:12]}")
        after = (await client.get("/bills")).json()["data"]
        gone = await client.delete(f"/bills/{first.json()['source'][:12]}")
    assert [(a.status_code, a.json()["new"]) for a in (first, again)] == [(201, 1), (200, 0)]
    assert [(bill["file_name"], bill["lines"]) for bill in listed] == [("o.csv", 1)]
    assert (removed.json()["lines"], after) == (1, [])
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_bad_lines_are_findings_and_nothing_is_imported(client_for):
    async with client_for() as client:
        refused = await client.post("/bills", content=HEAD + GOOD + BAD)
        listed = (await client.get("/bills")).json()["data"]
        skipped = await client.post("/bills", params={"skip_bad": True}, content=HEAD + GOOD + BAD)
        otherwise = await client.post(
            "/bills", params={"skip_bad": True, "rename": "gpu_type:H100=B200"}, content=HEAD + GOOD + BAD
        )
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], listed) == (422, "bill_rejected", [])
    assert [finding["found"] for finding in error["findings"]] == ["line 3"]
    assert (skipped.status_code, skipped.json()["bad"][0]["line"]) == (201, 3)
    assert (otherwise.status_code, otherwise.json()["error"]["code"]) == (409, "conflict")


async def test_a_file_that_is_too_large_is_not_read_to_its_end(client_for, monkeypatch):
    monkeypatch.setattr(bills, "MAX_BYTES", 1000)
    sent = 0

    async def pieces():
        nonlocal sent
        for _ in range(1000):
            sent += 100
            yield b"x" * 100

    async with client_for() as client:
        answer = await client.post("/bills", content=pieces())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert sent <= 1200


async def test_a_reconciliation(client_for):
    async with client_for() as client:
        await client.post("/bills", content=HEAD + GOOD)
        found = (await client.get("/reconciliation", params={"month": "2026-10"})).json()
        wide = (await client.get("/reconciliation", params={"month": "2026-10", "tolerance": "100"})).json()
        wrong = await client.get("/reconciliation", params={"month": "2026-13"})
    assert (found["month"], found["tolerance_percent"], found["complete"], found["ok"]) == (
        "2026-10", "0.10", True, False,
    )  # fmt: skip
    assert [line["kind"] for line in found["bill"]["lines"]] == ["down", "no_price"]
    assert (wide["tolerance_percent"], wide["ok"]) == ("100.00", True)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "month")


async def test_a_tolerance_that_is_none_is_refused_at_once(client_for):
    """The smallest of them would be a fraction of a million digits."""
    async with client_for() as client:
        for tolerance in ("1e-999999", "0.0000000001", "NaN", "-1", "101"):
            answer = await client.get("/reconciliation", params={"tolerance": tolerance})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value"), tolerance


COMMITMENT = {
    "gpu_type": "H100", "gpus": 1, "valid_from": "2026-10-01", "valid_to": "2026-11-01",
    "rate_per_gpu_hour": "1.80", "upfront": "31",
}  # fmt: skip


async def test_commitments_and_their_report(client_for):
    async with client_for() as client:
        made = await client.post("/commitments", json=COMMITMENT)
        again = await client.post("/commitments", json=COMMITMENT)
        report = (await client.get("/commitments/report", params={"month": "2026-10"})).json()
        path = f"/commitments/{made.json()['id']}/withdraw"
        gone = await client.post(path, json={"reason": "recorded twice"})
        twice = await client.post(path, json={"reason": "recorded twice"})
        after = (await client.get("/commitments/report", params={"month": "2026-10"})).json()
    assert (made.status_code, again.status_code, gone.status_code, twice.status_code) == (201, 200, 200, 404)
    [row] = report["rows"]
    assert (row["net_cost"], row["unused_cost"], row["utilization"]) == ("1370.20", "1370.20", "0.00")
    assert after["rows"] == []


MALFORMED = (
    ("/commitments", {**COMMITMENT, "valid_to": "2026-10-01"}, "valid_to"),
    ("/commitments", {**COMMITMENT, "valid_from": "soon"}, "valid_from"),
    ("/commitments", {**COMMITMENT, "upfront": "1e9999"}, "upfront"),
    ("/reconciliation/acceptances", {"reason": "because"}, "lines"),
    ("/reconciliation/acceptances", {"reason": "because", "kind": "rate"}, "month"),
    ("/reconciliation/acceptances", {"reason": "because", "lines": ["x"]}, "lines"),
    ("/reconciliation/acceptances", {"reason": "because", "kind": "rate", "month": "2026-13"}, "month"),
    ("/true-ups/2026-13", {}, "month"),
)


async def test_what_is_malformed_names_its_field(client_for):
    async with client_for() as client:
        for path, body, param in MALFORMED:
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (path, body)


async def test_an_acceptance_over_http_and_a_true_up_that_is_blocked(client_for):
    async with client_for() as client:
        await client.post("/bills", content=HEAD + GOOD)
        found = (await client.get("/reconciliation", params={"month": "2026-10"})).json()
        lines = [one["line"] for account in found["bill"]["accounts"] for one in account["lines"]]
        blocked = await client.post("/true-ups/2026-10", json={})
        unknown = await client.post(
            "/reconciliation/acceptances", json={"lines": ["2026-10-00000000"], "reason": "because"}
        )
        done = await client.post("/reconciliation/acceptances", json={"lines": lines, "reason": "because"})
        made = await client.post("/true-ups/2026-10", json={"invoice": "2.50"})
        listed = await client.get("/reconciliation/acceptances", params={"month": "2026-10"})
    assert (blocked.status_code, blocked.json()["error"]["code"]) == (409, "conflict")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert (done.status_code, len(done.json()["data"]), len(listed.json()["data"])) == (200, 2, 2)
    assert (made.status_code, made.json()["invoice_amount_cents"]) == (201, 250)


async def test_a_wrong_reading_is_refused(client_for):
    async with client_for() as client:
        for params, says in (
            ({"map": "resource"}, "NAME=VALUE"),
            ({"rename": "H100=B200"}, "FIELD:THEIRS"),
            ({"format": "xlsx"}, "format"),
        ):
            answer = await client.post("/bills", params=params, content=HEAD + GOOD)
            assert (answer.status_code, says in answer.json()["error"]["message"]) == (400, True), params
