"""florin cost periods, close, proof and verify: what they ask, print, and how they end."""

from __future__ import annotations

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
from tests.support.samples import sample
from tests.unit.gateway.metering.make import record

PATH = "/finance/v1/periods"
TOTALS = sample(
    Totals,
    amount_cents=374,
    billed=sample(Part, amount_cents=249),
    retry_waste=sample(Part, amount_cents=25),
    unallocated=sample(Part, amount_cents=100),
)
OPEN = sample(Month, month="2026-11", state="open", start="2026-11-01", to="2026-12-01", can_be_closed=True)
CLOSED = OPEN | {
    "state": "closed", "can_be_closed": False, "closed_at": "2026-12-01T01:00:00Z", "seal": "ab" * 32,
    "previous_seal": None, "currency": "USD", "policy": "even", "records": 3, "tenants": 1,
    "missing_prices": ["L40 on_demand"], "totals": TOTALS, "already": False, "charged_cents": 310,
    "statements": [
        sample(StatementSums, tenant="acme", records=3, seal="cd" * 32, nano_gpu_hours=10**9,
               allocated_nano_gpu_hours=5 * 10**8, cost="2.49", amount_cents=249)
    ],
}  # fmt: skip  # as the API shows it
LINE = sample(
    StatementLine,
    kind="usage",
    adapter="acme/x",
    gpu_type="H100",
    purchase="on_demand",
    requests=3,
    nano_gpu_hours=10**9,
    amount_cents=249,
)
STATEMENT = sample(
    PreviewedStatement,
    tenant="acme",
    amount_cents=249,
    lines=[
        LINE,
        {**LINE, "kind": "retry_waste", "amount_cents": None},
        {
            **LINE,
            "kind": "allocated",
            "adapter": "",
            "amount_cents": 0,
            "correction": True,
            "corrects": "2026-09",
        },
    ],
)
PREVIEW = sample(
    ClosingPreview,
    month="2026-11",
    state="open",
    policy="fixed",
    shares={"acme": 3, "bolt": 1},
    own={"corgi": "none"},
    standing=True,
    currency="USD",
    totals=TOTALS,
    statements=[STATEMENT],
)


def test_months_are_listed(fake):
    fake.answer("GET", PATH, {"data": [CLOSED, OPEN | {"month": "2026-12"}]})
    out = fake.florin("cost", "periods")
    assert out.exit_code == 0
    first, second = out.stdout.splitlines()[1:]
    assert first.split() == [
        "2026-11", "closed", "3", "2.49", "USD", "3.10", "USD", "2026-12-01T01:00:00Z", "ab" * 32,
    ]  # fmt: skip
    assert "2026-12" in second
    assert "open, can be closed" in second


def test_a_month_is_closed(fake):
    fake.answer("GET", f"{PATH}/2026-11", OPEN)
    fake.answer("GET", f"{PATH}/2026-11/preview?policy=fixed&shares=acme%3D60%2Cb%3D40", PREVIEW)
    fake.answer("POST", f"{PATH}/2026-11/close", CLOSED)
    out = fake.florin(
        "cost", "close", "2026-11", "--policy", "fixed", "--share", "acme=60", "--share", "b=40", "--yes"
    )
    assert out.exit_code == 0
    assert fake.asked[-1][2] == {
        "policy": "fixed", "shares": {"acme": 60, "b": 40}, "shares_total": None,
    }  # fmt: skip
    assert "Cost that no customer bears: retries 0.25 USD, unused time 1.00 USD." in out.stderr
    assert "fixed (acme 75 %, bolt 25 %); none for corgi" in out.stderr
    assert "charged nothing: L40 on_demand" in out.stderr
    for part in ("ab" * 32, "cd" * 32, "2.49 USD", "3.10 USD", "0.25 USD", "1.00 USD", "3.74 USD"):
        assert part in out.stdout


