"""/finance/v1/quarantine."""

from gateway.metering.ledger.audit_log import Wanted
from gateway.metering.ledger.audit_log import read as read_audit
from tests.unit.gateway.metering.make import record


async def test_records_that_differ_are_listed_with_what_the_ledger_has(ask, installed):
    first = record("r", completion_tokens=5)
    installed.ledger.insert([first])
    installed.ledger.insert([first._replace(completion_tokens=6, tenant="bolt")])
    body = (await ask("quarantine")).json()
    [one] = body["data"]
    assert (one["id"], one["reason"], body["total"], body["next"]) == (first.id, "differs", 1, None)
    assert (one["record"]["completion_tokens"], one["record"]["tenant"]) == (6, "bolt")
    assert one["stored"] == {"completion_tokens": 5, "tenant": "acme"}


async def test_a_dismissal_is_kept_with_its_reason_and_audited(ask, installed):
    records = [record(name) for name in ("r", "s")]
    installed.ledger.insert(records)
    installed.ledger.insert([one._replace(completion_tokens=99) for one in records])
    one, other = (record.id for record in records)
    body = {"records": [one], "reason": "Shipped twice"}
    first = await ask("quarantine/dismiss", body)
    again = await ask("quarantine/dismiss", {**body, "reason": "Another reason"})
    unknown = await ask("quarantine/dismiss", {**body, "records": [other, "x"]})
    assert first.json() == {"dismissed": [one], "reason": "Shipped twice"}
    assert (again.json()["dismissed"], unknown.status_code) == ([], 404)
    pages = [(await ask("quarantine", limit=1)).json()]
    pages.append((await ask("quarantine", limit=1, after=pages[0]["next"])).json())
    dismissals = {entry["id"]: entry["dismissal"] for page in pages for entry in page["data"]}
    assert dismissals[one]["reason"] == "Shipped twice"
    assert dismissals[other] is None, "nothing is dismissed if one of them is unknown"
    [entry] = read_audit(installed.ledger, Wanted(action="usage.dismiss"), 10)
    assert (entry.subject, entry.details) == (one, {"reason": "Shipped twice"})
