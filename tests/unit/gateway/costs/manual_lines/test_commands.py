"""florin manual-line, and closing a month by two people: what they send, and what people read."""

from __future__ import annotations

import pytest

from gateway.costs.closing.schemas import ClosingPreview, Month
from gateway.costs.manual_lines.schemas import ManualLine
from tests.support.samples import sample

PATH = "/finance/v1/manual-lines"
CREDIT = sample(
    ManualLine,
    id=3,
    kind="credit",
    tenant="acme",
    amount="40.00",
    reason="Outage",
    state="approved",
    month="2026-11",
)
FEE = CREDIT | {"id": 4, "kind": "fee", "amount": "31.00", "begins": "2026-11-15", "month": None}
END = FEE | {"id": 5, "kind": "end", "fee": 4, "ends": "2026-12-31"}
PENDING = CREDIT | {"state": "pending", "month": None}
ADD = ("add", "--kind", "credit", "--tenant", "acme", "--amount", "40", "--reason", "Outage")
ADD_FEE = (
    "add", "--kind", "fee", "--tenant", "acme", "--amount", "31", "--reason", "Support", "--from", "2026-11-15",
    "--prorate",
)  # fmt: skip  # one word a line says no more


@pytest.mark.parametrize(
    ("words", "path", "body", "answer", "says"),
    [
        (
            ADD, "", {"kind": "credit", "tenant": "acme", "amount": "40", "reason": "Outage"}, CREDIT,
            "Credit 3 of acme: 40.00 on the statement of 2026-11.",
        ),
        (
            ADD_FEE, "",
            {
                "kind": "fee", "tenant": "acme", "amount": "31", "reason": "Support", "begins": "2026-11-15",
                "prorated": True,
            },
            FEE, "Fee 4 of acme: 31.00 per month from 2026-11-15.",
        ),
        (("approve", "3"), "/3/approve", {}, CREDIT, "Credit 3 of acme: 40.00"),
        (("approve", "3"), "/3/approve", {}, PENDING, "florin manual-line approve 3"),
        (("withdraw", "3"), "/3/withdraw", {}, PENDING, "Line 3 is withdrawn."),
        (
            ("end", "4", "--until", "2026-12-31", "--reason", "Over"), "/4/end",
            {"ends": "2026-12-31", "reason": "Over"}, END, "Fee 4 of acme ends on 2026-12-31.",
        ),
    ],
)  # fmt: skip  # one name a line says no more
def test_a_line(fake, words, path, body, answer, says):
    fake.answer("POST", f"{PATH}{path}", answer, 201)
    done = fake.florin("manual-line", *words)
    assert fake.asked[0][2] == body
    assert says in " ".join((done.stdout + done.stderr).split())


def test_lines(fake):
    fake.answer("GET", f"{PATH}?tenant=acme", {"data": [CREDIT, END]})
    _, credit, end = fake.florin("manual-line", "list", "--tenant", "acme").stdout.splitlines()
    assert credit.split()[:5] == ["3", "credit", "acme", "-", "40.00"]
    assert end.split()[:4] == ["5", "end", "of", "4"]
    fake.answer("GET", PATH, {"data": []})
    assert "florin manual-line add" in fake.florin("manual-line", "list").stderr


def test_a_month_that_another_person_has_to_close(fake):
    month = sample(
        Month,
        month="2026-10",
        state="open",
        request={"requested_by": "key:k1", "requested_at": "2026-11-03T00:00:00Z"},
    )
    fake.answer("GET", "/finance/v1/periods/2026-10", month)
    fake.answer("GET", "/finance/v1/periods/2026-10/preview", sample(ClosingPreview, month="2026-10"))
    fake.answer("POST", "/finance/v1/periods/2026-10/close", month, 202)
    done = fake.florin("cost", "close", "2026-10", "--yes")
    assert "2026-10 is not closed yet: key:k1 requested it" in done.stdout
    assert "Another person closes it" in done.stderr
    assert "key:k1 requested it at 2026-11-03T00:00:00Z." in done.stderr, "before the question"
