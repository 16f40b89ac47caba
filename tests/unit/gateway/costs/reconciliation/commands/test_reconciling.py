"""florin cost import-bill, bills, remove-bill, reconcile, accept, true-up, commitments. tests/integration/test_reconciliation.py has
them, and compare, against a real gateway."""

import pytest

from gateway.costs.reconciliation.schemas.reconciliation import AcceptedLine, WithdrawnAcceptance
from tests.support.command_cases import Case, check
from tests.support.samples import sample

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

SOURCE = "3f2a90c1d4e7" + "0" * 52
IMPORTED = {
    "source": SOURCE, "file_name": "nov.csv", "format": "csv", "lines": 3, "new": 2,
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
TOKENS = {
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
}  # fmt: skip
BILL = {
    "currency": "USD", "billed_gpu_hours": "4.00", "provisioned_gpu_hours": "2.00",
    "attributed_gpu_hours": "1.00", "difference_gpu_hours": "2.00", "billed_cost": "10.00",
    "own_cost": "5.00", "difference_cost": "5.00", "exchange_rates": [], "lines": [OF_KIND], "unexplained_gpu_hours": "0.00",
    "unexplained_cost": "0.00", "verdict": "identified", "unaccepted_gpu_hours": "2.00",
    "unaccepted_cost": "5.00", "accounts": [ACCOUNT],
}  # fmt: skip
RECORDS = {"usage_source": "engine_final", "prompt_tokens": 1, "completion_tokens": 1}
RECONCILED = {
    "month": "2026-11", "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z",
    "tolerance_percent": "0.10", "ok": True, "unexplained": [], "complete": True, "tokens": TOKENS, "bill": BILL,
    "completeness": {
        "imbalances": [], "hours_pending": 0, "quarantined": {"differs": 2}, "delivered_twice": 0,
        "implausible": 0, "set_aside": [],
        "records": [
            {**RECORDS, "outcome": "ok", "records": 40}, {**RECORDS, "outcome": "failover", "records": 2},
        ],
    },
}  # fmt: skip
UNEXPLAINED = {**RECONCILED, "ok": False, "unexplained": ["gpu-a counted 7 input tokens too many."]}
GIVEN = {
    "by": "fk1", "recorded_at": "2026-12-02T09:00:00Z", "reason": "returned", "gpu_hours": "2.00", "cost": "5.00", "current": True,
}  # fmt: skip
ACCEPTED = [
    {**LINE, "verdict": "accepted", "accepted": GIVEN},
    {**LINE, "line": "2026-11-ffffffff", "accepted": {**GIVEN, "cost": "4.00", "current": False}},
]
TRUE_UP = {
    "month": "2026-11", "currency": "USD", "sources": ["ab"], "books": "closed", "seal": "cd",
    "list_cost": "5.00", "list_amount_cents": 500, "invoice_cost": "4.50", "invoice_amount_cents": 450,
    "lines": [
        {"kind": "credit", "reason": "credits", "tenant": None, "gpu_hours": "0.00", "cost": "-0.50",
         "amount_cents": -50},
    ],
}  # fmt: skip
RECORDED = {**TRUE_UP, "recorded_at": "2026-12-02T09:00:00Z", "by": "fk1"}
FOUND = {"month": "2026-11", "preview": TRUE_UP, "blocked": [], "recorded": [], "current": False}
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
    "totals": {"net_cost": "11477.983561", "unused_cost": "5738.991780"}, "gpu_types": [], "spot": [],
}  # fmt: skip
PATH = "GET /finance/v1/reconciliation?month=2026-11&tolerance=0.1"
RECONCILE = "cost reconcile --month 2026-11"
ACCEPTANCES = "/finance/v1/reconciliation/acceptances"
TRUE_UPS = "/finance/v1/true-ups/2026-11"
COMMITMENTS = "/finance/v1/commitments"
CASES = (
    Case(
        "cost bills",
        {"GET /finance/v1/bills": {"data": [
            {"source": SOURCE, "file_name": "nov.csv", "imported_at": "i", "lines": 3, "from": "f", "to": "t",
             "gpu_hours": "16.00", "cost": {"EUR": "1.00", "USD": "40.00"}},
        ]}},
        ("3f2a90c1d4e7 nov.csv 3 f t 16.00 1.00 EUR, 40.00 USD i",),
    ),
    Case(
        "cost remove-bill 3f2a90c1d4e7",
        {"DELETE /finance/v1/bills/3f2a90c1d4e7": {"source": SOURCE, "lines": 3}}, ("Removed 3 lines.",), sends=None,
    ),
    Case(
        RECONCILE, {PATH: RECONCILED},
        (
            "gpu-a 2026-11-01T00:00:00Z input 1,234,567 1,234,000 +567 +7 2026-11-7e7e7e7e", "n > 1 (3 records) +560",
            "provisioned GPU cost at list price 2.000000 5.000000", "billed 4.000000 10.000000",
            "not registered (2 hours, 2026-11-03T04:00:00Z to 2026-11-03T06:00:00Z) +2.000000 +5.000000 cause identified",
            "2026-11-0a1b2c3d gpu-a H100 on demand billed for hours", "records with the engine's final counts 42",
            "records in quarantine 2 differs", "Reconciled: all but at most 0.10 percent of the bill is matched or accepted.",
        ),
        ('To accept: florin cost accept LINE --reason "…"', "gpu-b: no engine counters to compare 5 records with, from f to t."),
    ),
    Case(f"{RECONCILE} --accounts", {PATH: RECONCILED}, ("billed at 2.50, by the price book 2.75 per GPU-hour",)),
    Case(RECONCILE, {PATH: UNEXPLAINED}, notes=("Not reconciled: gpu-a counted 7 input",), document=UNEXPLAINED, code=1),
    Case(
        RECONCILE, {PATH: {**RECONCILED, "bill": None, "tokens": {"checks": [], "unsampled": [], "note": None}, "complete": False}},
        notes=("No bill imported", "No engine counters", "still arriving"),
    ),
    Case(
        RECONCILE, {PATH: {**RECONCILED, "bill": {**BILL, "lines": [{**OF_KIND, "lines": 2}], "accounts": [{**ACCOUNT, "lines": ACCEPTED}]}}},
        ("cause identified, 1 of 2 not accepted", "+2.000000 +5.000000 fk1 2026-12-02T09:00:00Z returned",
         "returned no longer: the amount changed"),
    ),
    Case(
        "cost accept 2026-11-0a1b2c3d 2026-11-7e7e7e7e --reason so",
        {f"POST {ACCEPTANCES}": {"month": "2026-11", "reason": "so", "data": [
            {**LINE, "engine": "gpu-a"},
            sample(AcceptedLine, line="2026-11-7e7e7e7e", kind="tokens", reason="input tokens", tokens=7),
        ]}},
        ("Accepted 2026-11-0a1b2c3d: 2.00 GPU-hours, cost 5.00; billed for hours",
         "Accepted 2026-11-7e7e7e7e: +7 tokens; input tokens."),
        sends={"lines": ["2026-11-0a1b2c3d", "2026-11-7e7e7e7e"], "month": None, "kind": None, "reason": "so"},
    ),
    Case(
        "cost withdraw-acceptance 2026-11-0a1b2c3d --reason refund",
        {f"POST {ACCEPTANCES}/2026-11-0a1b2c3d/withdraw": sample(WithdrawnAcceptance, line="2026-11-0a1b2c3d", gpu_hours="2.00", cost="5.00")},
        ("2026-11-0a1b2c3d is no longer accepted: 2.00 GPU-hours, cost 5.00.",), sends={"reason": "refund"},
    ),
    Case(
        "cost acceptances --month 2026-11", {f"GET {ACCEPTANCES}?month=2026-11": {"data": [{
            "line": "2026-11-0a1b2c3d", "accepted": True, "by": "fk1", "recorded_at": "t", "reason": "so", "cost": "5.00", "gpu_hours": "2.00",
        }]}},
        ("2026-11-0a1b2c3d accepted 2.00 5.00 - fk1 t so",),
    ),
    Case("cost acceptances --month 2026-10", {f"GET {ACCEPTANCES}?month=2026-10": {"data": []}}, notes=("Nothing was accepted.",)),
    Case("cost bills", {"GET /finance/v1/bills": {"data": []}}, notes=("No bills yet: florin cost import-bill FILE",)),
    Case("cost import-bill /nowhere.csv", notes=("/nowhere.csv",), code=2),
    Case("cost true-up 2026-11", {f"GET {TRUE_UPS}?tolerance=0.1": FOUND}, notes=("Set the cost of 2026-11 to 4.50 USD? Confirm with --yes",), code=2),
    Case(
        "cost true-up 2026-11 --invoice 4.50 --yes", {f"GET {TRUE_UPS}?tolerance=0.1": FOUND, f"POST {TRUE_UPS}": (201, RECORDED)},
        ("provisioned GPU cost at list price (closed) 5.00 credits 0.00 -0.50 invoice 4.50 2026-11 cost 4.50 USD, as invoiced.",),
        sends={"invoice": "4.50", "tolerance": "0.1"},
    ),
    Case(
        "cost true-up 2026-11 --dry-run", {f"GET {TRUE_UPS}?tolerance=0.1": {**FOUND, "recorded": [RECORDED, RECORDED]}},
        notes=("Recorded at 2026-12-02T09:00:00Z by fk1: 4.50 USD (out of date).", "(superseded)"),
    ),
    Case(
        "cost true-up 2026-11 --yes", {f"GET {TRUE_UPS}?tolerance=0.1": {**FOUND, "preview": None, "blocked": ["Not over."]}},
        notes=("Cannot be trued up: Not over.",), code=1,
    ),
    Case(
        "commitment add --gpu-type H100 --gpus 8 --from 2026-10-01 --to 2027-10-01 --rate 1.80 --upfront 9000",
        {f"POST {COMMITMENTS}": (201, COMMITMENT)},
        ("Commitment 3: 8 H100 at 1.80 USD per GPU-hour and 9000.00 upfront, from 2026-10-01T00:00:00Z to 2027-10-01T00:00:00Z.",),
        sends={"gpu_type": "H100", "gpus": 8, "valid_from": "2026-10-01", "valid_to": "2027-10-01", "rate_per_gpu_hour": "1.80", "upfront": "9000"},
    ),
    Case("commitment list", {f"GET {COMMITMENTS}": {"data": [COMMITMENT]}}, ("one year",)),
    Case(
        "commitment withdraw 3 --reason twice", {f"POST {COMMITMENTS}/3/withdraw": {**COMMITMENT, "withdrawn_reason": "twice"}},
        ("Commitment 3 is withdrawn: twice",), sends={"reason": "twice"},
    ),
    Case(
        "commitment report --month 2026-10", {f"GET {COMMITMENTS}/report?month=2026-10": USED},
        ("3 one year 8 x H100 - 5,952.000 2,976.000 50.0% 11,477.98 5,738.99 - -",
         "Commitments cost 11,477.98 USD; 5,738.99 of it paid for capacity that no engine used."),
    ),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)


