"""Trees against RFC 6962's own recursive words; canonical JSON against the standard library's."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.merkle import (
    RECORD_FIELDS,
    MerkleStep,
    MerkleTree,
    canonical,
    climb,
    leaf_hash,
    node_hash,
    path,
    record_leaf,
    root_of,
)
from gateway.costs.proofs.proof import SUMS, prove, tenants_root, verify_proof
from gateway.metering.records import Labels
from tests.support.search import examples
from tests.unit.gateway.metering.make import record


def recursive(entries):
    """RFC 6962, section 2.1: MTH."""
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return hashlib.sha256(b"\x01" + recursive(entries[:k]) + recursive(entries[k:])).digest()


entries = st.lists(st.binary(max_size=8), max_size=40)


@given(entries)
def test_the_streaming_root_is_rfc_6962_s(data):
    assert root_of([leaf_hash(d) for d in data]) == recursive(data)


def test_known_roots_of_rfc_6962_s_reference_trees():
    """From the test vectors of Certificate Transparency's reference implementation."""
    leaves = [
        bytes.fromhex(t)
        for t in (
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        )
    ]
    roots = {
        0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    }
    for count, root in roots.items():
        assert root_of([leaf_hash(d) for d in leaves[:count]]).hex() == root


def test_a_tree_of_many_leaves_holds_few_hashes():
    tree = MerkleTree()
    for number in range(100_000):
        tree.add(number.to_bytes(32, "big"))
    assert len(tree._peaks) <= 17
    assert tree.count == 100_000


@given(entries.filter(bool), st.data())
def test_a_path_leads_to_the_root_from_its_own_leaf_only(data, choice):
    leaves = [leaf_hash(d) for d in data]
    index = choice.draw(st.integers(0, len(leaves) - 1))
    steps = path(leaves, index)
    assert climb(leaves[index], steps) == root_of(leaves)
    for other in leaves:
        if other != leaves[index]:
            assert climb(other, steps) != root_of(leaves)


def test_a_node_cannot_pass_for_a_leaf():
    a, b, c = (leaf_hash(bytes([n])) for n in range(3))
    assert root_of([node_hash(a, b), c]) == root_of([a, b, c])  # hashes alone cannot tell; so
    assert leaf_hash(a + b) != node_hash(a, b)  # what is hashed as a leaf is never a node
    assert climb(leaf_hash(a + b), [MerkleStep("right", c)]) != root_of([a, b, c])


def test_there_is_no_path_of_a_leaf_that_is_not_there():
    for leaves, index in (([], 0), ([b"x"], 1), ([b"x"], -1)):
        with pytest.raises(IndexError):
            path(leaves, index)


texts = st.text(st.characters(exclude_categories=("Cs",)))
integers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | integers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@given(values)
def test_canonical_json_is_what_python_s_own_json_writes(value):
    theirs = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert canonical(value) == theirs.encode()


plain = record("r")
changes = st.sampled_from(RECORD_FIELDS).flatmap(
    lambda name: st.tuples(
        st.just(name),
        {bool: st.booleans(), int: integers, str: texts}.get(type(getattr(plain, name)), st.integers(0, 9)),
    )
)


@given(changes, st.integers(1, 20), st.data())
def test_any_change_of_any_record_changes_the_root(change, count, choice):
    name, value = change
    records = [record(f"r{n}")._asdict() for n in range(count)]
    before = root_of([record_leaf(r) for r in records])
    index = choice.draw(st.integers(0, count - 1))
    was = records[index][name]
    records[index][name] = value
    same = value == was and type(value) is type(was)
    assert (root_of([record_leaf(r) for r in records]) == before) == same


def test_a_record_s_leaf_needs_every_field_and_no_other():
    whole = plain._asdict()
    assert record_leaf({**whole, "seq": 1, "more": 2}) == record_leaf(whole)
    later = {*Labels._fields, "service_tier", "task"}  # without these, records are as before there were any
    for name in set(RECORD_FIELDS) - later:
        with pytest.raises(KeyError):
            record_leaf({n: v for n, v in whole.items() if n != name})


def statement(tenant, records):
    leaves = [record_leaf(r) for r in sorted(records, key=lambda r: (r["ended"], r["id"]))]
    sums = {n: sum(r[n] or 0 for r in records) for n in SUMS}
    line = {"kind": "usage", "adapter": "acme/support", "gpu_type": "H100", "amount_cents": 7, **sums}
    return {
        "month": "2026-11",
        "tenant": tenant,
        "records": len(leaves),
        "root": root_of(leaves).hex(),
        "amount_cents": 7,
        "lines": [line],
        **sums,
    }


@examples(30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.randoms())
def test_a_proof_holds_for_its_tenant_with_its_records_and_for_nobody_else(counts, rng):
    from gateway.costs.merkle import header_hash

    records = {
        f"t{i}": [record(f"{i}-{n}", tenant=f"t{i}", ended=rng.randrange(9))._asdict() for n in range(count)]
        for i, count in enumerate(counts)
    }
    statements = [statement(tenant, made) for tenant, made in records.items()]
    header = {"month": "2026-11", "tenants_root": tenants_root(statements)}
    root = header_hash(header).hex()
    for tenant, made in records.items():
        proof = json.loads(json.dumps(prove(header, root, statements, tenant)))
        rng.shuffle(made)
        assert not [check for check in verify_proof(proof, made, root) if check.ok is False]
        for other in statements:
            if other["tenant"] != tenant:
                forged = {**proof, "statement": other}
                assert {c.name: c.ok for c in verify_proof(forged, None, root)}["statement"] is False
        if made:
            assert [c.ok for c in verify_proof(proof, made[1:], root)][-1] is False
            doubled = verify_proof(proof, [*made, made[0]], root)
            assert doubled[-1].ok is False
            changed = [{**made[0], "completion_tokens": made[0]["completion_tokens"] + 1}, *made[1:]]
            assert verify_proof(proof, changed, root)[-1].ok is False


def test_a_service_tier_is_sealed_and_its_absence_changes_no_earlier_leaf():
    plain = record()._asdict()
    before = {name: value for name, value in plain.items() if name != "service_tier"}
    assert record_leaf(plain) == record_leaf(before)
    assert record_leaf(plain | {"service_tier": "batch"}) != record_leaf(before)
