"""florin cost import-bill, bills, remove-bill, reconcile, accept, true-up, commitments, compare."""

import json

import pytest

from gateway.costs.reconciliation.schemas.reconciliation import AcceptedLine, WithdrawnAcceptance
from tests.support.samples import sample

IMPORTED = {
    "source": "3f2a90c1d4e7" + "0" * 52, "file_name": "nov.csv", "format": "csv", "lines": 3, "new": 2,
    "repeated": 2, "gpu_hours": "16.00", "cost": {"USD": "40.00"}, "ignored": 1, "ignored_cost": {"USD": "7.00"},
    "bad": [{"line": 7, "reason": "It ends before it begins."}], "bad_lines": 1,
    "bad_reasons": [{"reason": "It ends before it begins.", "lines": 1, "where": "line 7"}],
    "charges": {"USD": "3.00"}, "inclusive_looking": 2,
}  # fmt: skip  # one name a line says no more
LINE = {
    "kind": "down", "reason": "billed for hours in which the engine was not up, or not registered",
    "explained": True, "gpu_hours": "2.00", "cost": "5.00", "hours": 2, "first": "2026-11-03T04:00:00Z",
    "last": "2026-11-03T05:00:00Z", "line": "2026-11-0a1b2c3d", "verdict": "identified", "accepted": None,
}  # fmt: skip
OF_KIND = {**LINE, "lines": 1, "unaccepted": 1}
ACCOUNT = {
    "verdict": "identified",
    "engine": "gpu-a", "gpu_type": "H100", "region": "", "purchase": "on_demand", "billed_gpu_hours": "4.00",
    "provisioned_gpu_hours": "2.00", "attributed_gpu_hours": "1.00", "billed_cost": "10.00",
    "own_cost": "5.00", "billed_rate": "2.50", "own_rate": "2.75", "other_currencies": {}, "lines": [LINE],
}  # fmt: skip
RECONCILED = {
    "month": "2026-11", "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z",
    "tolerance_percent": "0.10", "ok": True, "unexplained": [], "complete": True,
    "tokens": {
        "note": None,
        "checks": [
            {
                "engine": "gpu-a", "epoch": "e", "from": "2026-11-01T00:00:00Z", "to": "t",
                "token_type": "input", "engine_tokens": 1234567, "record_tokens": 1234000, "difference": 567,
                "unexplained": 7, "line": "2026-11-7e7e7e7e", "verdict": "unidentified", "accepted": None,
                "lines": [
                    {"kind": "k", "reason": "n > 1", "tokens": 560, "at_least": 560, "at_most": 560, "records": 3}
                ],
            }
        ],
        "unsampled": [{"engine": "gpu-b", "from": "f", "to": "t", "records": 5, "input": 1, "output": 1}],
    },
    "bill": {
        "currency": "USD", "billed_gpu_hours": "4.00", "provisioned_gpu_hours": "2.00",
        "attributed_gpu_hours": "1.00", "difference_gpu_hours": "2.00", "billed_cost": "10.00",
        "own_cost": "5.00", "difference_cost": "5.00", "exchange_rates": [], "lines": [OF_KIND], "unexplained_gpu_hours": "0.00",
        "unexplained_cost": "0.00", "verdict": "identified", "unaccepted_gpu_hours": "2.00",
        "unaccepted_cost": "5.00", "accounts": [ACCOUNT],
    },
    "completeness": {
        "imbalances": [], "hours_pending": 0, "quarantined": {"differs": 2}, "delivered_twice": 0,
        "implausible": 0, "set_aside": [],
        "records": [
            {"usage_source": "engine_final", "outcome": "ok", "records": 40, "prompt_tokens": 1, "completion_tokens": 1},
            {"usage_source": "engine_final", "outcome": "failover", "records": 2, "prompt_tokens": 1, "completion_tokens": 1},
        ],
    },
}  # fmt: skip
ROW = {
    "gpu_type": "L40", "region": "", "purchase": "spot", "rate_per_gpu_hour": "0.10", "discount": "0.90",
    "speedup": "0.50", "speedup_is": "stated", "speedup_source": "a blog", "effective_rate": "0.20",
    "busy_gpu_hours": "10.00", "busy_cost": "1.00", "loaded_gpu_hours": "20.00", "loaded_cost": "2.00",
    "gpus": 1, "gpus_cost": "74.40", "cheapest": True,
}  # fmt: skip
UNKNOWN = {
    **ROW, "gpu_type": "B200", "discount": None, "speedup": None, "speedup_is": "unknown", "speedup_source": "",
    "effective_rate": None, "busy_gpu_hours": None, "busy_cost": None, "loaded_gpu_hours": None,
    "loaded_cost": None, "gpus": None, "gpus_cost": None, "cheapest": False,
}  # fmt: skip
COMPARED = {
    "month": "2026-10", "currency": "USD", "reference": "A100", "hours": "744.00", "complete": True,
    "actual": {"cost": "40.00", "missing_prices": [], "used": [], "left_out": ["TPU"]},
    "work": {
        "busy_reference_hours": "5.00", "provisioned_reference_hours": "10.00", "utilization": "0.50",
        "uncached_tokens": 1, "cached_tokens": 1, "output_tokens": 1,
    },
    "rows": [ROW, UNKNOWN],
}  # fmt: skip