def test_a_bill_is_sent_as_it_is(fake, tmp_path):
    bill = tmp_path / "nov.csv"
    bill.write_text("start,end\n")
    query = (
        "file_name=nov.csv&format=focus&map=resource%3DTags.engine&map=gpu_type%3DSku"
        "&rename=gpu_type%3Ap5%3DH100&cost=effective&skip_bad=true"
    )
    words = (
        f"cost import-bill {bill} --format focus --map resource=Tags.engine --map gpu_type=Sku --rename gpu_type:p5=H100"
        " --cost effective --skip-bad"
    )
    remarks = (
        "Identical to lines of another import: 2 lines.",
        "Skipped, not about GPUs: 1 line, 7.00 USD.",
        "line 7: It ends before it begins.",
        "To undo: florin cost remove-bill 3f2a90c1d4e7",
        "taxes, credits and fees that name no GPU type: 3.00 USD",
        "2 lines end on the last day of a month",
    )
    imported = "Imported 2 lines of nov.csv: 16.00 GPU-hours, 40.00 USD (already imported: 1 line)."
    answers = {f"POST /finance/v1/bills?{query}": (201, IMPORTED)}
    check(fake, Case(words, answers, (imported,), remarks, sends=b"start,end\n"))
    finding = {"code": "bill_line", "message": "It ends before it begins.", "found": "line 7", "expected": ""}
    error = {"message": "1 line is bad.", "type": "", "code": "bill_rejected", "findings": [finding]}
    refused = {"POST /finance/v1/bills?file_name=nov.csv&cost=billed": (422, {"error": error})}
    check(fake, Case(f"cost import-bill {bill}", refused, notes=("line 7",), sends=b"start,end\n", code=1))


def test_a_file_that_is_too_large_is_not_sent(fake, tmp_path):
    bill = tmp_path / "nov.csv"
    with bill.open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    done = fake.florin("cost", "import-bill", str(bill))
    assert (done.exit_code, fake.asked, "split it" in done.stderr) == (2, [], True)


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
