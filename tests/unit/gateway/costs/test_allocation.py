import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.allocation import NONE, AllocationPolicy, PolicyError, allocate, divide, policy_of, spread
from gateway.costs.cost_lines import CostLine

PROPORTIONAL, EVEN = AllocationPolicy("proportional"), AllocationPolicy("even")


def line(bucket, nano, tenant="", rate=2_000_000, gpu_type="H100", **changes):
    fields = {
        "region": "",
        "purchase": "on_demand",
        "calibration": 0,
        "correction": False,
        "task": "",
        **changes,
    }
    return CostLine(
        keys=(tenant, "x"), bucket=bucket, gpu_type=gpu_type, rate_micros=rate, requests=0, prompt_tokens=0,
        cached_tokens=0, completion_tokens=0, reasoning_tokens=0, nano_gpu_hours=nano, weight_input=0,
        weight_cached=0, weight_output=0, weight_other=0, **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "shares"),
    [
        (NONE, {}),
        (PROPORTIONAL, {"a": 60, "b": 30, "c": 10}),
        (EVEN, {"a": 34, "b": 33, "c": 33}),
        (AllocationPolicy("fixed", {"a": 1, "d": 3, "z": 0}), {"a": 25, "d": 75}),
    ],
)
def test_policies(policy, shares):
    assert divide(policy, 100, {"a": 6, "b": 3, "c": 1}) == shares


@pytest.mark.parametrize(
    ("policy", "shares"),
    [
        (AllocationPolicy("proportional", own={"c": "none"}), {"a": 60, "b": 30}),  # 10 stay with nobody
        (AllocationPolicy("none", own={"b": "proportional"}), {"b": 30}),
        (AllocationPolicy("none", own={"b": "none"}), {}),
        (AllocationPolicy("fixed", {"a": 1, "b": 1}, own={"b": "none"}), {"a": 50}),
        (AllocationPolicy("proportional", own={"z": "even"}), {"a": 60, "b": 30, "c": 10}),  # used nothing
        (AllocationPolicy("fixed", {"a": 1}, own={"b": "even"}), {"a": 75, "b": 25}),  # of 4/3
    ],
)
def test_a_tenant_bears_what_its_own_policy_gives_it(policy, shares):
    assert divide(policy, 100, {"a": 6, "b": 3, "c": 1}) == shares
    assert AllocationPolicy.of(policy.document()) == policy


def test_what_was_taken_back_bears_nothing_beside_what_was_used():
    assert divide(PROPORTIONAL, 10, {"a": 5, "b": -3}) == {"a": 10}


amounts = st.integers(-(10**15), 10**15)


@given(
    st.sampled_from([PROPORTIONAL, EVEN, AllocationPolicy("fixed", {"a": 7, "q": 2})]),
    amounts,
    st.dictionaries(st.sampled_from("abcdefg"), amounts),
)
def test_what_is_borne_sums_to_what_was_unused(policy, unused, used):
    parts = divide(policy, unused, used)
    assert sum(parts.values()) == (unused if parts else 0)
    assert all(part == 0 or (part > 0) == (unused > 0) for part in parts.values())


@given(
    st.sampled_from(["none", "proportional", "even"]),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["none", "proportional", "even"])),
    amounts,
    st.dictionaries(st.sampled_from("abcdefg"), amounts),
)
def test_with_policies_of_their_own_nobody_bears_more_than_there_is(name, own, unused, used):
    parts = divide(AllocationPolicy(name, own=own), unused, used)
    assert abs(sum(parts.values())) <= abs(unused)
    assert all(part == 0 or (part > 0) == (unused > 0) for part in parts.values())
    assert not any(part for tenant, part in parts.items() if own.get(tenant, name) == "none")


@given(amounts, st.dictionaries(st.tuples(st.text(max_size=3), st.text(max_size=3)), amounts, min_size=1))
def test_rows_bear_what_their_tenant_bears(nano, used):
    parts = spread(nano, used)
    assert set(parts) == set(used)
    assert sum(parts.values()) == nano


def test_each_price_is_divided_by_itself():
    lines = [
        line("usage", 60, "acme"),
        line("usage", 30, "bolt"),
        line("idle", 5),
        line("headroom", 3),
        line("startup", 1),
        line("retry_waste", 1000, "corgi"),
        line("idle", 7, rate=3_000_000),
        line("usage", 1, "bolt", rate=3_000_000),
        line("idle", 11, region="eu"),
        line("idle", 13, gpu_type="L4", rate=None),
        line("usage", 2, "acme", gpu_type="L4", rate=None),
    ]
    assert allocate(PROPORTIONAL, lines) == {
        ("acme", "H100", "", "on_demand", 2_000_000): 6,
        ("bolt", "H100", "", "on_demand", 2_000_000): 3,
        ("bolt", "H100", "", "on_demand", 3_000_000): 7,
        ("acme", "L4", "", "on_demand", None): 13,
    }
    assert allocate(NONE, lines) == {}
    fixed = allocate(AllocationPolicy("fixed", {"zoo": 1}), lines, lambda line: line.keys[0])
    assert sum(fixed.values()) == 5 + 3 + 1 + 7 + 11 + 13
    assert {key[0] for key in fixed} == {"zoo"}


def test_policies_as_they_are_written():
    assert policy_of("even") == EVEN
    assert policy_of("fixed", "acme=60, bolt=40") == AllocationPolicy("fixed", {"acme": 60, "bolt": 40})
    assert policy_of("fixed", "acme=60%,bolt=40%") == AllocationPolicy("fixed", {"acme": 60, "bolt": 40})
    assert policy_of("fixed", "acme=33.5%,bolt=66.50%").shares == {"acme": 3350, "bolt": 6650}


@pytest.mark.parametrize(
    ("name", "shares", "param"),
    [
        ("mine", None, "policy"),
        ("fixed", None, "shares"),
        ("fixed", "", "shares"),
        ("none", "a=1", "shares"),
        ("fixed", "a", "shares"),
        ("fixed", "a=1,a=1", "shares"),
        ("fixed", "a=0,b=0", "shares"),
        ("fixed", "a=1.5", "shares"),
        ("fixed", "a=-1", "shares"),
        ("fixed", "a=1,", "shares"),
        ("fixed", "a=60%,b=30%", "shares"),
        ("fixed", "a=60%,b=40", "shares"),
        ("fixed", "a=100%,a=0%", "shares"),
    ],
)
def test_what_is_no_policy(name, shares, param):
    with pytest.raises(PolicyError) as caught:
        policy_of(name, shares)
    assert caught.value.param == param
