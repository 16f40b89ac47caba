"""florin manual-line, and closing a month by two people: what they send, and what people read."""

import pytest

from gateway.costs.closing.schemas import ClosingPreview, Month
from gateway.costs.manual_lines.schemas import ManualLine
from tests.support.command_cases import Case, check
from tests.support.samples import sample

PATH = "/finance/v1/manual-lines"
CREDIT = sample(
    ManualLine, id=3, kind="credit", tenant="acme", amount="40.00", reason="Outage", state="approved", month="2026-11"
)  # fmt: skip
FEE = CREDIT | {"id": 4, "kind": "fee", "amount": "31.00", "begins": "2026-11-15", "month": None}
END = FEE | {"id": 5, "kind": "end", "fee": 4, "ends": "2026-12-31"}
PENDING = CREDIT | {"state": "pending", "month": None}
REQUEST = {"requested_by": "key:k1", "requested_at": "2026-11-03T00:00:00Z"}
MONTH = sample(Month, month="2026-10", state="open", request=REQUEST)
CLOSE = "/finance/v1/periods/2026-10"
CASES = (
    Case(
        "manual-line add --kind credit --tenant acme --amount 40 --reason Outage", {f"POST {PATH}": (201, CREDIT)},
        ("Credit 3 of acme: 40.00 on the statement of 2026-11.",),
        sends={"kind": "credit", "tenant": "acme", "amount": "40", "reason": "Outage"},
    ),
    Case(
        "manual-line add --kind fee --tenant acme --amount 31 --reason Support --from 2026-11-15 --prorate",
        {f"POST {PATH}": (201, FEE)}, ("Fee 4 of acme: 31.00 per month from 2026-11-15.",),
        sends={"kind": "fee", "tenant": "acme", "amount": "31", "reason": "Support", "begins": "2026-11-15", "prorated": True},
    ),
    Case("manual-line approve 3", {f"POST {PATH}/3/approve": CREDIT}, ("Credit 3 of acme: 40.00",), sends={}),
    Case("manual-line approve 3", {f"POST {PATH}/3/approve": PENDING}, notes=("florin manual-line approve 3",), sends={}),
    Case("manual-line withdraw 3", {f"POST {PATH}/3/withdraw": PENDING}, ("Line 3 is withdrawn.",), sends={}),
    Case(
        "manual-line end 4 --until 2026-12-31 --reason Over", {f"POST {PATH}/4/end": (201, END)},
        ("Fee 4 of acme ends on 2026-12-31.",), sends={"ends": "2026-12-31", "reason": "Over"},
    ),
    Case(
        "manual-line list --tenant acme", {f"GET {PATH}?tenant=acme": {"data": [CREDIT, END]}},
        ("3 credit acme - 40.00", "5 end of 4"),
    ),
    Case("manual-line list", {f"GET {PATH}": {"data": []}}, notes=("florin manual-line add",)),
    # Another person has to close the month; who requested it is said before the question.
    Case(
        "cost close 2026-10 --yes",
        {f"GET {CLOSE}": MONTH, f"GET {CLOSE}/preview": sample(ClosingPreview, month="2026-10"), f"POST {CLOSE}/close": (202, MONTH)},
        ("2026-10 is not closed yet: key:k1 requested it",),
        ("Another person closes it", "key:k1 requested it at 2026-11-03T00:00:00Z."),
        sends={},
    ),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)
