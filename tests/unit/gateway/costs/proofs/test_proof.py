"""What a proof says when something does not fit: each check by itself."""

import json
import subprocess
import sys

import pytest

from gateway.costs.proofs.merkle import canonical, header_hash, leaf_hash, record_content, root_of
from gateway.costs.proofs.proof import ProofError, prove, tenants_root, verify_proof
from tests.property.test_merkle import statement
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
    assert results(verify_proof(proof)) == {"seal": None, "header": True, "statement": True, "records": None}


def test_with_both_everything_is_checked(proof):
    checks = verify_proof(proof, reversed(MINE), proof["seal"].upper() + "\n")
    assert results(checks) == dict.fromkeys(("seal", "header", "statement", "records", "tokens"), True)
    assert "covers these 3 records and no others" in checks[3].detail


def test_a_proof_of_an_earlier_version_names_the_seal_root(proof):
    earlier = {("root" if name == "seal" else name): value for name, value in proof.items()}
    checks = verify_proof(earlier, MINE, proof["seal"])
    assert all(check.ok for check in checks)


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


def test_another_root_than_expected(proof):
    assert results(verify_proof(proof, None, "11" * 32))["seal"] is False


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (MINE[:2], "covers 3 records; 2 are given"),
        ([*MINE, *THEIRS], "not acme's"),
        ([MINE[0], MINE[1], {**MINE[2], "prompt_tokens": 11}], "At least one of the 3"),
        ([MINE[0], MINE[1], MINE[1]], "At least one of the 3"),
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
    assert results(verify_proof(forged, MINE)) | {"seal": True} == {
        "seal": True, "header": True, "statement": True, "records": True, "tokens": False,
    }  # fmt: skip  # one check a word


def test_nobody_gets_a_proof_who_is_not_there(proof):
    with pytest.raises(KeyError):
        prove(proof["header"], proof["seal"], [statement("acme", MINE)], "bolt")


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


def test_what_is_no_record_is_told_so(proof):
    with pytest.raises(ProofError):
        verify_proof(proof, [{"id": "x"}])


SCRIPT = r"""
import hashlib, json
def sha(data): return hashlib.sha256(data).digest()
def canonical(x): return json.dumps(x, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
def root(leaves):
    if len(leaves) < 2: return leaves[0] if leaves else sha(b"")
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha(b"\1" + root(leaves[:half]) + root(leaves[half:]))
proof = json.load(open("proof.json"))
records = sorted(map(json.loads, open("records.jsonl")), key=lambda r: (r["ended"], r["id"]))
assert root([sha(b"\0" + canonical(r)) for r in records]).hex() == proof["statement"]["root"]
at = sha(b"\0" + canonical(proof["statement"]))
for step in proof["path"]:
    other = bytes.fromhex(step["hash"])
    at = sha(b"\1" + (other + at if step["side"] == "left" else at + other))
assert at.hex() == proof["header"]["tenants_root"]
assert sha(b"\2" + canonical(proof["header"])).hex() == proof["seal"]
print("right:", proof["seal"])
"""


@pytest.mark.parametrize("records", [0, 1, 2, 5])
def test_twenty_lines_of_a_customer_s_own_come_to_the_same(tmp_path, records):
    made = [
        record(f"é{n}", key_id="ключ \u2028\x7f", ended=n % 2, tag="€" if n % 3 else None)
        for n in range(records)
    ]
    mine = [record_content(one._asdict()) for one in made]
    statements = [statement("acme", mine), *(statement(f"t{n}", THEIRS) for n in range(4))]
    header = {"month": "2026-11", "tenants_root": tenants_root(statements)}
    root = header_hash(header).hex()
    (tmp_path / "proof.json").write_text(json.dumps(prove(header, root, statements, "acme")))
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in mine))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"right: {root}\n"


V1_FIELDS = (
    "id", "request_id", "attempt", "tenant", "key_id", "adapter", "version", "base_model", "engine", "gpu_type",
    "gpu_count", "dispatched", "first_token", "ended", "prompt_tokens", "cached_tokens", "completion_tokens",
    "reasoning_tokens", "n", "usage_source", "outcome", "billable", "adapter_loads", "hour_marks",
)  # fmt: skip  # one name a line says no more


def test_a_proof_of_the_first_version_stays_verifiable():
    """Its leaves had every field of a record and of the statement."""
    leaves = [leaf_hash(canonical({name: made[name] for name in V1_FIELDS})) for made in MINE]
    said = {**statement("acme", MINE), "root": root_of(leaves).hex(), "cost": "1.50", "lines": []}
    header = {"version": 1, "month": "2026-11", "tenants_root": leaf_hash(canonical(said)).hex()}
    proof = prove(header, header_hash(header).hex(), [said], "acme")
    assert proof["statement"] == said
    assert [check.ok for check in verify_proof(proof, MINE, proof["seal"])] == [True] * 5
    other = [{**MINE[0], "engine": "another"}, *MINE[1:]]
    assert results(verify_proof(proof, other))["records"] is False


def test_a_proof_of_a_later_version_is_no_proof_yet(proof):
    with pytest.raises(ProofError, match="a newer Florin made it"):
        verify_proof({**proof, "header": {**proof["header"], "version": 3}}, MINE)
