"""/finance/v1/quarantine."""

import pytest

from gateway.metering.ledger.audit_log import Wanted
from gateway.metering.ledger.audit_log import read as read_audit
from gateway.tenants.directory import Role
from tests.support.paging import pages_of
from tests.unit.gateway.metering.make import record

PATH = "/finance/v1/quarantine"


async def test_records_that_differ_are_listed_with_what_the_ledger_has(client_for, installed):
    first = record("r", completion_tokens=5)
    installed.ledger.insert([first])
    installed.ledger.insert([first._replace(completion_tokens=6, tenant="bolt")])
    async with client_for() as client:
        body = (await client.get(PATH)).json()
    [one] = body["data"]
    assert (one["id"], one["reason"], body["total"], body["next"]) == (first.id, "differs", 1, None)
    assert (one["record"]["completion_tokens"], one["record"]["tenant"]) == (6, "bolt")
    assert one["stored"] == {"completion_tokens": 5, "tenant": "acme"}


async def test_pages_hold_each_record_once(client_for, installed):
    records = [record(f"r{n}") for n in range(5)]
    installed.ledger.insert(records)
    installed.ledger.insert([one._replace(completion_tokens=99) for one in records])
    async with client_for() as client:
        pages = [page async for page in pages_of(client, PATH, limit=2)]
        bad = await client.get(PATH, params={"after": "x"})
    assert {page["total"] for page in pages} == {5}
    seen = [quarantined["id"] for page in pages for quarantined in page["data"]]
    assert sorted(seen) == sorted(one.id for one in records)
    assert bad.status_code == 400


async def test_a_dismissal_is_kept_with_its_reason_and_audited(client_for, installed):
    records = [record(name) for name in ("r", "s")]
    installed.ledger.insert(records)
    installed.ledger.insert([one._replace(completion_tokens=99) for one in records])
    body = {"records": [records[0].id], "reason": "Shipped twice"}
    async with client_for(Role.FINANCE) as client:
        first = await client.post(f"{PATH}/dismiss", json=body)
        again = await client.post(f"{PATH}/dismiss", json={**body, "reason": "Another reason"})
        unknown = await client.post(f"{PATH}/dismiss", json={**body, "records": [records[1].id, "x"]})
        listed = (await client.get(PATH)).json()["data"]
    [entry] = read_audit(installed.ledger, Wanted(action="usage.dismiss"), 10)
    assert first.json() == {"dismissed": [records[0].id], "reason": "Shipped twice"}
    assert again.json()["dismissed"] == []
    assert unknown.status_code == 404
    by_id = {entry["id"]: entry["dismissal"] for entry in listed}
    assert by_id[records[0].id]["reason"] == "Shipped twice"
    assert by_id[records[1].id] is None, "nothing is dismissed if one of them is unknown"
    assert (entry.subject, entry.details) == (records[0].id, {"reason": "Shipped twice"})


@pytest.mark.parametrize("path", [PATH, "/finance/v1/provisioned-time", "/finance/v1/provisioned-time/hours"])
async def test_it_is_for_staff(client_for, path):
    async with client_for(Role.TENANT, "acme") as client:
        assert (await client.get(path)).status_code == 403
