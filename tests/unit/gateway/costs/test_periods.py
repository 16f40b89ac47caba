import pytest

from gateway.costs.periods import Period, PeriodError, instant, iso, local_time, month_of, period, zone
from gateway.units import DAY, HOUR

NOVEMBER = Period(instant("t", "2026-11-01"), instant("t", "2026-12-01"))
NOW = instant("t", "2026-11-21T10:00:00Z")


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-00", "2026-1", "26-11", "", "2026-11-01", "٢٠٢٦-11", "9999-12"]
)
def test_what_is_no_month(text):
    with pytest.raises(PeriodError):
        month_of(text)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-01", "2026-11-01T00:00:00Z"),
        ("2026-11-01T01:00:00+01:00", "2026-11-01T00:00:00Z"),
        ("2026-11-01T01:00:00 01:00", "2026-11-01T00:00:00Z"),  # a `+` that was not encoded in a URL
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
    october = month_of("2026-10", BERLIN)
    assert (iso(october.start), iso(october.end)) == ("2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z")
    assert october.end - october.start == 31 * DAY + HOUR  # the clocks go back
    assert iso(instant("from", "2026-10-25T12:00", BERLIN)) == "2026-10-25T11:00:00Z"
    assert iso(instant("from", "2026-10-25T12:00Z", BERLIN)) == "2026-10-25T12:00:00Z"
    late = instant("t", "2026-10-31T23:30:00Z")  # November in Berlin
    assert period(start=None, end=None, whole_month=None, now=late, tz=BERLIN) == month_of("2026-11", BERLIN)


def test_a_local_time_knows_when_its_clocks_are_set():
    local = local_time(Period(month_of("2026-03").start, month_of("2026-10").end), BERLIN)
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


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("Asia/Kolkata", "2026-10-31T18:30:00Z", "2026-11-30T18:30:00Z"),
        ("+05:30", "2026-10-31T18:30:00Z", "2026-11-30T18:30:00Z"),
        ("Asia/Kathmandu", "2026-10-31T18:15:00Z", "2026-11-30T18:15:00Z"),
        ("-09:30", "2026-11-01T09:30:00Z", "2026-12-01T09:30:00Z"),
    ],
)
def test_local_midnights_within_an_hour_of_utc_cut_it(name, first, last):
    within = month_of("2026-11", zone(name))
    local = local_time(within, zone(name))
    assert (iso(within.start), iso(within.end)) == (first, last)
    assert local.timezone == name
    assert local.within == within
    assert local.cuts == tuple(range(within.start, within.end + 1, DAY))
    assert local.cut_hours == tuple(cut // HOUR * HOUR for cut in local.cuts)
    assert local.cuts_in(local.cut_hours[1]) == [local.cuts[1]]
    assert local.cuts_in(within.start // HOUR * HOUR + 3 * HOUR) == []
    assert (local.day(within.start - 1), local.day(within.start)) == ("2026-10-31", "2026-11-01")


def test_defaults():
    def of(start=None, end=None, whole=None):
        return period(start=start, end=end, whole_month=whole, now=NOW)

    assert of() == NOVEMBER
    assert of(whole="2026-10") == month_of("2026-10")
    assert of(start="2026-11-20") == Period(instant("t", "2026-11-20"), NOW)
    assert of(end="2026-11-20") == Period(NOVEMBER.start, instant("t", "2026-11-20"))
    with pytest.raises(PeriodError):
        of(start="2026-11-20", end="2026-11-19")
    with pytest.raises(PeriodError):
        of(start="2026-11-20", whole="2026-11")
