"""Two models at two prices, with an adapter, a GPU type and batches that have prices of their own, from records
to the statement, the file, the margin and the price of a request: recomputed in exact fractions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from fractions import Fraction

import pytest
from sqlalchemy import text

from gateway.costs.closing.closing import close
from gateway.costs.margins.margin import month_margin
from gateway.costs.owner import Owner
from gateway.costs.periods import month_of
from gateway.costs.reports.customer_report import customer_text
from gateway.costs.reports.report import Question
from gateway.costs.reports.request_cost import request_cost
from gateway.costs.rollups.rollup import roll
from gateway.costs.selling.card_lines import CardLine, Tier, most_specific_first
from gateway.costs.selling.card_store import list_cards
from gateway.costs.statement.page import statement_json, statement_page
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import UsageRecord
from gateway.units import MICRO
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import (
    NOVEMBER,
    NOW,
    OCTOBER,
    RATE,
    attempt,
    close_october,
    fill_to_the_end,
    statement,
    up,
)

LINES = most_specific_first(
    (
        CardLine("large", 900_000, 90_000, 3_600_000, base_model="large", reasoning_micros=1_800_000),
        CardLine("large-batch", 400_000, 40_000, 1_600_000, base_model="large", service_tier="batch"),
        CardLine("vip", 100_000, 10_000, 400_000, adapter="acme/vip", request_micros=2_000),
        CardLine("embed", 200_000, 20_000, 800_000, task="embed"),
        CardLine("l40s", 300_000, 30_000, 1_200_000, gpu_type="L40S"),
    )
)
TIERS = (Tier("input", 50_000, 500_000), Tier("input", 90_000, 400_000))


def records(month: int, name: str) -> Iterator[UsageRecord]:
    for n in range(6):
        made = attempt(f"{name}-{n}", "acme", month + n)
        yield made
        yield attempt(f"{name}-large-{n}", "acme", month + n)._replace(
            base_model="large", reasoning_tokens=123
        )
        yield attempt(f"{name}-vip-{n}", "acme", month + n)._replace(adapter="acme/vip", base_model="large")
        yield attempt(f"{name}-l40s-{n}", "acme", month + n)._replace(gpu_type="L40S", adapter="")
        yield attempt(f"{name}-embed-{n}", "acme", month + n)._replace(task="embed")
        for model in ("base", "large"):
            batch = attempt(f"{name}-batch-{model}-{n}", "acme", month + n)
            yield batch._replace(service_tier="batch", base_model=model)
    yield attempt(f"{name}-waste", "acme", month)._replace(billable=False, outcome="orphaned")


def fill_ledger(ledger: Ledger) -> None:
    price(ledger, "H100", RATE)
    price(ledger, "L40S", RATE)
    for month, name in ((OCTOBER, "oct"), (NOVEMBER, "nov")):
        ledger.insert(list(records(month, name)))
        up(ledger, month)
    sell(
        ledger, "acme", lines=tuple(LINES), tiers=TIERS, free_input=1_000, batch_percent=40,
        discount_percent=10, discount_until="2026-10",
    )  # fmt: skip  # one name a line says no more
    roll(ledger, NOW)
    close_october(ledger)
    ledger.insert(list(records(OCTOBER, "late")))
    roll(ledger, NOW)


@pytest.fixture
def ledger(ledger_with):
    return ledger_with(fill_ledger)


def costs(rates: tuple[int, int, int], count: int = 6) -> Fraction:
    return Fraction(
        count * sum(n * rate for n, rate in zip((10_000, 2_345, 678), rates, strict=True)), MICRO**2
    )


def test_page_table_and_margin_show_the_same(ledger):
    made = statement(ledger)
    page = statement_page(ledger, "acme", "2026-10", issuer="Nordlicht", now=NOW, known=True)
    for shown in ("Reasoning tokens, large", "Requests, vip", "0.002 per request", "Discount of 10 % until 2026-10",
                  "above 50,000: 0.50", "Free allowance and tiers"):  # fmt: skip
        assert shown in page, shown
    margin = month_margin(ledger, "2026-10", by_adapter=True)
    rows = [row for row in margin["adapters"] if row["tenant"] == "acme"]
    assert sum((Fraction(row["price"]) for row in rows), Fraction(0)) == Fraction(made["charges"]["exact"])
    vip = next(row for row in rows if row["adapter"] == "acme/vip")
    assert Fraction(vip["price"]) == costs((100_000, 10_000, 400_000)) + 6 * Fraction(2_000, MICRO)


def test_a_report_and_a_request_have_list_prices(ledger):
    question = Question(month_of("2026-11"), ("adapter",), ("acme",))
    report = json.loads(customer_text(ledger, question, now=NOW, owner=Owner("acme", 0))[0])
    vip = next(row for row in report["rows"] if row["adapter"] == "acme/vip")
    price_of_vip = costs((100_000, 10_000, 400_000)) + 6 * Fraction(2_000, MICRO)
    assert Fraction(vip["cost"]) == price_of_vip
    corrected = [row for row in report["corrections"]["rows"] if row["adapter"] == "acme/vip"]
    assert [Fraction(row["cost"]) for row in corrected if row["bucket"] == "usage"] == [price_of_vip]
    answer = request_cost(ledger, "nov-batch-large-3", owner=Owner("acme", 0), now=NOW)
    assert answer is not None
    assert Fraction(answer["cost"]) == costs((400_000, 40_000, 1_600_000), 1)
    [stored] = list_cards(ledger).cards
    assert [line.name for line in stored.lines] == ["vip", "large-batch", "large", "embed", "l40s"]


def digest(things: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps(list(things), sort_keys=True).encode()).hexdigest()[:16]


def test_months_of_cards_without_lines_are_as_they_always_were(ledger_with):
    """Statements as they were computed before cards had lines. Roots since the terms of a month say by which
    rules minimums are charged."""
    ledger = ledger_with(fill_to_the_end)
    close(ledger, "2026-11", now=NOW, by="test")
    with ledger.read() as connection:
        roots = connection.execute(text("SELECT root FROM periods ORDER BY month")).scalars().all()
    assert [root[:16] for root in roots] == ["d8154fb4b49c782f", "61a3e907507f2d01"]
    statements = (
        {
            field: value
            for field, value in statement_json(
                ledger, tenant, name, issuer="N", now=NOW, known=True, **more
            ).items()
            if field != "reasons"
        }
        | {"seal": ""}
        for name in ("2026-10", "2026-11")
        for tenant in ("acme", "bolt", "corgi")
        for more in ({}, {"by": "key"})
    )
    assert digest(statements) == "6990251ef76438f2"