def test_a_closing_that_takes_long_is_asked_for_again(fake):
    fake.answer("GET", f"{PATH}/2026-11", CLOSED)
    answers = iter([OPEN | {"state": "closing"}, CLOSED | {"already": True}])

    class Changing(dict):
        def get(self, key, default=None):
            return (200, next(answers)) if key[0] == "POST" else super().get(key, default)

    fake.answers = Changing(fake.answers)
    out = fake.florin("cost", "close", "2026-11", "--json")
    assert (out.exit_code, json.loads(out.stdout)["already"]) == (0, False)
    assert [asked[:2] for asked in fake.asked] == [("GET", f"{PATH}/2026-11")] + [
        ("POST", f"{PATH}/2026-11/close")
    ] * 2


def test_closing_again_says_so(fake):
    fake.answer("GET", f"{PATH}/2026-11", CLOSED)
    fake.answer("POST", f"{PATH}/2026-11/close", CLOSED | {"already": True})
    out = fake.florin("cost", "close", "2026-11")
    assert "was already closed" in out.stderr


def test_a_refusal_is_a_sentence(fake):
    fake.answer("GET", f"{PATH}/2026-11", OPEN)
    fake.answer("GET", f"{PATH}/2026-11/preview", PREVIEW)
    error = {"message": "2026-10 has usage and is not closed.", "code": "cannot_close"}
    fake.answer("POST", f"{PATH}/2026-11/close", {"error": error}, status=409)
    out = fake.florin("cost", "close", "2026-11", "--yes")
    assert (out.exit_code, out.stderr.splitlines()[-1]) == (1, "florin: 2026-10 has usage and is not closed.")


def test_without_a_terminal_nothing_is_closed_unless_yes_is_said(fake):
    """`echo n | florin cost close` closed the month for good."""
    fake.answer("GET", f"{PATH}/2026-11", OPEN)
    fake.answer("GET", f"{PATH}/2026-11/preview", PREVIEW)
    fake.answer("POST", f"{PATH}/2026-11/close", CLOSED)
    out = fake.florin("cost", "close", "2026-11")
    assert out.exit_code == 2
    assert "--yes" in out.stderr
    assert "policy fixed (acme 75 %, bolt 25 %); none for corgi: 2.49 USD for 1 customer?" in out.stderr
    assert [method for method, *_ in fake.asked] == ["GET", "GET"]


def test_a_closing_is_previewed_and_nothing_is_closed(fake):
    blocked = PREVIEW | {"obstacles": ["2026-10 has usage and is not closed; close it first."]}
    fake.answer("GET", f"{PATH}/2026-11/preview", blocked)
    out = fake.florin("cost", "close", "2026-11", "--dry-run")
    assert out.exit_code == 0
    lines = out.stdout.splitlines()
    assert lines[1].split() == ["acme", "acme/x", "H100", "on", "demand", "3", "1.000", "2.49", "USD"]
    assert "share of unused time, correction of 2026-09" in lines[2]
    assert lines[3].split()[:2] == ["acme", "statement"]
    assert "In the way: 2026-10 has usage" in out.stderr
    assert json.loads(fake.florin("cost", "close", "2026-11", "--dry-run", "--json").stdout) == blocked
    assert {method for method, *_ in fake.asked} == {"GET"}


def test_whoever_closes_hears_what_of_the_bill_is_not_accepted(fake):
    said = "74.73 USD, of 3032.88 billed, not accepted: billed for hours in which the engine was down."
    fake.answer("GET", f"{PATH}/2026-11", OPEN)
    fake.answer("GET", f"{PATH}/2026-11/preview", PREVIEW | {"unaccepted": [said]})
    out = fake.florin("cost", "close", "2026-11")
    assert out.exit_code == 2
    assert f"Not reconciled: {said}" in out.stderr
    assert "with the above of its bill not accepted: 2.49 USD for 1 customer?" in out.stderr
    assert {method for method, *_ in fake.asked} == {"GET"}
    assert f"Not reconciled: {said}" in fake.florin("cost", "close", "2026-11", "--dry-run").stderr


