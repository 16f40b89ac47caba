"""Proofs of a ledger's statements, and what who forges one has to rebuild."""

from __future__ import annotations

import json
import runpy
from fractions import Fraction
from pathlib import Path

from gateway.costs.merkle import MerkleStep, canonical, climb, header_hash, leaf_hash
from gateway.costs.proofs.proof import verify_proof
from gateway.costs.reports.closed_months import covered_page, proof_of
from gateway.units import cents_of, decimal_of, rounded, step_of, units_of

VERIFIER = Path(__file__).parents[5] / "docs" / "verify_proof.py"


def proved(ledger, month, tenant):
    """As a customer gets it: the proof and the records."""
    proof = json.loads(json.dumps(proof_of(ledger, month, tenant)))
    return proof, json.loads(covered_page(ledger, month, tenant, None, 100)[0])


def failed(proof, records, seal=None):
    """The checks that fail, by Florin; the two verifiers agree."""
    wrong = {check.name for check in verify_proof(proof, records, seal) if check.ok is False}
    check = runpy.run_path(str(VERIFIER))["check"]
    said = [what for what, right in check(proof, records, seal) if not right]
    assert len(said) == len(wrong), (wrong, said)
    return wrong


def rebuilt(proof):
    """With the path's root, the header and the seal that a forged statement needs."""
    steps = [MerkleStep(step["side"], bytes.fromhex(step["hash"])) for step in proof["path"]]
    root = climb(leaf_hash(canonical(proof["statement"])), steps).hex()
    header = {**proof["header"], "tenants_root": root}
    return {**proof, "header": header, "seal": header_hash(header).hex()}


def total(statement):
    """Make the sums and the cents fit the lines."""
    charges = statement["charges"]
    parts = {n: units_of(line["exact"], 15) for n, line in enumerate(charges["lines"])}
    step = step_of(statement["currency"])
    cents = rounded(parts, cents_of(sum(parts.values()), step), step=step)
    for n, line in enumerate(charges["lines"]):
        line["amount_cents"] = cents[n]
    charges["exact"] = decimal_of(Fraction(sum(parts.values()), 10**15))
    charges["amount_cents"] = sum(cents.values())
    manual = sum(line["amount_cents"] for line in statement.get("manual", ()))
    statement["amount_cents"] = charges["amount_cents"] + manual


def line_of(statement, kind, name=""):
    return next(x for x in statement["charges"]["lines"] if (x["kind"], x.get("line", "")) == (kind, name))


def multiply(factor, *lines):
    """A forgery that multiplies the amounts of lines, and some of their counts. `lines`: (kind, counts) or (kind, counts,
    line of the card)."""

    def forge(statement):
        for kind, counts, *name in lines:
            line = line_of(statement, kind, *name)
            line |= {count: factor * line[count] for count in counts}
            line["exact"] = decimal_of(factor * Fraction(line["exact"]))
        total(statement)

    return forge
