"""Proofs of all that a card with lines charges, in a currency with cents and in one without: each adds up from the
records, and a forged one does not, however the rest is made to fit."""

from __future__ import annotations

import copy
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from gateway.costs.closing.closing import close
from gateway.costs.manual_lines.store import request_line
from gateway.costs.proofs.proof import verify_proof
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.card_lines import CardLine, Tier, most_specific_first
from gateway.metering.ledger.schema import residency_spans
from gateway.units import HOUR, decimal_of
from tests.support.ledger_rows import price, put, residency_span
from tests.unit.gateway.costs.manual_lines.lines import line
from tests.unit.gateway.costs.proofs.forging import failed, line_of, multiply, proved, rebuilt, total
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import NOVEMBER, NOW, OCTOBER, attempt, close_october, up

CURRENCIES = ("USD", "JPY")
LARGE = CardLine(
    "large", 900_123, 90_000, 3_600_000, base_model="large", reasoning_micros=1_800_000, request_micros=3,
    free_requests=2, tiers=(Tier("output", 1_000, 3_000_000), Tier("requests", 3, 2)),
)  # fmt: skip  # one name a line says no more
LINES = tuple(most_specific_first(
    (
        LARGE,
        CardLine("large-batch", 400_000, 40_000, 1_600_000, base_model="large", service_tier="batch", adapter="acme/b"),
        CardLine(
            "vip", 100_000, 10_000, 400_000, adapter="acme/vip", request_micros=2_000, residency_micros=7_001,
            tiers=(Tier("input", 9_999, 70_007), Tier("input", 10**9, 1)), volume=True,
        ),
        CardLine("l40s", 300_000, 30_000, 1_200_000, gpu_type="L40S"),
        CardLine("of bolt", 1, 1, 1, adapter="bolt/chat"),
    )
))  # fmt: skip  # one name a line says no more


def dearer(line, factor):
    micros = {
        name: value * factor for name, value in vars(line).items() if name.endswith("_micros") and value
    }
    return replace(
        line, **micros, tiers=tuple(replace(tier, micros=tier.micros * factor) for tier in line.tiers)
    )


def records(start, name):
    for n in range(3):
        usual = attempt(f"{name} {n}", "acme", start + n)
        large = usual._replace(base_model="large", reasoning_tokens=123)
        yield usual
        yield usual._replace(id=f"{name} {n} batch", service_tier="batch")
        yield large._replace(id=f"{name} {n} large")
        yield large._replace(id=f"{name} {n} large batch", service_tier="batch")
        yield large._replace(id=f"{name} {n} own batch", service_tier="batch", adapter="acme/b")
        yield large._replace(id=f"{name} {n} vip", adapter="acme/vip")
        yield usual._replace(id=f"{name} {n} l40s", gpu_type="L40S", adapter="")
        yield large._replace(id=f"{name} {n} resumed", outcome="resumed", prompt_tokens=99_999)
        yield large._replace(id=f"{name} {n} waste", outcome="failover", billable=False)
        yield attempt(f"{name} {n} bolt", "bolt", start + n)


def fill(ledger, currency):
    for gpu_type in ("H100", "L40S"):
        price(ledger, gpu_type, "371.828181", currency=currency)
    factor = 150 if currency == "JPY" else 1
    for start, name in ((OCTOBER, "oct"), (NOVEMBER, "nov")):
        ledger.insert(list(records(start, name)))
        up(ledger, start)
    put(ledger, residency_spans, residency_span("acme/vip@v1", OCTOBER, OCTOBER + 10 * HOUR))
    put(ledger, residency_spans, residency_span("acme/chat@v1", OCTOBER, OCTOBER + 7 * HOUR))
    sell(
        ledger, "acme", currency=currency, lines=tuple(dearer(own, factor) for own in LINES), free_input=1_000, batch_percent=37, residency_micros=333 * factor, input_micros=600_000 * factor,
        tiers=(Tier("input", 20_000, 500_009 * factor), Tier("input", 50_000, 400_000 * factor)), discount_percent=7,
        discount_until="2026-10", output_micros=2_400_000 * factor,
    )  # fmt: skip  # one name a line says no more
    for tenant in ("acme", "bolt"):
        for kind, cents in (("credit", 4_000), ("charge", 1_100 * factor), ("refund", 100)):
            request_line(
                ledger, line(kind, cents, tenant, requested_at=OCTOBER), approved=True, actor="key:a"
            )
    roll(ledger, NOW)
    close_october(ledger)
    ledger.insert(list(records(OCTOBER, "late")))
    close(ledger, "2026-11", now=NOW, by="test", policy="proportional")