def test_a_preview_shows_quantities_and_unit_prices_of_a_rate_card(fake):
    lines = [
        sample(TokenCharge, kind="input", tokens=5_000_000, free_tokens=1_000_000, per_million="0.60"),
        sample(ResidencyCharge, kind="residency", hours="1488.123", per_hour="0.0125"),
        sample(MinimumCharge, kind="minimum", monthly_minimum="50.00"),
        sample(CorrectionCharge, kind="correction", month="2026-10"),
    ]
    charges = sample(Charges, card="standard", amount_cents=4999, lines=lines)
    preview = PREVIEW | {"statements": [STATEMENT | {"charges": charges}]}
    fake.answer("GET", f"{PATH}/2026-11/preview", preview)
    out = fake.florin("cost", "close", "2026-11", "--dry-run").stdout
    for said in (
        "5,000,000 input tokens less 1,000,000 free at 0.60 per million",
        "1,488.123 adapter-hours at 0.0125",
        "difference to the minimum of 50.00",
        "correction of 2026-10",
        "statement, by rate card",
    ):
        assert said in out, said


RIGHT = {"month": "2026-11", "seal": "ab" * 32, "ok": True, "checks": [
    {"name": "seal", "ok": True, "detail": "ab" * 32}, {"name": "records", "ok": None, "detail": "Cannot: pruned."},
]}  # fmt: skip
WRONG = RIGHT | {
    "ok": False,
    "checks": [{"name": "records", "ok": False, "detail": "acme: a record was changed"}],
}


CHAIN_PATH = "/finance/v1/chain"
CHAIN = {"entries": 7, "hash": "cd" * 32, "ok": True, "checks": [
    {"name": "chain", "ok": True, "detail": "7 entries follow each other."},
]}  # fmt: skip  # one check a line
REWRITTEN = CHAIN | {
    "ok": False,
    "checks": [{"name": "closed months", "ok": False, "detail": "2026-11 was changed"}],
}


@pytest.fixture
def closed(fake):
    fake.answer("GET", PATH, {"data": [CLOSED, OPEN | {"month": "2026-12"}]})
    fake.answer("GET", f"{PATH}/2026-11/verify", RIGHT)
    fake.answer("GET", f"{CHAIN_PATH}/verify", CHAIN)
    return fake


def test_the_books_and_every_closed_month_are_verified(closed):
    out = closed.florin("cost", "verify")
    assert out.exit_code == 0
    assert "7 entries follow each other." in out.stdout
    assert out.stdout.splitlines()[-1] == "No check failed. Not checked: records."
    right = RIGHT | {"checks": RIGHT["checks"][:1]}
    closed.answer("GET", f"{PATH}/2026-11/verify", right)
    assert closed.florin("cost", "verify").stdout.splitlines()[-1] == "All checks passed."


def test_what_is_wrong_is_named_and_ends_with_1(closed):
    closed.answer("GET", f"{PATH}/2026-11/verify", WRONG)
    out = closed.florin("cost", "verify", "--month", "2026-11")
    assert out.exit_code == 1
    assert "FAILED" in out.stdout
    assert "acme: a record was changed" in out.stdout
    document = json.loads(closed.florin("cost", "verify", "--json").stdout)
    assert document == {"ok": False, "data": [WRONG], "chain": CHAIN}


def test_books_that_were_changed_fail_though_no_month_is_said_to_be_closed(closed):
    closed.answer("GET", PATH, {"data": [OPEN]})
    closed.answer("GET", f"{CHAIN_PATH}/verify", REWRITTEN)
    out = closed.florin("cost", "verify")
    assert out.exit_code == 1
    assert out.stdout.splitlines()[-1] == "Changed since it was recorded: ledger."


