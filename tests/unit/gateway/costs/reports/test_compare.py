"""Golden figures worked out by hand, and where a speed comes from."""

from fractions import Fraction

import pytest

from gateway.costs.reports.compare import (
    Demand,
    MeasuredWeights,
    Mix,
    Offer,
    Stated,
    Used,
    compare,
    demand,
    speed,
    work,
)

MIX = (Mix("base", uncached=100, cached=50, output=200),)


def weights(gpu_type, uncached, cached, output, base="base", number=1):
    return MeasuredWeights(gpu_type, base, number, uncached, cached, output)


def stated(gpu_type, value, reference, source="a blog"):
    return {gpu_type: Stated(gpu_type, Fraction(value), reference, source)}


def test_the_same_figures_as_a_comparison():
    """Ten hours of A100s, all busy: H100s 2.5 times as fast, L40s half as fast."""
    offers = [
        Offer("A100", "", "on_demand", Fraction("32.77")),
        Offer("H100", "", "on_demand", Fraction("41.04")),
        Offer("L40", "", "on_demand", Fraction("17.50")),
    ]
    said = stated("H100", "2.5", "A100") | stated("L40", "0.5", "A100")
    found = compare(Demand(Fraction(10), Fraction(20), (), MIX), offers, "A100", [], said, Fraction(1))
    assert [(row.offer.gpu_type, row.busy_hours, row.busy_cost) for row in found] == [
        ("H100", 4, Fraction("164.16")),
        ("A100", 10, Fraction("327.70")),
        ("L40", 20, Fraction("350.00")),
    ]
    assert [row.effective_rate for row in found] == [Fraction("16.416"), Fraction("32.77"), 35]
    assert [row.loaded_cost for row in found] == [2 * row.busy_cost for row in found]


def test_a_speed_is_measured_where_both_are_calibrated():
    both = [weights("A100", 10, 1, 30, number=7), weights("H100", 5, 1, 10, number=9)]
    found = speed("H100", "A100", MIX, both, stated("H100", 9, "A100"))
    assert work(MIX, {"base": both[0]}) == 100 * 10 + 50 * 1 + 200 * 30
    assert (found.value, found.how, found.source) == (Fraction(7050, 2550), "measured", "calibrations 7, 9")


@pytest.mark.parametrize(
    "known",
    [
        [],
        [weights("H100", 1, 1, 1)],
        [weights("A100", 1, 1, 1), weights("H100", 1, 1, 1, base="other")],
        [weights("A100", 1, 1, 1), weights("H100", 0, 0, 0)],
    ],
)
def test_without_weights_of_both_a_speed_is_as_stated(known):
    found = speed("H100", "A100", MIX, known, stated("H100", "2.5", "A100"))
    assert (found.value, found.how, found.source) == (Fraction("2.5"), "stated", "a blog")
    assert speed("H100", "A100", MIX, known, {}).how == "unknown"


def test_speeds_stated_relative_to_another_gpu():
    said = stated("H100", 5, "V100", "one") | stated("A100", 2, "V100", "two")
    found = speed("H100", "A100", MIX, [], said)
    assert (found.value, found.source) == (Fraction(5, 2), "one, two")
    assert speed("V100", "A100", MIX, [], said).value == Fraction(1, 2)
    assert speed("H100", "A100", MIX, [], stated("H100", 5, "V100")).value is None


def test_the_work_is_in_hours_of_the_reference():
    hours = (("A100", 10, 4), ("H100", 2, 1), ("TPU", 100, 100))
    used = [Used(gpu_type, Fraction(all_), Fraction(busy), MIX) for gpu_type, all_, busy in hours]
    found = demand(used, "A100", [], stated("H100", "2.5", "A100"))
    assert found == Demand(Fraction("6.5"), Fraction(15), ("TPU",), (Mix("base", 200, 100, 400),))


def test_a_discount_is_relative_to_on_demand_in_the_same_region():
    rates = (("eu", "on_demand", 10), ("eu", "spot", 1), ("us", "spot", 2))
    offers = [Offer("H100", region, purchase, Fraction(rate)) for region, purchase, rate in rates]
    found = compare(Demand(Fraction(1), Fraction(1), (), MIX), offers, "H100", [], {}, Fraction(100))
    assert [row.discount for row in found] == [Fraction(9, 10), None, None]


def test_an_unknown_speed_is_no_guess_and_comes_last():
    offers = [Offer("B200", "", "on_demand", Fraction(1)), Offer("H100", "", "on_demand", Fraction(9))]
    first, last = compare(Demand(Fraction(1), Fraction(1), (), MIX), offers, "H100", [], {}, Fraction(100))
    assert (first.offer.gpu_type, last.offer.gpu_type) == ("H100", "B200")
    assert (last.speed.how, last.busy_cost, last.loaded_cost, last.effective_rate) == ("unknown", *[None] * 3)
