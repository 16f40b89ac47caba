"""florin cost periods, close, proof and verify: what they ask, print, and how they end."""

import json

import pytest

from gateway.costs.closing.documents import (
    Charges,
    CorrectionCharge,
    MinimumCharge,
    Part,
    ResidencyCharge,
    StatementLine,
    TokenCharge,
    Totals,
)
from gateway.costs.closing.schemas import ClosingPreview, Month, PreviewedStatement, StatementSums
from gateway.costs.merkle import header_hash
from gateway.costs.proofs.proof import prove, tenants_root
from gateway.schemas.finance import UsageRecord
from tests.property.test_merkle import statement
from tests.support.command_cases import Case, check
from tests.support.samples import sample
from tests.unit.gateway.metering.make import record

PATH = "/finance/v1/periods"
MONTH, CLOSE, SEAL = f"GET {PATH}/2026-11", f"POST {PATH}/2026-11/close", "ab" * 32
TOTALS = sample(
    Totals, amount_cents=374, billed=sample(Part, amount_cents=249), retry_waste=sample(Part, amount_cents=25),
    unallocated=sample(Part, amount_cents=100),
)  # fmt: skip
OPEN = sample(Month, month="2026-11", state="open", start="2026-11-01", to="2026-12-01", can_be_closed=True)
SUMS = sample(StatementSums, tenant="acme", records=3, seal="cd" * 32, cost="2.49", amount_cents=249)
CLOSED = OPEN | {
    "state": "closed", "can_be_closed": False, "closed_at": "2026-12-01T01:00:00Z", "seal": SEAL,
    "previous_seal": None, "currency": "USD", "policy": "even", "records": 3, "tenants": 1,
    "missing_prices": ["L40 on_demand"], "totals": TOTALS, "already": False, "charged_cents": 310, "statements": [SUMS],
}  # fmt: skip  # as the API shows it
LINE = sample(
    StatementLine, kind="usage", adapter="acme/x", gpu_type="H100", purchase="on_demand", requests=3,
    nano_gpu_hours=10**9, amount_cents=249,
)  # fmt: skip
LATE = {
    **LINE,
    "kind": "allocated",
    "adapter": "",
    "amount_cents": 0,
    "correction": True,
    "corrects": "2026-09",
}
STATEMENT = sample(PreviewedStatement, tenant="acme", amount_cents=249, lines=[LINE, LATE])
CHARGES = sample(Charges, card="standard", amount_cents=4999, lines=[
    sample(TokenCharge, kind="input", tokens=5_000_000, free_tokens=1_000_000, per_million="0.60"),
    sample(ResidencyCharge, kind="residency", hours="1488.123", per_hour="0.0125"),
    sample(MinimumCharge, kind="minimum", monthly_minimum="50.00"),
    sample(CorrectionCharge, kind="correction", month="2026-10"),
])  # fmt: skip  # a line each
PREVIEW = sample(
    ClosingPreview, month="2026-11", state="open", policy="fixed", shares={"acme": 3, "bolt": 1}, own={"corgi": "none"},
    standing=True, currency="USD", totals=TOTALS, statements=[STATEMENT],
)  # fmt: skip
PREVIEWED = {MONTH: OPEN, f"{MONTH}/preview": PREVIEW}
BLOCKED = PREVIEW | {"obstacles": ["2026-10 has usage and is not closed; close it first."]}
UNACCEPTED = "74.73 USD, of 3032.88 billed, not accepted: billed for hours in which the engine was down."