def test_an_anchor_is_a_line_to_be_kept_elsewhere_and_checked_later(closed, tmp_path):
    anchor = {"entries": 7, "hash": "cd" * 32, "at": "2026-11-27T00:00:00Z"}
    closed.answer("GET", CHAIN_PATH, anchor)
    out = closed.florin("cost", "anchor")
    assert json.loads(out.stdout) == anchor
    kept = tmp_path / "anchors.jsonl"
    kept.write_text(out.stdout.replace("cd", "CD") + json.dumps(anchor | {"entries": 5}) + "\n")
    query = "&".join(f"anchor={number}%3A{'cd' * 32}" for number in (7, 5))
    closed.answer("GET", f"{CHAIN_PATH}/verify?{query}", REWRITTEN)
    assert closed.florin("cost", "verify", "--anchor", str(kept)).exit_code == 1


@pytest.mark.parametrize("text", ["", "3", "{}", '{"entries": "x", "hash": "ab"}'])
def test_a_file_that_holds_no_anchors(closed, tmp_path, text):
    kept = tmp_path / "anchors.jsonl"
    kept.write_text(text)
    assert closed.florin("cost", "verify", "--anchor", str(kept)).exit_code == 2


def test_a_quick_verification_is_asked_for(closed):
    closed.answer("GET", f"{PATH}/2026-11/verify?quick=true", RIGHT)
    out = closed.florin("cost", "verify", "--quick")
    assert (out.exit_code, closed.asked[-1][1]) == (0, f"{PATH}/2026-11/verify?quick=true")


def test_another_root_than_expected(closed):
    assert closed.florin("cost", "verify", "--month", "2026-11", "--seal", "AB" * 32).exit_code == 0
    out = closed.florin("cost", "verify", "--month", "2026-11", "--seal", "12" * 32)
    assert out.exit_code == 1
    assert "seal expected" in out.stdout


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
    args = ("cost", "verify", "--proof", str(tmp_path / "proof.json"), "--seal", proof["seal"])
    checked = florin(*args, "--records", str(lines))
    assert checked.exit_code == 0
    assert "covers these 3 records and no others" in checked.stdout

    for number, text in enumerate((json.dumps(records, indent=1), json.dumps({"data": records}))):
        other = tmp_path / f"{number}.json"
        other.write_text(text)
        assert florin(*args, "--records", str(other)).exit_code == 0
    lines.write_text(lines.read_text().replace('"prompt_tokens": 10', '"prompt_tokens": 9', 1))
    wrong = florin(*args, "--records", str(lines))
    assert wrong.exit_code == 1
    assert "At least one of the 3 records" in wrong.stdout


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"root": 3}', "é"])
def test_a_file_that_is_no_proof(florin, tmp_path, text):
    path = tmp_path / "proof.json"
    path.write_text(text, encoding="latin-1")
    assert florin("cost", "verify", "--proof", str(path)).exit_code == 2
    assert florin("cost", "verify", "--proof", str(tmp_path / "none")).exit_code == 2


@pytest.mark.parametrize("text", ["3", '{"id": 1}', "[3]", "x"])
def test_a_file_that_holds_no_records(florin, tmp_path, proved, text):
    proof, path = tmp_path / "proof.json", tmp_path / "records"
    proof.write_text(json.dumps(proved[0]))
    path.write_text(text)
    assert florin("cost", "verify", "--proof", str(proof), "--records", str(path)).exit_code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("--records", "x"),
        ("--proof", "x", "--month", "2026-11"),
        ("--seal", "ab"),
        ("--proof", "x", "--quick"),
        ("--proof", "x", "--anchor", "x"),
    ],
)
def test_options_that_do_not_go_together(fake, args):
    assert fake.florin("cost", "verify", *args).exit_code == 2


def test_all_records_of_a_month_are_one_file(fake, tmp_path):
    path = f"{PATH}/2026-11/records"
    fake.answer("GET", path, {"data": [sample(UsageRecord, id=name) for name in "aü"], "next": "more"})
    fake.answer("GET", f"{path}?after=more", {"data": [sample(UsageRecord, id="c")], "next": None})
    place = tmp_path / "records.jsonl"
    out = fake.florin("cost", "records", "--month", "2026-11", "-o", str(place))
    assert out.exit_code == 0
    assert [json.loads(line)["id"] for line in place.read_text("utf-8").splitlines()] == ["a", "ü", "c"]
    assert "3 records" in out.stderr
