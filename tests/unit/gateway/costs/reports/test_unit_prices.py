from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.costs.cost_lines import CostLine
from gateway.costs.reports.unit_prices import KINDS, price_text, unit_prices
from gateway.costs.rollups.token_weights import Weights

HOUR = 10**9
RATE = 3_600_000
"""A thousandth of the currency a second."""
CALIBRATED = Weights(7, prefill_ps=2_000_000, cached_ps=500_000, decode_ps=30_000_000, kv_ps=0, load_ps=0)


def line(bucket="usage", nano=HOUR, rate=RATE, calibration=0, tokens=(0, 0, 0), omega=(0, 0, 0), **changes):
    inputs, cached, outputs = tokens
    fields = {"gpu_type": "H100", "region": "", "purchase": "on_demand", **changes}
    return CostLine(
        keys=(), bucket=bucket, rate_micros=rate, calibration=calibration, correction=False, task="", requests=1,
        prompt_tokens=inputs + cached, cached_tokens=cached, completion_tokens=outputs, reasoning_tokens=0,
        nano_gpu_hours=nano, weight_input=omega[0], weight_cached=omega[1], weight_output=omega[2],
        weight_other=0, **fields,
    )  # fmt: skip


def one(*lines, weights=()):
    [found] = unit_prices(lines, {w.id: w for w in weights})
    return found


def test_three_ways():
    found = one(
        line(calibration=7, nano=HOUR // 2, tokens=(10**6, 10**6, 10**5), omega=(2, 1, 7)),
        line("headroom", HOUR // 2, calibration=7),
        line("idle", HOUR),
        line("startup", 2 * HOUR),
        weights=[CALIBRATED],
    )
    # B = 1 h = 3.60: 0.72 for a million of input, 0.36 for a million cached, 2.52 for a tenth of a million
    assert found.document() == {
        "gpu_type": "H100",
        "region": "",
        "purchase": "on_demand",
        "saturated": {"input": "0.002", "cached": "0.0005", "output": "0.03"},
        "busy": {"input": "0.72", "cached": "0.36", "output": "25.20"},
        "loaded": {"input": "2.88", "cached": "1.44", "output": "100.80"},  # H/B = 4
    }


@pytest.mark.parametrize("bucket", ["usage", "idle"])
def test_a_missing_price_leaves_out_what_needs_it(bucket):
    priced = line(tokens=(10, 0, 10), omega=(1, 0, 1))
    found = one(priced, line(bucket, rate=None, tokens=(0, 0, 0)))
    assert found.loaded == (None, None, None)
    assert (found.busy[0] is None) == (bucket == "usage")


def test_each_pool_by_itself_with_its_retries_and_at_no_cost():
    work = {"tokens": (10, 0, 10), "omega": (1, 0, 1)}
    pools = [
        line(gpu_type="L4", rate=0, **work),
        line("idle", gpu_type="L4", rate=0),
        line(region="eu", **work),
    ]
    pools += [line(**work), line("retry_waste", **work), line(purchase="spot"), line("rejected", gpu_type="")]
    on_demand, spot, eu, free = unit_prices(pools, {})
    assert on_demand.busy == eu.busy == (180_000, None, 180_000), "a retry makes no token dearer than another"
    assert (spot.purchase, free.gpu_type, free.busy, free.loaded) == (
        "spot",
        "L4",
        (0, None, 0),
        (0, None, 0),
    )


counts = st.tuples(*[st.integers(0, 10**6)] * 3)


@given(
    st.lists(
        st.builds(
            line,
            bucket=st.sampled_from(["usage", "retry_waste", "headroom", "idle", "startup"]),
            nano=st.integers(0, 10**12),
            rate=st.sampled_from([1, RATE, 10**9]),
            calibration=st.sampled_from([0, 7]),
            tokens=counts,
            omega=counts,
        ),
        min_size=1,
    )
)
def test_prices_times_tokens_are_the_whole_bill(lines):
    """Exactly; but for kinds that have a cost and no tokens, which only made-up figures have."""
    found = one(*lines, weights=[CALIBRATED])
    if not all(found.tokens) or None in found.loaded:
        return
    bill = sum(price * n for price, n in zip(found.loaded, found.tokens, strict=True)) / 10**6
    assert bill * 10**15 == sum(part.cost for part in lines)
    for way in (found.busy, found.loaded):
        assert all(price >= 0 for price in way)
        assert len(way) == len(KINDS)


@pytest.mark.parametrize(
    ("price", "text"),
    [
        (None, None),
        (Fraction(0), "0.00"),
        (Fraction(1, 3), "0.333333"),
        (Fraction(2, 3), "0.666667"),
        (Fraction(1, 2_000_000), "0.000001"),
        (Fraction(-1, 2_000_000), "-0.000001"),
        (Fraction(82, 5), "16.40"),
    ],
)
def test_prices_are_rounded_once_half_away_from_zero(price, text):
    assert price_text(price) == text


def test_weights_of_two_calibrations_are_not_mixed():
    other = Weights(8, 1, 1, 1, 0, 0)
    found = one(
        line(calibration=7, tokens=(10, 0, 10), omega=(10**12, 0, 10**12)),
        line(calibration=0, tokens=(10, 0, 10), omega=(1, 0, 1)),
        weights=[CALIBRATED, other],
    )
    assert found.busy[0] == found.busy[2] == Fraction(180_000)  # half of twice 3.60, for 20 tokens
    assert found.saturated[0] == Fraction(2, 1000)
