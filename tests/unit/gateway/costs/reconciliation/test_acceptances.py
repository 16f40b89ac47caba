"""Accepting differences: what it changes, and what undoes it."""

import pytest
from sqlalchemy import select

from gateway.costs.reconciliation.acceptances import (
    LineNotFoundError,
    accept,
    list_acceptances,
    month_of_line,
    withdraw,
)
from gateway.costs.reconciliation.verdicts import line_id
from gateway.metering.ledger.schema import audit_log, engine_counters
from tests.unit.gateway.costs.billed import NOW, line, run


def lines_of(found):
    return {one["kind"]: one for account in found["bill"]["accounts"] for one in account["lines"]}


def accepted(ledger, *lines, reason="left over from a trial", **changes):
    return accept(
        ledger, "2026-11", lines=lines, reason=reason, now=NOW, by="fk1", actor="key:fk1", **changes
    )


def test_an_accepted_difference_reconciles_and_says_who_when_and_why(november, bill):
    bill(line(0), line(1), line(0, 2, engine="stranger"))
    one = lines_of(run(november))["never_registered"]
    assert (one["verdict"], one["accepted"]) == ("identified", None)
    [done] = accepted(november, one["line"])
    assert (done["gpu_hours"], done["cost"], done["engine"]) == ("2.00", "5.00", "stranger")
    found = run(november)
    assert (found["ok"], found["bill"]["verdict"], found["bill"]["unaccepted_cost"]) == (
        True, "accepted", "0.00",
    )  # fmt: skip
    assert lines_of(found)["never_registered"]["accepted"] == {
        "by": "fk1", "recorded_at": "2026-12-01T00:00:00.000005Z", "reason": "left over from a trial",
        "gpu_hours": "2.00", "cost": "5.00", "current": True,
    }  # fmt: skip
    [told] = list_acceptances(november, "2026-11")
    assert (told["line"], told["accepted"], told["by"], told["reason"]) == (
        one["line"], True, "fk1", "left over from a trial",
    )  # fmt: skip


def test_it_is_in_the_audit_log_and_accepting_it_again_changes_nothing(november, bill):
    bill(line(0), line(1), line(0, 2, engine="stranger"))
    name = lines_of(run(november))["never_registered"]["line"]
    accepted(november, name)
    accepted(november, name, reason="again")
    withdraw(november, name, reason="a mistake", now=NOW + 1, by="fk2", actor="key:fk2")
    with november.read() as connection:
        noted = (
            connection.execute(select(audit_log).order_by(audit_log.c.at, audit_log.c.seq)).mappings().all()
        )
    noted = [entry for entry in noted if "accept" in entry["action"]]
    assert [(entry["action"], entry["actor"], entry["subject"]) for entry in noted] == [
        ("bill.accept", "key:fk1", "2026-11"),
        ("bill.withdraw_acceptance", "key:fk2", "2026-11"),
    ]
    assert '"cost":"5.00"' in noted[0]["details"]
    assert [one["accepted"] for one in list_acceptances(november, "2026-11")] == [False, True]
    assert not run(november)["ok"]
    with pytest.raises(LineNotFoundError, match="is not accepted"):
        withdraw(november, name, reason="again", now=NOW, by="fk2")


def test_an_acceptance_holds_for_the_amount_that_was_accepted(november, bill):
    bill(line(0), line(1), line(0, 2, engine="stranger"))
    accepted(november, lines_of(run(november))["never_registered"]["line"])
    bill(line(2, 1, engine="stranger"))
    found = run(november)
    one = lines_of(found)["never_registered"]
    assert (found["ok"], one["verdict"], one["gpu_hours"]) == (False, "identified", "3.00")
    assert (one["accepted"]["gpu_hours"], one["accepted"]["current"]) == ("2.00", False)


def test_all_lines_of_a_kind_and_none_of_another(november, bill):
    bill(line(0, 2, cost="6"), line(0, 2, engine="stranger"), line(0, engine="other"))
    assert [one["engine"] for one in accepted(november, kind="never_registered")] == ["other", "stranger"]
    found = run(november)
    assert {one["kind"]: one["verdict"] for one in found["bill"]["lines"]} == {
        "never_registered": "accepted", "rate": "identified",
    }  # fmt: skip
    [sentence] = found["unexplained"]
    assert sentence.startswith("1.00 USD, of 13.50 billed, not accepted: charged at a different rate")
    with pytest.raises(LineNotFoundError, match="no line of kind 'tax'"):
        accepted(november, kind="tax")


def test_names_of_lines_are_stable():
    """They are in tickets and mails."""
    assert (
        line_id("2026-10", "bill", "h100-9", "H100", "", "on_demand", "never_registered")
        == "2026-10-6774eba6"
    )
    assert line_id("2026-10", "a", "bc") != line_id("2026-10", "ab", "c")


def test_tokens_that_nothing_explains_can_be_accepted(november, bill):
    bill(line(0), line(1))
    with november.write() as connection:
        connection.execute(engine_counters.update().values(prompt_tokens=1000))
    found = run(november)
    check = found["tokens"]["checks"][0]
    assert (found["ok"], check["verdict"], check["unexplained"]) == (False, "unidentified", 990)
    [done] = accepted(november, check["line"], reason="load test sent directly to the engine")
    assert (done["kind"], done["tokens"]) == ("tokens", 990)
    assert run(november)["ok"]


@pytest.mark.parametrize("wrong", ["2026-11-00000000", "2026-11", "x", "2026-11-8F3B2C91"])
def test_a_line_that_is_none(november, bill, wrong):
    bill(line(0), line(1))
    with pytest.raises(LineNotFoundError, match="florin cost reconcile"):
        accepted(november, month_of_line(wrong) and wrong)
