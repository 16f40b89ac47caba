"""A month held against counters, bill and itself: what is told, and what counts as unexplained."""

from fractions import Fraction

import pytest

from gateway.costs.periods import iso
from gateway.metering.ledger.quarantine import dismiss
from gateway.metering.ledger.schema import (
    engine_counters,
    ledger_state,
    quarantine,
)
from gateway.units import HOUR
from tests.support.ledger_rows import put
from tests.unit.gateway.costs.billed import FIRST, NOVEMBER, line, run
from tests.unit.gateway.costs.rolled import row, write
from tests.unit.gateway.metering.make import record


def test_a_month_in_which_all_agrees(november, bill):
    bill(line(0), line(1))
    found = run(november)
    assert (found["ok"], found["unexplained"]) == (True, [])
    assert (found["from"], found["to"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    assert [(c["token_type"], c["difference"], c["lines"]) for c in found["tokens"]["checks"]] == [
        ("input", 0, []),
        ("output", 0, []),
    ]
    shown = found["bill"]
    assert shown["lines"] == []
    hours = {name: value for name, value in shown.items() if name.endswith("gpu_hours")}
    assert hours == {
        "billed_gpu_hours": "2.00", "provisioned_gpu_hours": "2.00", "attributed_gpu_hours": "0.50",
        "difference_gpu_hours": "0.00", "unexplained_gpu_hours": "0.00", "unaccepted_gpu_hours": "0.00",
    }  # fmt: skip
    assert (shown["billed_cost"], shown["own_cost"], shown["difference_cost"]) == ("5.00", "5.00", "0.00")
    [account] = shown["accounts"]
    assert (account["engine"], account["billed_rate"], account["own_rate"]) == ("gpu-a", "2.50", "2.50")
    assert {shown["verdict"], account["verdict"], *(c["verdict"] for c in found["tokens"]["checks"])} == {
        "matched"
    }
    assert found["completeness"] == {
        "imbalances": [], "hours_pending": 1, "quarantined": {}, "delivered_twice": 0,
        "implausible": 0, "set_aside": [],
        "records": [
            {
                "usage_source": "engine_final", "outcome": "ok", "records": 1, "prompt_tokens": 10,
                "completion_tokens": 5,
            }
        ],
    }  # fmt: skip


def test_the_lines_sum_to_the_difference_over_all_accounts(november, bill):
    bill(line(0, 3), line(1, engine="stranger", cost="7.77"), line(4, gpu_hours=9))
    shown = run(november)["bill"]
    assert [one["kind"] for one in shown["lines"]] == ["never_registered", "down", "more_than_time"]
    for what in ("gpu_hours", "cost"):
        total = sum(Fraction(one[what]) for one in shown["lines"])
        assert total == Fraction(shown[f"difference_{what}"]) != 0
        for account in shown["accounts"]:
            own = "provisioned_gpu_hours" if what == "gpu_hours" else "own_cost"
            whole = Fraction(account[f"billed_{what}"]) - Fraction(account[own])
            assert sum(Fraction(one[what]) for one in account["lines"]) == whole
    down = shown["lines"][1]
    assert (down["hours"], down["first"], down["last"]) == (
        2,
        iso((FIRST + 2) * HOUR),
        iso((FIRST + 4) * HOUR),
    )


def test_what_has_no_cause_is_unexplained_beyond_the_tolerance(november, bill):
    bill(line(0, gpu_hours="1.01", cost="2.525"), line(1))
    found = run(november)
    assert (found["ok"], found["bill"]["unexplained_gpu_hours"]) == (False, "0.01")
    assert [sentence.split(", of ")[0] for sentence in found["unexplained"]] == [
        "0.01 GPU-hours",
        "0.025 USD",
    ]
    assert run(november, tolerance="1")["ok"]


def test_causes_that_are_not_known_do_not_make_up_for_each_other(november, bill):
    bill(line(0, gpu_hours="1.5", cost="3.75"), line(1, gpu_hours="0.5", cost="1.25"))
    shown = run(november)["bill"]
    assert (shown["difference_gpu_hours"], shown["unexplained_gpu_hours"]) == ("0.00", "1.00")


def test_a_month_without_a_bill_is_not_reconciled(november):
    found = run(november)
    assert (found["bill"], found["ok"]) == (None, False)
    assert found["unexplained"] == [
        "No bill is imported for 2026-11, so its cost is not reconciled: florin cost import-bill FILE."
    ]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([line(0), line(1), line(0, 2, engine="stranger", cost="222456")], "never_registered"),
        ([line(0, cost="20"), line(1, cost="20")], "rate"),
        ([line(0)], "not_billed"),
    ],
)
def test_a_cause_that_is_identified_is_not_accepted(november, bill, lines, kind):
    """All of these were "explained", with exit code 0."""
    bill(*lines)
    found = run(november)
    assert not found["ok"]
    [one] = found["bill"]["lines"]
    assert (one["kind"], one["explained"], one["verdict"]) == (kind, True, "identified")
    assert one["reason"] in found["unexplained"][-1]


