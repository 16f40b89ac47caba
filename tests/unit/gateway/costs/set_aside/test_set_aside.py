"""Engine-hours that are set aside, as finance sees and settles them over HTTP."""

import time

import pytest
from sqlalchemy import update

from gateway.metering.ledger.schema import usage_records
from gateway.tenants.directory import Role
from gateway.units import HOUR
from tests.unit.gateway.metering.make import record

ABSURD = 9 * 10**18
AT = "1970-01-05T04:00:00Z"
MONTH = {"month": "1970-01"}


@pytest.fixture
def poisoned(installed):
    """The reviewer's case: one engine counted 9·10¹⁸ tokens."""
    bad = record("bad", tenant="bolt", engine="gpu-bad")
    installed.ledger.insert([record("good"), bad, record("with", engine="gpu-bad")])
    with installed.ledger.write() as connection:
        row = update(usage_records).where(usage_records.c.id == bad.id)
        connection.execute(row.values(completion_tokens=ABSURD))
    return installed


async def test_reports_of_everybody_go_on_and_say_what_they_lack(client_for, poisoned):
    async with client_for() as client:
        for _ in range(2):
            answer = await client.get("/finance/v1/costs", params={**MONTH, "by": "tenant,engine"})
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert [(r["tenant"], r["engine"]) for r in found["rows"]] == [("acme", "gpu-a")]
            [aside] = found["set_aside"]
            assert (aside["engine"], aside["hour"]) == ("gpu-bad", AT)
            assert str(ABSURD) in aside["reason"]
        for path in ("/finance/v1/usage", "/finance/v1/reconciliation", "/finance/v1/periods"):
            answer = await client.get(path, params=MONTH)
            assert answer.status_code == 200, (path, answer.text)
    async with client_for(Role.TENANT, "bolt") as client:
        answer = await client.get("/finance/v1/costs", params=MONTH)
        assert answer.status_code == 200
        assert answer.json()["set_aside"] == [{"hour": AT, "gpu_type": "H100"}]
        assert "record" not in answer.text.partition("set_aside")[2]


async def test_closing_waits_for_a_decision_and_goes_on_after_it(client_for, poisoned):
    terms = {"allow_missing_prices": True}
    async with client_for() as client:
        refused = await client.post("/finance/v1/periods/1970-01/close", json=terms)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cannot_close")
        assert f"florin cost exclude gpu-bad {AT}" in refused.json()["error"]["message"]
        listed = await client.get("/finance/v1/set-aside")
        [aside] = listed.json()["data"]
        asked = {"engine": aside["engine"], "hour": aside["hour"]}
        done = await client.post("/finance/v1/set-aside/exclude", json=asked)
        assert done.json() == {**asked, "quarantined": 1, "kept": 0, "set_aside": False}
        again = await client.post("/finance/v1/set-aside/exclude", json=asked)
        assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
        closed = await client.post("/finance/v1/periods/1970-01/close", json=terms)
        assert closed.json()["state"] == "closed"
        assert (await client.get("/finance/v1/set-aside")).json() == {"data": []}


async def test_what_cannot_be_meant_is_refused(client_for, poisoned):
    async with client_for() as client:
        for body in (
            {}, {"engine": "gpu-bad"}, {"engine": "gpu-bad", "hour": "soon"}, {"engine": 7, "hour": AT},
            {"engine": "gpu-bad", "hour": "9" * 30}, {"engine": "gpu-bad", "hour": AT, "all": True},
        ):  # fmt: skip
            answer = await client.post("/finance/v1/set-aside/exclude", json=body)
            assert answer.status_code == 400, answer.text


async def test_tenants_neither_see_nor_settle(client_for, poisoned):
    async with client_for(Role.TENANT, "bolt") as client:
        listed = await client.get("/finance/v1/set-aside")
        done = await client.post("/finance/v1/set-aside/exclude", json={"engine": "gpu-bad", "hour": AT})
    assert (listed.status_code, done.status_code) == (403, 403)


async def test_an_hour_from_the_future_waits(client_for, installed):
    start = (time.time_ns() // 1000 // HOUR + 24) * HOUR
    installed.ledger.insert([record("good"), record("later", dispatched=start)])
    async with client_for() as client:
        assert (await client.get("/finance/v1/set-aside")).json() == {"data": []}