RIGHT = {"month": "2026-11", "seal": SEAL, "ok": True, "checks": [
    {"name": "seal", "ok": True, "detail": SEAL}, {"name": "records", "ok": None, "detail": "Cannot: pruned."},
]}  # fmt: skip
WRONG = RIGHT | {
    "ok": False,
    "checks": [{"name": "records", "ok": False, "detail": "acme: a record was changed"}],
}
CHAIN = {"entries": 7, "hash": "cd" * 32, "ok": True, "checks": [
    {"name": "chain", "ok": True, "detail": "7 entries follow each other."},
]}  # fmt: skip  # one check a line
REWRITTEN = CHAIN | {
    "ok": False,
    "checks": [{"name": "closed months", "ok": False, "detail": "2026-11 was changed"}],
}
LISTED = {f"GET {PATH}": {"data": [CLOSED, OPEN | {"month": "2026-12"}]}}
VERIFIED = LISTED | {f"{MONTH}/verify": RIGHT, "GET /finance/v1/chain/verify": CHAIN}
FAILED = VERIFIED | {f"{MONTH}/verify": WRONG}
CASES = (
    Case("cost periods", LISTED, (f"2026-11 closed 3 2.49 USD 3.10 USD 2026-12-01T01:00:00Z {SEAL}", "open, can be closed")),
    Case(
        "cost close 2026-11 --policy fixed --share acme=60 --share b=40 --yes",
        {MONTH: OPEN, f"{MONTH}/preview?policy=fixed&shares=acme%3D60%2Cb%3D40": PREVIEW, CLOSE: CLOSED},
        (SEAL, "cd" * 32, "2.49 USD", "3.10 USD", "0.25 USD", "1.00 USD", "3.74 USD"),
        ("Cost that no customer bears: retries 0.25 USD, unused time 1.00 USD.", "charged nothing: L40 on_demand",
         "fixed (acme 75 %, bolt 25 %); none for corgi"),
        sends={"policy": "fixed", "shares": {"acme": 60, "b": 40}, "shares_total": None},
    ),
    # `echo n | florin cost close` closed the month for good.
    Case("cost close 2026-11", PREVIEWED, notes=("--yes", "none for corgi: 2.49 USD for 1 customer?"), code=2),
    Case(
        "cost close 2026-11", PREVIEWED | {f"{MONTH}/preview": PREVIEW | {"unaccepted": [UNACCEPTED]}},
        notes=(f"Not reconciled: {UNACCEPTED}", "with the above of its bill not accepted: 2.49 USD for 1 customer?"), code=2,
    ),
    Case(
        "cost close 2026-11 --dry-run", {f"{MONTH}/preview": BLOCKED},
        ("acme acme/x H100 on demand 3 1.000 2.49 USD", "share of unused time, correction of 2026-09"),
        ("In the way: 2026-10 has usage",), document=BLOCKED,
    ),
    Case(
        "cost close 2026-11 --dry-run",
        {f"{MONTH}/preview": PREVIEW | {"statements": [STATEMENT | {"charges": CHARGES}]}},
        ("5,000,000 input tokens less 1,000,000 free at 0.60 per million", "1,488.123 adapter-hours at 0.0125",
         "difference to the minimum of 50.00", "statement, by rate card"),
    ),
    Case("cost verify", VERIFIED, ("7 entries follow each other.", "No check failed. Not checked: records.")),
    Case("cost verify", VERIFIED | {f"{MONTH}/verify": RIGHT | {"checks": RIGHT["checks"][:1]}}, ("All checks passed.",)),
    Case("cost verify --seal ab", code=2),
    Case("cost close 2026-11", {MONTH: CLOSED, CLOSE: CLOSED | {"already": True}}, notes=("was already closed",), sends={}),
    Case("cost verify --month 2026-11", FAILED, ("FAILED", "acme: a record was changed"), code=1),
    Case("cost verify", FAILED, code=1, document={"ok": False, "data": [WRONG], "chain": CHAIN}),
    Case(
        "cost verify", {f"GET {PATH}": {"data": [OPEN]}, "GET /finance/v1/chain/verify": REWRITTEN},
        ("Changed since it was recorded: ledger.",), code=1,
    ),
    Case(f"cost verify --month 2026-11 --seal {'AB' * 32}", VERIFIED),
    Case(f"cost verify --month 2026-11 --seal {'12' * 32}", VERIFIED, ("seal expected",), code=1),
    Case("cost verify --quick", VERIFIED | {f"{MONTH}/verify?quick=true": WRONG}, code=1),
    Case("cost verify --proof x --quick", code=2),
    Case("cost verify --records x", code=2),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)