def test_corrections_of_closed_months_count_for_the_hours_that_they_are_of(november, bill):
    """The hour was posted with half of it missing; the other half came after November was closed."""
    bill(line(0), line(1))
    write(
        november,
        row(FIRST + 1, bucket="idle", posted="2026-12", correction=True, nano_gpu_hours=-(10**9)),
        row(FIRST + 1, bucket="usage", posted="2026-12", correction=True),
    )
    shown = run(november)["bill"]
    assert (shown["own_cost"], shown["attributed_gpu_hours"]) == ("5.00", "1.50")


def test_a_ledger_that_does_not_balance_and_what_a_person_must_see(november):
    write(november, row(FIRST, nano_gpu_hours=7))
    put(
        november,
        quarantine,
        {"id": "x", "digest": "y", "content": "{}", "recorded_at": FIRST * HOUR, "reason": "differs"},
    )
    november.insert(
        [
            record("again", dispatched=FIRST * HOUR + 1),
            record("again", attempt=2, dispatched=FIRST * HOUR + 1),
            record("failover", dispatched=FIRST * HOUR + 1, billable=False),
            record("failover", attempt=2, dispatched=FIRST * HOUR + 1),
        ]
    )
    found = run(november, tolerance="100")
    assert (found["completeness"]["delivered_twice"], found["completeness"]["quarantined"]) == (
        1,
        {"differs": 1},
    )
    assert len(found["completeness"]["imbalances"]) == 1
    assert [sentence.split(" ")[0] for sentence in found["unexplained"]] == ["No", "The", "1", "1"]


def test_a_quarantined_record_concerns_its_own_month_until_it_is_dismissed(november, bill):
    bill(line(0), line(1))
    november.insert([record("r", dispatched=FIRST * HOUR, ended=FIRST * HOUR + 1)])
    again = record("r", dispatched=FIRST * HOUR, ended=FIRST * HOUR + 2)
    november.insert([again])
    assert run(november, month="2026-10")["completeness"]["quarantined"] == {}
    assert run(november)["unexplained"][-1].startswith("1 record is in quarantine")
    dismiss(november, [again.id], reason="Shipped twice", now=1, by="key-1")
    assert (run(november)["completeness"]["quarantined"], run(november)["ok"]) == ({}, True)


@pytest.mark.parametrize(
    ("prompt", "says"), [(1000, "gpu-a counted 990 input tokens of 1,000"), (1, "have 9 input tokens of 10")]
)
def test_tokens_that_nothing_explains(november, prompt, says):
    with november.write() as connection:
        connection.execute(engine_counters.update().values(prompt_tokens=prompt))
    found = run(november)
    sentence, _no_bill = found["unexplained"]
    assert says in sentence
    assert not found["ok"]


def test_records_that_are_removed_cannot_be_added_up(november):
    put(november, ledger_state, {"name": "pruned_before", "value": NOVEMBER.end})
    tokens = run(november)["tokens"]
    assert tokens["checks"] == []
    assert "2026-12-01" in tokens["note"]


def test_records_after_the_last_sample_are_told(november):
    november.insert([record("two", dispatched=(FIRST + 3) * HOUR)])
    [gap] = run(november)["tokens"]["unsampled"]
    assert (gap["engine"], gap["records"], gap["from"]) == ("gpu-a", 1, iso(FIRST * HOUR + 60_000_001))
