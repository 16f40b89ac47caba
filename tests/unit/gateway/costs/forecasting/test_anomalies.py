"""What costs several times its habit, and what idles."""

from fractions import Fraction

from gateway.costs.forecasting.anomalies import Bounds, idlers, spikes
from gateway.units import DAY

TODAY = 20_000 * DAY
HOURS = 10**9


def series(*values):
    """The last of them is today's."""
    return {TODAY - index * DAY: value for index, value in enumerate(reversed(values))}


def found(costs, whole=None, **bounds):
    everything = whole or dict.fromkeys(range(TODAY - 30 * DAY, TODAY + 1, DAY), 1000)
    return list(spikes("adapter", {"acme/support": costs}, everything, TODAY, Bounds(**bounds)))


def test_three_times_the_habit_is_an_anomaly_and_less_is_not():
    [anomaly] = found(series(*[100] * 10, 300, 0))
    assert (anomaly.kind, anomaly.subject, anomaly.tenant) == ("adapter", "acme/support", "acme")
    assert (anomaly.cost, anomaly.habit, anomaly.ratio) == (300, 100, 3)
    assert anomaly.day == anomaly.since == TODAY - DAY
    assert found(series(*[100] * 10, 299, 0)) == []
    assert found(series(*[100] * 10, 250, 0), factor=Fraction(5, 2)) != []


def test_one_odd_day_does_not_change_the_habit():
    assert found(series(*[100] * 6, 5000, *[100] * 3, 110, 0)) == []
    [anomaly] = found(series(*[100] * 6, 5000, *[100] * 3, 310, 0))
    assert anomaly.habit == 100


def test_without_a_habit_there_is_no_anomaly():
    assert found(series(0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 900, 0)) == []  # four days of use
    assert found(series(900)) == []


def test_an_engine_that_was_idle_for_all_of_yesterday():
    whole = 24 * HOURS
    days = {TODAY - DAY: (whole * 96 // 100, whole, 7), TODAY - 2 * DAY: (whole, whole, 8)}
    days[TODAY - 3 * DAY] = (whole // 2, whole, 9)
    [anomaly] = idlers({"gpu-a": days, "gpu-b": {TODAY - DAY: (whole // 2, whole, 5)}}, TODAY)
    assert (anomaly.kind, anomaly.subject, anomaly.cost) == ("engine", "gpu-a", 7)
    assert (anomaly.since, anomaly.ratio) == (TODAY - 2 * DAY, Fraction(96, 100))
    hardly_there = {TODAY - DAY: (5 * HOURS, 5 * HOURS, 3)}
    assert list(idlers({"gpu-c": hardly_there, "gpu-d": {}}, TODAY)) == []


def test_a_run_of_odd_days_is_one_anomaly_since_its_first():
    [anomaly] = found(series(*[100] * 10, 400, 500, 450, 0))
    assert (anomaly.day, anomaly.since) == (TODAY - DAY, TODAY - 3 * DAY)