@pytest.fixture(params=CURRENCIES)
def proofs(ledger_with, request):
    return partial(
        proved, ledger_with({name: partial(fill, currency=name) for name in CURRENCIES}[request.param])
    )


def test_every_proof_holds(proofs):
    for month in ("2026-10", "2026-11"):
        for tenant in ("acme", "bolt"):
            proof, records = proofs(month, tenant)
            assert failed(proof, records, proof["seal"]) == set()
    proof, _ = proofs("2026-10", "acme")
    statement = proof["statement"]
    kinds = {(x["kind"], x.get("line", "")) for x in statement["charges"]["lines"]}
    assert {("reasoning", "large"), ("requests", "large"), ("requests", "vip"), ("discount", ""), ("input", "l40s"),
            ("batch_discount", ""), ("batch_discount", "large"), ("residency", "vip"), ("residency", "")} <= kinds  # fmt: skip
    assert {x["line"] for x in statement["charges"]["card_lines"]} == {"vip", "large-batch", "large", "l40s"}
    assert "bolt" not in str(
        statement["charges"]
    )  # what another's adapter costs is not the customer's business
    checks = {check.name: check.detail for check in verify_proof(proof)}
    assert "line large is for base model large" in checks["amounts"]
    assert "6 requests of line large, 2 of them free, at " in checks["amounts"]
    assert "each, graduated tiers, above 3 " in checks["amounts"]
    assert "credit of -4000 cents" in checks["other amounts"]


BATCH_COUNTS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def from_a_cheap_line_to_a_dear_one(statement):
    cheap, dear = line_of(statement, "cached", "l40s"), line_of(statement, "cached", "large")
    dear["exact"] = decimal_of((1 + Fraction(cheap["tokens"], dear["tokens"])) * Fraction(dear["exact"]))
    dear["tokens"] += cheap["tokens"]
    cheap |= {"tokens": 0, "exact": "0.00"}


def without_tiers(statement):
    tokens = line_of(statement, "input")
    exact = (tokens["tokens"] - tokens["free_tokens"]) * Fraction(tokens["per_million"]) / 10**6
    tokens["exact"] = decimal_of(exact)


def other_mode(statement):
    line_of(statement, "input", "vip")["tier_mode"] = "graduated"


def less_credit(statement):
    credit = next(x for x in statement["manual"] if x["kind"] == "credit")
    credit["amount_cents"] = -credit["amount_cents"]


@pytest.mark.parametrize(
    ("forge", "checks"),
    [
        (multiply(3, ("requests", ["requests"], "vip")), {"quantities", "amounts"}),
        (multiply(3, ("reasoning", ["tokens"], "large")), {"quantities", "amounts"}),
        (from_a_cheap_line_to_a_dear_one, {"quantities", "amounts"}),
        (multiply(0, ("batch_discount", BATCH_COUNTS, "large")), {"quantities", "amounts"}),
        (without_tiers, {"amounts"}),
        (multiply(0, ("discount", [])), {"amounts"}),
        (other_mode, {"amounts"}),
        (less_credit, {"amounts"}),
    ],
)
def test_a_forged_one_does_not(proofs, forge, checks):
    proof, records = proofs("2026-10", "acme")
    forged = copy.deepcopy(proof)
    forge(forged["statement"])
    total(forged["statement"])
    forged = rebuilt(forged)
    assert failed(forged, records) == checks
    assert failed(forged, records, proof["seal"]) == {*checks, "seal"}


def test_a_manual_line_that_the_amount_has_twice_is_found(proofs):
    proof, records = proofs("2026-10", "bolt")
    forged = copy.deepcopy(proof)
    forged["statement"]["amount_cents"] += forged["statement"]["manual"][1]["amount_cents"]
    assert failed(rebuilt(forged), records) == {"amounts"}
