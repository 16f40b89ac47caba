"""florin credit: what it sends, and what people read."""

from __future__ import annotations

import pytest

from gateway.costs.credits.schemas import Balance, Grant
from tests.support.samples import sample

PATH = "/finance/v1/credits"
GRANT = sample(Grant, id=3, tenant="acme", amount="500.00", begins="2026-11", ends="2027-10", drawn="12.30")
BALANCE = sample(Balance, month="2026-11", currency="USD", opening="7.00", closing="3.50")
PAID = (
    "grant", "--tenant", "acme", "--amount", "500", "--reason", "Payment", "--reference", "pay_1", "--until",
    "2027-10",
)  # fmt: skip  # one word a line says no more


@pytest.mark.parametrize(
    ("words", "path", "body"),
    [
        (
            PAID, "",
            {
                "tenant": "acme", "amount": "500", "reason": "Payment", "reference": "pay_1",
                "ends": "2027-10",
            },
        ),
        (("end", "3", "--until", "2027-10"), "/3/end", {"ends": "2027-10"}),
    ],
)  # fmt: skip  # one name a line says no more
def test_a_grant(fake, words, path, body):
    fake.answer("POST", f"{PATH}{path}", GRANT, 201)
    done = fake.florin("credit", *words)
    assert fake.asked[0][2] == body
    assert "Grant 3 of acme: 500.00 from 2026-11 until 2027-10." in " ".join(done.stdout.split())


def test_lists(fake):
    fake.answer("GET", PATH, {"data": [GRANT]})
    assert "12.30" in fake.florin("credit", "list").stdout
    fake.answer("GET", f"{PATH}/balance/acme", BALANCE)
    shown = fake.florin("credit", "balance", "acme").stdout
    assert "7.00 USD" in shown
    assert "3.50 USD" in shown
