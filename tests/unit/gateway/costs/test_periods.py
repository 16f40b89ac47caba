import pytest

from gateway.costs.periods import HOUR, Period, PeriodError, instant, iso, month, period

NOVEMBER = Period(instant("t", "2026-11-01"), instant("t", "2026-12-01"))
NOW = instant("t", "2026-11-21T10:00:00Z")


def test_months_are_half_open_and_meet():
    assert month("2026-11") == NOVEMBER
    assert month("2026-12").start == NOVEMBER.end
    assert month("2026-12").end == instant("t", "2027-01-01")
    assert (NOVEMBER.end - NOVEMBER.start) == 30 * 24 * HOUR
    assert (month("2028-02").end - month("2028-02").start) == 29 * 24 * HOUR


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-00", "2026-1", "26-11", "", "2026-11-01", "٢٠٢٦-11", "9999-12"]
)
def test_what_is_no_month(text):
    with pytest.raises(PeriodError):
        month(text)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-01", "2026-11-01T00:00:00Z"),
        ("2026-11-01T01:00:00+01:00", "2026-11-01T00:00:00Z"),
        ("2026-11-01 00:00:00.25", "2026-11-01T00:00:00.250000Z"),
        ("1969-12-31T23:59:59", "1969-12-31T23:59:59Z"),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text, same):
    assert iso(instant("from", text)) == same


@pytest.mark.parametrize(
    "text", ["", "now", "2026-02-30", "20261101", "1e9", "0001-01-01T00:00:00+23:00", "x" * 9999]
)
def test_what_is_no_time(text):
    with pytest.raises(PeriodError) as caught:
        instant("from", text)
    assert caught.value.param == "from"
    assert len(str(caught.value)) < 200


def test_defaults():
    def of(start=None, end=None, whole=None):
        return period(start=start, end=end, whole_month=whole, now=NOW)

    assert of() == NOVEMBER
    assert of(whole="2026-10") == month("2026-10")
    assert of(start="2026-11-20") == Period(instant("t", "2026-11-20"), NOW)
    assert of(end="2026-11-20") == Period(NOVEMBER.start, instant("t", "2026-11-20"))
    with pytest.raises(PeriodError):
        of(start="2026-11-20", end="2026-11-19")
    with pytest.raises(PeriodError):
        of(start="2026-11-20", whole="2026-11")
