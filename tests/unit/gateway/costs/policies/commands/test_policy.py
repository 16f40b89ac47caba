"""florin cost policy show and set."""

import pytest

from gateway.costs.policies.schemas import PolicyChange, PolicyInForce
from tests.support.command_cases import Case, check
from tests.support.samples import sample

PATH = "/finance/v1/policy"
ROW = sample(
    PolicyChange, policy="fixed", shares={"acme": 6, "bolt": 4}, valid_from="2026-10", reason="contract 17"
)
SHOWN = sample(
    PolicyInForce,
    month="2026-10",
    policy="fixed",
    shares={"acme": 6, "bolt": 4},
    own={"corgi": "none"},
    history=[ROW, ROW | {"tenant": "corgi", "policy": "none", "shares": {}}],
)
CASES = (
    Case(
        "cost policy show --month 2026-10", {f"GET {PATH}?month=2026-10": SHOWN},
        ("fixed (acme 60 %, bolt 40 %); none for corgi", "contract 17", "all tenants"),
    ),
    Case("cost policy show", {f"GET {PATH}": SHOWN | {"history": [ROW | {"valid_from": "1970-01"}]}}, ("the beginning",)),
    Case("cost policy show", {f"GET {PATH}": SHOWN | {"history": []}}, notes=("florin cost policy set",)),
    Case(
        "cost policy set fixed --share acme=60% --share bolt=40% --from 2026-10 --reason 'contract 17'",
        {f"PUT {PATH}": SHOWN | {"changed": True}}, ("fixed (acme 60 %, bolt 40 %); none for corgi, from 2026-10.",),
        sends={
            "policy": "fixed", "shares": {"acme": 60, "bolt": 40}, "shares_total": 100, "valid_from": "2026-10",
            "reason": "contract 17",
        },
    ),
    Case(
        "cost policy set none --tenant corgi", {f"PUT {PATH}": SHOWN | {"changed": False, "month": "2026-09"}},
        notes=("nothing changed", "Another policy was set from 2026-10 on"), sends={"policy": "none", "tenant": "corgi"},
    ),
)  # fmt: skip  # a case each


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command(fake, case):
    check(fake, case)
