"""A forged amount is found from the records, by Florin and by the verifier that others get: docs/verify_proof.py."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from functools import partial

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.proofs.proof import verify_proof
from gateway.metering.ledger.schema import residency_spans
from gateway.units import HOUR
from tests.support.ledger_rows import put, residency_span
from tests.unit.gateway.costs.proofs.forging import VERIFIER, failed, multiply, proved, rebuilt, total
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import (
    NOVEMBER,
    NOW,
    OCTOBER,
    arrive_late,
    attempt,
    close_october,
    fill,
)

MONTHS, TENANTS = ("2026-10", "2026-11"), ("acme", "bolt", "corgi", "delta")


def two_months(ledger):
    """acme pays by a card with all kinds of lines, delta first the cost and then by a card."""
    fill(ledger)
    sell(ledger, "acme", name="full", free_input=10_000, batch_percent=40, residency_micros=12_500)
    sell(ledger, "delta", since="2026-11")
    put(ledger, residency_spans, residency_span("acme/chat@v1", OCTOBER, OCTOBER + 10 * HOUR))
    for number, start in enumerate((OCTOBER, NOVEMBER)):
        own = {f"{number} {name}": attempt(f"{number} {name}", "acme", start) for name in "abcd"}
        batch, resumed, waste, refused = own.values()
        ledger.insert([
            batch._replace(service_tier="batch"),
            resumed._replace(outcome="resumed", prompt_tokens=99_999),
            waste._replace(outcome="failover", billable=False),
            refused._replace(outcome="rejected", engine="", gpu_type="", gpu_count=0),
            attempt(f"{number} e", "delta", start),
        ])  # fmt: skip  # one record a line
    close_october(ledger)
    arrive_late(ledger)
    ledger.insert([attempt("late three", "delta", OCTOBER + 1)])
    close(ledger, "2026-11", now=NOW, by="test", policy="proportional")


@pytest.fixture
def proofs(ledger_with):
    return partial(proved, ledger_with(two_months))


def test_every_proof_of_two_months_holds_and_what_is_taken_as_stated_is_said(proofs):
    stated = {}
    for month in MONTHS:
        for tenant in TENANTS:
            proof, records = proofs(month, tenant)
            assert failed(proof, records, proof["seal"]) == set()
            checks = {check.name: check for check in verify_proof(proof, records, proof["seal"])}
            stated[month, tenant] = checks["other amounts"].detail if "other amounts" in checks else None
    kinds = {
        line["kind"] for month in MONTHS for line in proofs(month, "acme")[0]["statement"]["charges"]["lines"]
    }
    assert kinds == {"input", "cached", "output", "residency", "batch_discount", "correction"}
    assert {line["kind"] for line in proofs("2026-11", "delta")[0]["statement"]["charges"]["lines"]} >= {
        "correction"
    }
    assert stated["2026-10", "corgi"] is None
    assert stated["2026-10", "bolt"].endswith("taken as stated: costs of GPU time.")
    assert stated["2026-10", "acme"].endswith("taken as stated: the hours of resident adapters.")
    assert stated["2026-11", "acme"].endswith("taken as stated: corrections of earlier months.")


TOKENS = ("tokens", "free_tokens")
COUNTS = ("input_tokens", "cached_tokens", "output_tokens")
triple_tokens_and_amounts = multiply(3, *((kind, TOKENS) for kind in ("input", "cached", "output")))


def round_up(statement):
    statement["charges"]["lines"][0]["amount_cents"] += 1
    statement["charges"]["amount_cents"] += 1
    statement["amount_cents"] += 1


def state_more_than_charged(statement):
    statement["amount_cents"] += 1


def forget_the_late_records(statement):
    lines = statement["charges"]["lines"]
    statement["charges"]["lines"] = [line for line in lines if line["kind"] != "correction"]
    total(statement)


def triple_tokens_of_lines(statement):
    for line in statement["lines"]:
        line |= {name: 3 * line[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}


def state_more_than_the_lines(statement):
    statement["amount_cents"] *= 3


@pytest.mark.parametrize(
    ("month", "tenant", "forge", "check"),
    [
        ("2026-10", "acme", triple_tokens_and_amounts, "quantities"),
        ("2026-10", "acme", multiply(3, ("input", ()), ("cached", ()), ("output", ())), "amounts"),
        ("2026-10", "acme", multiply(3, ("residency", ())), "amounts"),
        ("2026-10", "acme", round_up, "amounts"),
        ("2026-10", "acme", state_more_than_charged, "amounts"),
        ("2026-10", "acme", multiply(0, ("batch_discount", COUNTS)), "quantities"),
        ("2026-11", "acme", multiply(3, ("correction", COUNTS)), "quantities"),
        ("2026-11", "acme", forget_the_late_records, "quantities"),
        ("2026-10", "corgi", multiply(3, ("minimum", ())), "amounts"),
        ("2026-10", "bolt", triple_tokens_of_lines, "quantities"),
        ("2026-10", "bolt", state_more_than_the_lines, "amounts"),
    ],
)
def test_a_forged_charge_with_a_rebuilt_path_is_found(proofs, month, tenant, forge, check):
    proof, records = proofs(month, tenant)
    forged = copy.deepcopy(proof)
    forge(forged["statement"])
    forged = rebuilt(forged)
    assert failed(forged, records) == {check}
    assert failed(forged, records, proof["seal"]) == {check, "seal"}


def run(tmp_path, proof, records, *seal):
    (tmp_path / "proof.json").write_text(json.dumps(proof))
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    command = [sys.executable, "-I", str(VERIFIER), "proof.json", "records.jsonl", *seal]
    return subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)


def test_the_verifier_for_others_is_a_program_of_its_own(proofs, tmp_path):
    proof, records = proofs("2026-11", "acme")
    right = run(tmp_path, proof, records, proof["seal"])
    assert right.returncode == 0
    assert "WRONG" not in right.stdout
    assert right.stdout.endswith("taken as stated: correction 2026-10\n")
    triple_tokens_and_amounts(proof["statement"])
    forged = run(tmp_path, rebuilt(proof), records)
    assert forged.returncode == 1
    assert "WRONG it charges the tokens of the billable ones" in forged.stdout
    assert "not checked: whether the month's seal is" in forged.stdout