@pytest.fixture
def bill(tmp_path):
    path = tmp_path / "nov.csv"
    path.write_text("start,end\n")
    return path


def test_a_bill_is_sent_as_it_is(fake, bill):
    query = (
        "file_name=nov.csv&format=focus&map=resource%3DTags.engine&map=gpu_type%3DSku"
        "&rename=gpu_type%3Ap5%3DH100&cost=effective&skip_bad=true"
    )
    fake.answer("POST", f"/finance/v1/bills?{query}", IMPORTED, 201)
    done = fake.florin(
        "cost", "import-bill", str(bill), "--format", "focus", "--map", "resource=Tags.engine",
        "--map", "gpu_type=Sku", "--rename", "gpu_type:p5=H100", "--cost", "effective", "--skip-bad",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert fake.asked[0][2] == b"start,end\n"
    assert done.stdout == (
        "Imported 2 lines of nov.csv: 16.00 GPU-hours, 40.00 USD (already imported: 1 line).\n"
    )
    assert "Identical to lines of another import: 2 lines." in done.stderr
    assert "Skipped, not about GPUs: 1 line, 7.00 USD." in done.stderr
    assert "  line 7: It ends before it begins." in done.stderr
    assert "To undo: florin cost remove-bill 3f2a90c1d4e7" in done.stderr
    assert "taxes, credits and fees that name no GPU type: 3.00 USD" in done.stderr
    assert "2 lines end on the last day of a month" in done.stderr
    assert "--end inclusive" in done.stderr


def test_bad_lines_are_a_table_on_stderr(fake, bill):
    finding = {"code": "bill_line", "message": "It ends before it begins.", "found": "line 7", "expected": ""}
    error = {"message": "1 line is bad.", "type": "", "code": "bill_rejected", "findings": [finding]}
    fake.answer("POST", "/finance/v1/bills?file_name=nov.csv&cost=billed", {"error": error}, 422)
    done = fake.florin("cost", "import-bill", str(bill))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "line 7" in done.stderr


def test_a_file_that_is_not_there_is_a_usage_error(fake, tmp_path):
    done = fake.florin("cost", "import-bill", str(tmp_path / "none.csv"))
    assert (done.exit_code, fake.asked) == (2, [])
    assert "No such file" in done.stderr


def test_a_file_that_is_too_large_is_not_sent(fake, bill):
    with bill.open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    done = fake.florin("cost", "import-bill", str(bill))
    assert (done.exit_code, fake.asked) == (2, [])
    assert "split it" in done.stderr


def test_bills_are_listed_and_removed(fake):
    listed = {
        "source": "3f2a90c1d4e7" + "0" * 52, "file_name": "nov.csv", "imported_at": "i", "lines": 3,
        "from": "f", "to": "t", "gpu_hours": "16.00", "cost": {"EUR": "1.00", "USD": "40.00"},
    }  # fmt: skip
    fake.answer("GET", "/finance/v1/bills", {"data": [listed]})
    fake.answer("DELETE", "/finance/v1/bills/3f2a90c1d4e7", {"source": listed["source"], "lines": 3})
    shown = fake.florin("cost", "bills").stdout.splitlines()
    assert shown[1].split() == [
        "3f2a90c1d4e7", "nov.csv", "3", "f", "t", "16.00", "1.00", "EUR,", "40.00", "USD", "i",
    ]  # fmt: skip
    assert fake.florin("cost", "remove-bill", "3f2a90c1d4e7").stdout == "Removed 3 lines.\n"
    fake.answer("GET", "/finance/v1/bills", {"data": []})
    assert "import-bill" in fake.florin("cost", "bills").stderr


PATH = "/finance/v1/reconciliation?month=2026-11&tolerance=0.1"


def test_a_reconciliation_is_tables_of_causes(fake):
    fake.answer("GET", PATH, RECONCILED)
    done = fake.florin("cost", "reconcile", "--month", "2026-11")
    assert done.exit_code == 0, done.output
    rows = [" ".join(text.split()) for text in done.stdout.splitlines()]
    assert "gpu-a 2026-11-01T00:00:00Z input 1,234,567 1,234,000 +567 +7 2026-11-7e7e7e7e" in rows
    assert "n > 1 (3 records) +560" in rows
    assert "provisioned GPU cost at list price 2.000000 5.000000" in rows
    assert (
        "billed for hours in which the engine was not up, or not registered (2 hours, 2026-11-03T04:00:00Z to "
        "2026-11-03T06:00:00Z) +2.000000 +5.000000 cause identified"
    ) in rows
    assert any(row.startswith("2026-11-0a1b2c3d gpu-a H100 on demand billed for hours") for row in rows)
    assert 'To accept: florin cost accept LINE --reason "…"' in done.stderr
    assert "billed 4.000000 10.000000" in rows
    assert "records with the engine's final counts 42" in rows
    assert "records in quarantine 2 differs" in rows
    assert rows[-1] == "Reconciled: all but at most 0.10 percent of the bill is matched or accepted."
    assert "gpu-b: 5 records from f to t have no engine counters to compare with." in done.stderr
    assert "by the price book" not in done.stdout
    by_engine = fake.florin("cost", "reconcile", "--month", "2026-11", "--accounts").stdout
    assert "gpu-a H100 on demand: billed at 2.50, by the price book 2.75 per GPU-hour" in by_engine


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_is_not_accepted_ends_in_exit_code_1(fake, options):
    body = {**RECONCILED, "ok": False, "unexplained": ["gpu-a counted 7 input tokens too many."]}
    fake.answer("GET", PATH, body)
    done = fake.florin("cost", "reconcile", "--month", "2026-11", *options)
    assert done.exit_code == 1
    if options:
        assert json.loads(done.stdout) == body
    else:
        assert "Not reconciled: gpu-a counted 7 input tokens too many." in done.stderr
        assert "Reconciled" not in done.stdout


def test_a_month_without_bill_and_counters_says_so(fake):
    tokens = {"checks": [], "unsampled": [], "note": None}
    fake.answer("GET", PATH, {**RECONCILED, "bill": None, "tokens": tokens, "complete": False})
    done = fake.florin("cost", "reconcile", "--month", "2026-11")
    for part in ("No bill imported", "No engine counters", "still arriving"):
        assert part in done.stderr


def test_a_comparison_marks_the_cheapest_and_tells_what_is_measured(fake):
    path = "/finance/v1/compare?month=2026-10&gpu_type=L40&gpu_type=B200&reference=A100"
    fake.answer("GET", path, COMPARED)
    done = fake.florin(
        "cost",
        "compare",
        "--month",
        "2026-10",
        "--gpu-type",
        "L40",
        "--gpu-type",
        "B200",
        "--reference",
        "A100",
    )
    assert done.exit_code == 0, done.output
    rows = [" ".join(text.split()) for text in done.stdout.splitlines()]
    assert rows[1] == "L40 spot, -90.0% 0.10 0.500 stated 0.2000 10.00 1.00 20.00 2.00 1 74.40 cheapest"
    assert rows[2] == "B200 spot 0.10 - unknown - - - - - - -"
    assert "Stated speed of L40: a blog." in done.stderr
    said = " ".join(done.stderr.split())
    assert (
        "the work takes 5.00 GPU-hours of an A100, and 10.00 were provisioned (A100-equivalents, 50.0% used). "
        "They cost 40.00 USD." in said
    )
    assert "busy of" not in said
    assert "Usage on TPU is left out: calibrate TPU and A100" in done.stderr
    assert "The speed of B200 is unknown: calibrate B200 and A100" in done.stderr


def test_who_accepted_what_is_shown_beside_the_bill(fake):
    given = {
        "by": "fk1", "at": "2026-12-02T09:00:00Z", "reason": "returned on the 2nd", "gpu_hours": "2.00",
        "cost": "5.00", "current": True,
    }  # fmt: skip
    line = {**LINE, "verdict": "accepted", "accepted": given}
    stale = {**LINE, "line": "2026-11-ffffffff", "accepted": {**given, "cost": "4.00", "current": False}}
    kinds = [{**OF_KIND, "lines": 2}]
    bill = {**RECONCILED["bill"], "lines": kinds, "accounts": [{**ACCOUNT, "lines": [line, stale]}]}
    fake.answer("GET", PATH, {**RECONCILED, "bill": bill})
    done = fake.florin("cost", "reconcile", "--month", "2026-11")
    rows = [" ".join(text.split()) for text in done.stdout.splitlines()]
    assert any(row.endswith("cause identified, 1 of 2 not accepted") for row in rows)
    assert (
        "2026-11-0a1b2c3d gpu-a H100 on demand +2.000000 +5.000000 fk1 2026-12-02T09:00:00Z returned on the 2nd"
    ) in rows
    assert any(row.endswith("returned on the 2nd no longer: the amount changed") for row in rows)


ACCEPTANCES = "/finance/v1/reconciliation/acceptances"


def test_differences_are_accepted_listed_and_withdrawn(fake):
    tokens = sample(AcceptedLine, line="2026-11-7e7e7e7e", kind="tokens", reason="input tokens", tokens=7)
    fake.answer(
        "POST",
        ACCEPTANCES,
        {"month": "2026-11", "reason": "so", "data": [{**LINE, "engine": "gpu-a"}, tokens]},
    )
    done = fake.florin("cost", "accept", "2026-11-0a1b2c3d", "2026-11-7e7e7e7e", "--reason", "so")
    assert done.exit_code == 0, done.output
    assert fake.asked[-1][2] == {
        "lines": ["2026-11-0a1b2c3d", "2026-11-7e7e7e7e"], "month": None, "kind": None, "reason": "so",
    }  # fmt: skip
    assert "Accepted 2026-11-0a1b2c3d: 2.00 GPU-hours, cost 5.00; billed for hours" in done.stdout
    assert "Accepted 2026-11-7e7e7e7e: +7 tokens; input tokens." in done.stdout
    fake.florin("cost", "accept", "--month", "2026-11", "--kind", "rounding", "--reason", "so")
    assert fake.asked[-1][2] == {"lines": [], "month": "2026-11", "kind": "rounding", "reason": "so"}
    withdrawn = sample(WithdrawnAcceptance, line="2026-11-0a1b2c3d", gpu_hours="2.00", cost="5.00")
    fake.answer("POST", f"{ACCEPTANCES}/2026-11-0a1b2c3d/withdraw", withdrawn)
    done = fake.florin("cost", "unaccept", "2026-11-0a1b2c3d", "--reason", "refund")
    assert done.stdout == "2026-11-0a1b2c3d is no longer accepted: 2.00 GPU-hours, cost 5.00.\n"
    listed = {
        "line": "2026-11-0a1b2c3d",
        "accepted": True,
        "by": "fk1",
        "at": "t",
        "reason": "so",
        "cost": "5.00",
    }
    fake.answer("GET", f"{ACCEPTANCES}?month=2026-11", {"data": [{**listed, "gpu_hours": "2.00"}]})
    row = fake.florin("cost", "acceptances", "--month", "2026-11").stdout.splitlines()[1].split()
    assert row == ["2026-11-0a1b2c3d", "accepted", "2.00", "5.00", "-", "fk1", "t", "so"]


TRUE_UP = {
    "month": "2026-11", "currency": "USD", "sources": ["ab"], "books": "closed", "seal": "cd",
    "list_cost": "5.00", "list_amount_cents": 500, "invoice_cost": "4.50", "invoice_amount_cents": 450,
    "lines": [
        {"kind": "credit", "reason": "credits", "tenant": None, "gpu_hours": "0.00", "cost": "-0.50",
         "amount_cents": -50},
    ],
}  # fmt: skip
RECORDED = {**TRUE_UP, "at": "2026-12-02T09:00:00Z", "by": "fk1"}
FOUND = {"month": "2026-11", "preview": TRUE_UP, "blocked": [], "recorded": [], "current": False}
TRUE_UPS = "/finance/v1/true-ups/2026-11"


def test_a_true_up_is_shown_confirmed_and_recorded(fake):
    fake.answer("GET", f"{TRUE_UPS}?tolerance=0.1", FOUND)
    fake.answer("POST", TRUE_UPS, RECORDED, 201)
    unconfirmed = fake.florin("cost", "true-up", "2026-11")
    assert (unconfirmed.exit_code, [asked[0] for asked in fake.asked]) == (2, ["GET"])
    assert "Set the cost of 2026-11 to 4.50 USD? Confirm with --yes" in unconfirmed.stderr
    done = fake.florin("cost", "true-up", "2026-11", "--invoice", "4.50", "--yes")
    assert done.exit_code == 0, done.output
    assert fake.asked[-1][2] == {"invoice": "4.50", "tolerance": "0.1"}
    rows = [" ".join(text.split()) for text in done.stdout.splitlines()]
    assert rows[1:] == [
        "provisioned GPU cost at list price (closed) 5.00", "credits 0.00 -0.50", "invoice 4.50",
        "2026-11 cost 4.50 USD, as invoiced. The differences belong to no tenant.",
    ]  # fmt: skip


def test_a_dry_run_changes_nothing_and_tells_what_is_recorded(fake):
    fake.answer("GET", f"{TRUE_UPS}?tolerance=0.1", {**FOUND, "recorded": [RECORDED, RECORDED]})
    done = fake.florin("cost", "true-up", "2026-11", "--dry-run")
    assert (done.exit_code, len(fake.asked)) == (0, 1)
    assert "Recorded at 2026-12-02T09:00:00Z by fk1: 4.50 USD (out of date)." in done.stderr
    assert "(superseded)" in done.stderr
    fake.answer("GET", f"{TRUE_UPS}?tolerance=0.1", {**FOUND, "preview": None, "blocked": ["Not over."]})
    blocked = fake.florin("cost", "true-up", "2026-11", "--yes")
    assert (blocked.exit_code, len(fake.asked)) == (1, 2)
    assert "Cannot be trued up: Not over." in blocked.stderr


COMMITMENT = {
    "id": 3, "gpu_type": "H100", "region": "", "gpus": 8, "valid_from": "2026-10-01T00:00:00Z",
    "valid_to": "2027-10-01T00:00:00Z", "rate_per_gpu_hour": "1.80", "upfront": "9000.00", "currency": "USD",
    "description": "one year", "recorded_at": "t", "recorded_by": "fk1", "withdrawn_at": None,
    "withdrawn_by": None, "withdrawn_reason": None,
}  # fmt: skip
USED = {
    "month": "2026-10", "from": "f", "to": "t", "currency": "USD", "complete": True,
    "rows": [
        {
            "id": 3, "description": "one year", "gpu_type": "H100", "region": "", "gpus": 8,
            "committed_gpu_hours": "5952.00", "used_gpu_hours": "2976.00", "unused_gpu_hours": "2976.00",
            "utilization": "0.50", "hourly_cost": "10713.60", "amortized_upfront": "764.383561",
            "net_cost": "11477.983561", "unused_cost": "5738.991780", "list_cost": None, "savings": None,
        }
    ],
    "totals": {"net_cost": "11477.983561", "unused_cost": "5738.991780"},
    "gpu_types": [
        {
            "gpu_type": "H100", "provisioned_gpu_hours": "2976.00", "covered_gpu_hours": "2976.00",
            "coverage": "1.00", "reserved_without_commitment_gpu_hours": "0.00", "spot_gpu_hours": "0.00",
            "on_demand_gpu_hours": "0.00",
        }
    ],
    "spot": [
        {"gpu_type": "L40", "region": "eu", "gpu_hours": "10.00", "cost": "1.00", "list_cost": "9.00",
         "savings": "8.00"}
    ],
}  # fmt: skip


def test_commitments_are_added_listed_and_withdrawn(fake):
    path = "/finance/v1/commitments"
    fake.answer("POST", path, COMMITMENT, 201)
    done = fake.florin(
        "commitment", "add", "--gpu-type", "H100", "--gpus", "8", "--from", "2026-10-01", "--to", "2027-10-01",
        "--rate", "1.80", "--upfront", "9000",
    )  # fmt: skip
    assert done.stdout == (
        "Commitment 3: 8 H100 at 1.80 USD per GPU-hour and 9000.00 upfront, from 2026-10-01T00:00:00Z to "
        "2027-10-01T00:00:00Z.\n"
    )
    fake.answer("GET", path, {"data": [COMMITMENT]})
    assert "one year" in fake.florin("commitment", "list").stdout
    fake.answer("POST", f"{path}/3/withdraw", {**COMMITMENT, "withdrawn_reason": "twice"})
    done = fake.florin("commitment", "withdraw", "3", "--reason", "twice")
    assert done.stdout == "Commitment 3 is withdrawn: twice\n"


def test_how_commitments_were_used(fake):
    fake.answer("GET", "/finance/v1/commitments/report?month=2026-10", USED)
    done = fake.florin("cost", "commitments", "--month", "2026-10")
    assert done.exit_code == 0, done.output
    rows = [" ".join(text.split()) for text in done.stdout.splitlines()]
    assert rows[1] == "3 one year 8 x H100 - 5,952.000 2,976.000 50.0% 11,477.98 5,738.99 - -"
    assert "Commitments cost 11,477.98 USD; 5,738.99 of it paid for capacity that no engine used." in rows
    assert "H100 2,976.000 2,976.000 100.0% 0.000 0.000 0.000" in rows
    assert "L40 eu 10.000 1.00 9.00 8.00" in rows
