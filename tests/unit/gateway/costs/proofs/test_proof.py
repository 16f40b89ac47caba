"""What a proof says when something does not fit: each check by itself."""

import json
import runpy

import pytest

from gateway.costs.merkle import RECORD_FIELDS, header_hash, present
from gateway.costs.proofs.proof import ProofError, prove, tenants_root, verify_proof
from tests.property.test_merkle import statement
from tests.unit.gateway.costs.proofs.test_charged import VERIFIER
from tests.unit.gateway.metering.make import record

MINE = [record(f"r{n}", ended=n)._asdict() for n in range(3)]
THEIRS = [record("b", tenant="bolt")._asdict()]


@pytest.fixture
def proof():
    statements = [statement("bolt", THEIRS), statement("acme", MINE)]
    header = {"month": "2026-11", "tenants_root": tenants_root(statements)}
    return prove(header, header_hash(header).hex(), statements, "acme")


def results(checks):
    return {check.name: check.ok for check in checks}


def test_without_root_and_records_it_says_what_it_cannot_know(proof):
    assert results(verify_proof(proof)) == {
        "seal": None, "header": True, "statement": True, "amounts": True, "other amounts": None, "records": None,
    }  # fmt: skip  # one check a word


def test_with_both_everything_is_checked(proof):
    checks = verify_proof(proof, reversed(MINE), proof["seal"].upper() + "\n")
    names = ("seal", "header", "statement", "amounts", "records", "tokens", "quantities")
    assert results(checks) == {**dict.fromkeys(names, True), "other amounts": None}
    assert "covers the 3 records given and no others" in next(c.detail for c in checks if c.name == "records")


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({"seal": "00" * 32}, "header"),
        ({"month": "2026-12"}, "header"),
        ({"path": []}, "statement"),
    ],
)
def test_what_was_forged_is_named(proof, change, failed):
    assert results(verify_proof({**proof, **change}))[failed] is False


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (MINE[:2], "covers 3 records; given: 2"),
        ([*MINE, *THEIRS], "not acme's"),
        ([MINE[0], MINE[1], {**MINE[2], "prompt_tokens": 11}], "At least one of the records given"),
        ([MINE[0], MINE[1], MINE[1]], "At least one of the records given"),
    ],
)
def test_records_that_are_not_those_that_it_covers(proof, records, says):
    check = verify_proof(proof, records)[-1]
    assert (check.name, check.ok) == ("records", False)
    assert says in check.detail


def test_sums_that_its_records_do_not_give():
    made = {**statement("acme", MINE), "prompt_tokens": 31}
    header = {"month": "2026-11", "tenants_root": tenants_root([made])}
    forged = prove(header, header_hash(header).hex(), [made], "acme")
    assert [check.name for check in verify_proof(forged, MINE) if check.ok is False] == ["tokens"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"header": 3},
        {"path": [{"side": "up", "hash": "00"}]},
        {"path": [{"side": "left", "hash": "zz"}]},
        {"statement": None},
        {"path": 3},
    ],
)
def test_what_is_no_proof_is_told_so(proof, broken):
    with pytest.raises(ProofError):
        verify_proof({} if not broken else {**proof, **broken}, None, "aa")


@pytest.mark.parametrize("records", [0, 1, 2, 5])
def test_a_verifier_without_florin_s_code_comes_to_the_same(records):
    made = [
        record(f"é{n}", key_id="ключ \u2028\x7f", ended=n % 2, tag="€" if n % 3 else None)
        for n in range(records)
    ]
    mine = [present(one._asdict(), RECORD_FIELDS) for one in made]
    statements = [statement("acme", mine), *(statement(f"t{n}", THEIRS) for n in range(4))]
    header = {"version": 2, "month": "2026-11", "tenants_root": tenants_root(statements)}
    root = header_hash(header).hex()
    proof = json.loads(json.dumps(prove(header, root, statements, "acme")))
    check = runpy.run_path(str(VERIFIER))["check"]
    assert all(right for _, right in check(proof, mine, root))
    proof["statement"]["tenant"] = "t1"
    wrong = [what for what, right in check(proof, [], root) if not right]
    assert wrong[0] == "the month covers the statement"


def test_a_proof_of_a_later_version_is_no_proof_yet(proof):
    with pytest.raises(ProofError, match="a newer Florin made it"):
        verify_proof({**proof, "header": {**proof["header"], "version": 3}}, MINE)


def test_nobody_gets_a_proof_who_is_not_there(proof):
    with pytest.raises(KeyError):
        prove(proof["header"], proof["seal"], [statement("acme", MINE)], "bolt")


def test_what_is_no_record_is_told_so(proof):
    with pytest.raises(ProofError):
        verify_proof(proof, [{"id": "x"}])