def test_a_closing_that_takes_long_is_asked_for_again(fake):
    fake.answer("GET", f"{PATH}/2026-11", CLOSED)
    answers = iter([OPEN | {"state": "closing"}, CLOSED | {"already": True}])

    class Changing(dict):
        def get(self, key, default=None):
            return (200, next(answers)) if key[0] == "POST" else super().get(key, default)

    fake.answers = Changing(fake.answers)
    out = fake.florin("cost", "close", "2026-11", "--json")
    assert (out.exit_code, json.loads(out.stdout)["already"]) == (0, False)
    assert [method for method, *_ in fake.asked] == ["GET", "POST", "POST"]


def test_an_anchor_is_a_line_to_be_kept_elsewhere_and_checked_later(fake, tmp_path):
    anchor = {"entries": 7, "hash": "cd" * 32, "exported_at": "2026-11-27T00:00:00Z"}
    fake.answer("GET", "/finance/v1/chain", anchor)
    out = fake.florin("cost", "anchor")
    assert json.loads(out.stdout) == anchor
    kept = tmp_path / "anchors.jsonl"
    kept.write_text(out.stdout.replace("cd", "CD") + json.dumps(anchor | {"entries": 5}) + "\n")
    query = "&".join(f"anchor={number}%3A{'cd' * 32}" for number in (7, 5))
    answers = {**VERIFIED, f"GET /finance/v1/chain/verify?{query}": REWRITTEN}
    check(fake, Case(f"cost verify --anchor {kept}", answers, code=1))
    for text in ("", "3", '{"entries": "x", "hash": "ab"}'):
        kept.write_text(text)
        assert fake.florin("cost", "verify", "--anchor", str(kept)).exit_code == 2


@pytest.fixture
def proved():
    records = [record(f"r{n}", ended=n)._asdict() for n in range(3)]
    for made in records:
        del made["seq"], made["seen"]
    statements = [statement("acme", records), statement("bolt", [])]
    header = {"month": "2026-11", "tenants_root": tenants_root(statements)}
    return prove(header, header_hash(header).hex(), statements, "acme"), records


def test_a_proof_is_fetched_with_its_records_and_checked_without_a_gateway(fake, florin, proved, tmp_path):
    proof, records = proved
    fake.answer("GET", f"{PATH}/2026-11/proof?tenant=acme", proof)
    fake.answer("GET", f"{PATH}/2026-11/records?tenant=acme", {"data": records[:2], "next": "x="})
    fake.answer("GET", f"{PATH}/2026-11/records?tenant=acme&after=x%3D", {"data": records[2:], "next": None})
    lines = tmp_path / "records.jsonl"
    out = fake.florin("cost", "proof", "--tenant", "acme", "--month", "2026-11", "--records", str(lines))
    assert json.loads(out.stdout) == proof
    (tmp_path / "proof.json").write_text(out.stdout)
    args = (
        "cost",
        "verify",
        "--proof",
        str(tmp_path / "proof.json"),
        "--seal",
        proof["seal"],
        "--records",
        str(lines),
    )
    checked = florin(*args)
    assert checked.exit_code == 0
    assert "covers the 3 records given and no others" in checked.stdout
    changed = lines.read_text().replace('"prompt_tokens": 10', '"prompt_tokens": 9', 1)
    for text, code in (
        (json.dumps(records, indent=1), 0),
        (json.dumps({"data": records}), 0),
        (changed, 1),
        ("3", 2),
        ('{"id": 1}', 2),
    ):
        lines.write_text(text)
        assert florin(*args).exit_code == code, text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"root": 3}', "é"])
def test_a_file_that_is_no_proof(florin, tmp_path, text):
    path = tmp_path / "proof.json"
    path.write_text(text, encoding="latin-1")
    assert florin("cost", "verify", "--proof", str(path)).exit_code == 2


def test_all_records_of_a_month_are_one_file(fake, tmp_path):
    path = f"{PATH}/2026-11/records"
    fake.answer("GET", path, {"data": [sample(UsageRecord, id=name) for name in "aü"], "next": "more"})
    fake.answer("GET", f"{path}?after=more", {"data": [sample(UsageRecord, id="c")], "next": None})
    place = tmp_path / "records.jsonl"
    out = fake.florin("cost", "records", "--month", "2026-11", "-o", str(place))
    assert (out.exit_code, "3 records" in out.stderr) == (0, True)
    assert [json.loads(line)["id"] for line in place.read_text("utf-8").splitlines()] == ["a", "ü", "c"]
