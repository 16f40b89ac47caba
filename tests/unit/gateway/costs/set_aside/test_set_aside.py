"""Engine-hours that are set aside, as finance sees and settles them over HTTP."""

import pytest
from sqlalchemy import update

from gateway.metering.ledger.schema import usage_records
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


async def test_reports_of_everybody_go_on_and_say_what_they_lack(ask, poisoned):
    for _ in range(2):
        found = (await ask("costs", **MONTH, by="tenant,engine")).json()
        assert [(r["tenant"], r["engine"]) for r in found["rows"]] == [("acme", "gpu-a")]
        [aside] = found["set_aside"]
        assert (aside["engine"], aside["hour"]) == ("gpu-bad", AT)
        assert str(ABSURD) in aside["reason"]
    for path in ("usage", "reconciliation", "periods"):
        assert (await ask(path, **MONTH)).status_code == 200, path
    own = await ask("costs", key="bolt", **MONTH)
    assert own.json()["set_aside"] == [{"hour": AT, "gpu_type": "H100"}]
    assert "record" not in own.text.partition("set_aside")[2]


async def test_closing_waits_for_a_decision_and_goes_on_after_it(ask, poisoned):
    terms = {"allow_missing_prices": True}
    refused = await ask("periods/1970-01/close", terms)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cannot_close")
    assert f"florin cost exclude gpu-bad {AT}" in refused.json()["error"]["message"]
    [aside] = (await ask("set-aside")).json()["data"]
    asked = {"engine": aside["engine"], "hour": aside["hour"]}
    for wrong in ({}, {"engine": "gpu-bad"}, {"engine": "gpu-bad", "hour": "soon"}, asked | {"all": True}):
        assert (await ask("set-aside/exclude", wrong)).status_code == 400
    done, again = [await ask("set-aside/exclude", asked) for _ in range(2)]
    assert done.json() == {**asked, "quarantined": 1, "kept": 0, "set_aside": False}
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
    assert (await ask("periods/1970-01/close", terms)).json()["state"] == "closed"
    assert (await ask("set-aside")).json() == {"data": []}
    assert (await ask("set-aside", key="bolt")).status_code == 403
    assert (await ask("set-aside/exclude", asked, key="bolt")).status_code == 403
