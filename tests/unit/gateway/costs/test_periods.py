import pytest

from gateway.costs.periods import (
    DAY,
    HOUR,
    Period,
    PeriodError,
    instant,
    iso,
    local_time,
    month,
    period,
    zone,
)

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


BERLIN = zone("Europe/Berlin")


def test_a_local_month_begins_and_ends_at_local_midnight():
    october = month("2026-10", BERLIN)
    assert (iso(october.start), iso(october.end)) == ("2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z")
    assert october.end - october.start == 31 * DAY + HOUR  # the clocks go back
    assert iso(instant("from", "2026-10-25T12:00", BERLIN)) == "2026-10-25T11:00:00Z"
    assert iso(instant("from", "2026-10-25T12:00Z", BERLIN)) == "2026-10-25T12:00:00Z"
    late = instant("t", "2026-10-31T23:30:00Z")  # November in Berlin
    assert period(start=None, end=None, whole_month=None, now=late, at=BERLIN) == month("2026-11", BERLIN)


def test_a_local_time_knows_when_its_clocks_are_set():
    local = local_time(Period(month("2026-03").start, month("2026-10").end), BERLIN)
    assert local.timezone == "Europe/Berlin"
    assert [(iso(at), ahead // HOUR) for at, ahead in local.offsets] == [
        ("2026-03-01T00:00:00Z", 1),
        ("2026-03-29T01:00:00Z", 2),
        ("2026-10-25T01:00:00Z", 1),
    ]
    assert local.iso(instant("t", "2026-03-29T00:00:00Z")) == "2026-03-29T01:00:00+01:00"
    assert local.iso(instant("t", "2026-03-29T01:00:00Z")) == "2026-03-29T03:00:00+02:00"
    assert local_time(NOVEMBER, zone("America/New_York")).iso(NOW) == "2026-11-21T05:00:00-05:00"
    assert local_time(NOVEMBER, zone("UTC")) is None


@pytest.mark.parametrize(
    "name", ["", "Berlin", "../../etc/passwd", "/etc/passwd", "Europe", "a\0b", "x" * 64]
)
def test_what_is_no_timezone(name):
    with pytest.raises(PeriodError, match="is not a known timezone"):
        zone(name)


def test_a_timezone_that_cuts_hours_of_utc_is_refused():
    with pytest.raises(PeriodError, match="not a whole number of hours ahead of UTC"):
        local_time(NOVEMBER, zone("Asia/Kolkata"))
    with pytest.raises(PeriodError, match="at most ten years"):
        local_time(Period(0, NOVEMBER.end), BERLIN)


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
