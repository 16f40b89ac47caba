"""What is billed: exact costs, rounded once, so that every cent is somewhere."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.allocation import AllocationPolicy, allocate
from gateway.costs.closing.documents import TenantStatement
from gateway.costs.closing.settlement import settle
from gateway.costs.cost_lines import CostLine
from gateway.costs.merkle import canonical
from gateway.costs.policies.terms import MonthAllocation
from gateway.units import CENT, amount_text

NOTHING = MonthAllocation()


def line(tenant="acme", bucket="usage", nano=10**9, rate=2_490_000, **changes):
    fields = {
        "keys": (tenant, f"{tenant}/x" if tenant else ""), "bucket": bucket, "gpu_type": "H100", "region": "",
        "purchase": "on_demand", "rate_micros": rate, "calibration": 0, "correction": False, "task": "",
        "requests": 1,
        "prompt_tokens": 2, "cached_tokens": 1, "completion_tokens": 3, "reasoning_tokens": 0,
        "nano_gpu_hours": nano, "weight_input": 0, "weight_cached": 0, "weight_output": 0, "weight_other": 0,
    }  # fmt: skip  # one name a line says no more
    return CostLine(**(fields | changes))


def test_retries_and_what_nobody_used_are_not_billed_and_not_lost():
    lines = [line(), line(bucket="retry_waste", nano=10**8), line("", "idle", nano=4 * 10**8)]
    made = settle(lines, NOTHING)
    assert amount_text(made.statements["acme"].cost) == "2.49"
    assert made.totals.retry_waste.document() == {"cost": "0.249", "amount_cents": 25}
    assert made.totals.unallocated.document() == {"cost": "0.996", "amount_cents": 100}
    assert made.totals.amount_cents == 249 + 25 + 100  # 3.735, half up


def test_what_a_policy_allocates_is_a_line_of_its_own():
    lines = [line(), line("bolt", nano=3 * 10**9), line("", "idle", nano=8 * 10**9)]
    made = settle(lines, MonthAllocation(allocate(AllocationPolicy("proportional"), lines)))
    assert [s.allocated_nano_gpu_hours for s in made.statements.values()] == [2 * 10**9, 6 * 10**9]
    kinds = [(entry.kind, entry.amount_cents) for entry in made.statements["acme"].lines]
    assert kinds == [("allocated", 498), ("usage", 249)]
    assert made.totals.unallocated.document() == {"cost": "0.00", "amount_cents": 0}


amounts = st.tuples(
    st.sampled_from(("acme", "bolt", "corgi")),
    st.sampled_from(("usage", "retry_waste", "idle", "headroom", "startup")),
    st.integers(-(10**12), 10**13),
    st.sampled_from((0, 1, 700_000, 2_490_000, 32_770_000)),
    st.booleans(),
)


@given(st.lists(amounts, max_size=30), st.sampled_from(("none", "proportional", "even")))
def test_whatever_there_is_every_part_of_it_is_somewhere(drawn, policy):
    lines = [
        line(tenant if bucket in {"usage", "retry_waste"} else "", bucket, nano, rate, correction=correction)
        for tenant, bucket, nano, rate, correction in drawn
    ]
    made = settle(lines, MonthAllocation(allocate(AllocationPolicy(policy), lines)))
    totals = made.totals
    parts = (totals.billed, totals.retry_waste, totals.unallocated)
    assert totals.cost == sum(entry.cost for entry in lines) == sum(part.cost for part in parts)
    assert totals.amount_cents == sum(part.amount_cents for part in parts)
    assert abs(totals.amount_cents - Fraction(totals.cost, CENT)) <= Fraction(1, 2)
    assert totals.nano_gpu_hours == sum(entry.nano_gpu_hours for entry in lines)
    assert totals.billed.amount_cents == sum(s.amount_cents for s in made.statements.values())
    for statement in made.statements.values():
        billed = [e for e in statement.lines if e.kind in {"usage", "allocated"}]
        assert sum(e.amount_cents for e in billed) == statement.amount_cents
        assert sum(e.cost for e in billed) == statement.cost
        assert all(e.amount_cents is None for e in statement.lines if e not in billed)
        assert TenantStatement.model_validate_json(canonical(statement.document())) == statement
