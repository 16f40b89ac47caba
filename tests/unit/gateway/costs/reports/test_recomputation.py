"""Two months recomputed in exact fractions from what the finance API says, and from nothing else: see
tests/support/recomputation. Every nano-GPU-hour and every digit of every cost must be the same."""

from __future__ import annotations

import random
from collections import Counter

import orjson
import pytest

from gateway.costs.closing.closing import GRACE
from gateway.metering.ledger.schema import calibrations
from gateway.tenants.directory import Role
from gateway.units import HOUR
from tests.support import recomputation as outsider
from tests.support.ledger_rows import calibration, put, see_up
from tests.support.paging import pages_of
from tests.unit.gateway.costs import month as fleet
from tests.unit.gateway.costs.month import DECEMBER, NOVEMBER, OCTOBER
from tests.unit.gateway.metering.make import record

MINUTE = 60_000_000
BY = "hour,engine,region,purchase,tenant,adapter,version"
HOURS = 6
PRICES = (
    ("H100", "", "on_demand", "2.49", "1970-01-01"),
    ("L40", "", "on_demand", "0.7", "1970-01-01"),
    ("H100", "eu", "spot", "1.234567", "1970-01-01"),
    ("H200", "", "reserved", "3.1", "1970-01-01"),
    # within an hour, to the microsecond
    ("H100", "", "on_demand", "2.191919", "2026-11-01T02:01:17.777777Z"),
    ("H100", "eu", "spot", "0.999999", "2026-10-01T01:30:00.000001Z"),
    # what a region's price does not cover has that of all regions, which changes twice
    ("B200", "", "spot", "3.3", "1970-01-01"),
    ("B200", "", "spot", "3.7", "2026-10-01T01:10:00.000003Z"),
    ("B200", "", "spot", "4.1", "2026-10-01T02:20:00Z"),
    ("B200", "ap", "spot", "2.9", "2026-10-01T02:05:00Z", "2026-10-01T02:40:00.5Z"),
    ("B200", "ap", "on_demand", "6.6", "1970-01-01"),
    ("B200", "ap", "on_demand", "0.5", "2026-10-01T03:50:00Z", "2026-10-01T03:55:00Z"),
)


@pytest.fixture
def now():
    return lambda: DECEMBER + GRACE


def hard_cases(start):
    """Spot and reserved engines beside those of `fleet`; one is alive for half an hour, with sightings of two
    workers that overlap, and a gap that counts and one that does not; streams with marks at the full hour."""
    draw = random.Random(start)
    half = [
        ("w1", "startup", 0, 2 * MINUTE),
        ("w1", "up", 2 * MINUTE, 9 * MINUTE),
        ("w2", "up", 5 * MINUTE, 12 * MINUTE),
        ("w1", "up", 12 * MINUTE + 59_999_999, 20 * MINUTE),
        ("w2", "up", 21 * MINUTE, 30 * MINUTE + 1),
    ]
    spans = [("d", "H200", 8, "", "reserved", *each) for each in half]
    spans.append(("c", "H100", 4, "eu", "spot", "w1", "up", 7, 5 * HOUR + 11))
    records = []
    for number in range(40):
        engine, gpu_type, gpus, until = (
            ("c", "H100", 4, 5 * HOUR) if number % 4 else ("d", "H200", 8, 25 * MINUTE)
        )
        begun = start + draw.randrange(until)
        ended = begun + draw.randrange(1, HOUR if engine == "c" else 5 * MINUTE)
        prompt, completion = draw.randrange(1, 900), draw.randrange(2, 900)
        cached = prompt // 3
        turn = ended - ended % HOUR
        marks = [[turn, prompt, cached, completion // 2]] if begun < turn < ended and number % 3 else None
        records.append(
            record(
                f"hard-{start}-{number}",
                tenant=draw.choice(fleet.TENANTS),
                adapter="",
                version="",
                engine=engine,
                gpu_type=gpu_type,
                gpu_count=gpus,
                dispatched=begun,
                ended=ended,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
                hour_marks=None if marks is None else orjson.dumps(marks).decode(),
                billable=number % 7 != 0,
            )
        )
    return records, spans


def fill(ledger):
    for seed, start in enumerate((OCTOBER, NOVEMBER)):
        ledger.insert(fleet.records(seed, start))
        fleet.span(ledger, start)
        records, spans = hard_cases(start)
        ledger.insert([*records, *harder_cases(start)])
        see(ledger, start, [*spans, *CHANGING])


CHANGING = [
    # spot until the middle of the fourth hour; the second worker sees the change a second later
    ("e", "B200", 8, "ap", "spot", "w1", "up", 0, 3 * HOUR + 30 * MINUTE),
    ("e", "B200", 8, "ap", "spot", "w2", "up", 5, 3 * HOUR + 30 * MINUTE + 1_000_000),
    ("e", "B200", 8, "ap", "on_demand", "w1", "up", 3 * HOUR + 30 * MINUTE, 5 * HOUR),
    ("e", "B200", 8, "ap", "on_demand", "w2", "up", 3 * HOUR + 30 * MINUTE + 1_000_000, 5 * HOUR),
]


def harder_cases(start):
    """As failovers and aborts leave them: resumed streams, marks with cached counts that are not known yet or
    contradict the record, attempts without tokens, and attempts that end before they begin."""
    draw = random.Random(start + 1)
    records = []
    for number in range(60):
        begun = start + draw.randrange(4 * HOUR)
        ended = begun - 3 if number % 10 == 9 else begun + draw.randrange(1, HOUR)
        empty = number % 6 == 5
        prompt, completion = (0, 0) if empty else (draw.randrange(1, 900), draw.randrange(2, 900))
        cached = draw.choice((None, prompt // 3))
        turn = ended - ended % HOUR
        hit = draw.choice((None, 0, prompt // 3, prompt + 7))
        mark = [turn, draw.choice((prompt, prompt // 2)), hit, draw.choice((completion // 2, completion + 5))]
        records.append(
            record(
                f"harder-{start}-{number}",
                tenant=draw.choice(fleet.TENANTS),
                engine="e",
                gpu_type="B200",
                gpu_count=8,
                dispatched=begun,
                ended=ended,
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
                adapter_loads=number % 3,
                hour_marks=orjson.dumps([mark]).decode() if begun < turn < ended else None,
                outcome=draw.choice(("ok", "resumed", "resumed_cut", "failover")),
                billable=number % 7 != 0,
            )
        )
    empty = {"prompt_tokens": 0, "cached_tokens": None, "completion_tokens": 0}
    quiet = start + 4 * HOUR + 20 * MINUTE
    pool = {"engine": "e", "gpu_type": "B200", "gpu_count": 8}
    alone = [
        record(f"alone-{start}-{n}", dispatched=quiet, ended=quiet + MINUTE, **empty, **pool) for n in "ab"
    ]
    return [*records, *alone]


def see(ledger, start, spans):
    names = ("engine", "gpu_type", "gpu_count", "region", "purchase", "worker", "phase")
    for *pool, first, last in spans:
        see_up(ledger, start + first, start + last, **dict(zip(names, pool, strict=True)))


async def pages(client, path, **params):
    return [row async for page in pages_of(client, path, **params, limit=37) for row in page["data"]]


async def recomputed(client, start, end=None, **more):
    """From the API alone."""
    end = end or start + HOURS * HOUR
    within = {"from": iso(start), "to": iso(end)}
    longer = {
        "from": iso(start - HOUR),
        "to": iso(end + 2 * HOUR),
    }  # what ends later began within
    return outsider.recompute(
        await pages(client, "/finance/v1/usage", **longer),
        await pages(client, "/finance/v1/provisioned-time", **within),
        (await client.get("/admin/v1/prices")).json()["data"],
        start,
        end,
        await weights(client, **within),
        **more,
    )


async def weights(client, **within):
    """The calibration of each hour and engine."""
    path = "/finance/v1/provisioned-time/hours"
    hours = await pages(client, path, **within)
    answer = await client.get(path, params={**within, "limit": 10_000})
    known = {one["id"]: one for one in answer.json()["calibrations"]}
    return {(one["hour"], one["engine"]): known[one["calibration"]] for one in hours if one["calibration"]}


def iso(at):
    return outsider.datetime.fromtimestamp(at // 1_000_000, outsider.UTC).isoformat()


async def costs(client, **params):
    body = (await client.get("/finance/v1/costs", params={"by": BY, **params})).json()
    assert {reason["code"] for reason in body["reasons"]} <= {"prices_missing"}
    assert body["next"] is None
    return body


def sums(found):
    total = Counter()
    for amounts in found.values():
        total.update({name: amounts[name] for name in ("nano_gpu_hours", "cost")})
    return total


def whole(report):
    cost = outsider.Fraction(report["provisioned"]["cost"]) * 10**15
    return Counter(nano_gpu_hours=report["provisioned"]["nano_gpu_hours"], cost=int(cost))


def difference(after, before):
    """Without what is zero."""
    made = {}
    for key in after.keys() | before.keys():
        changed = Counter(after.get(key, {}))
        changed.subtract(before.get(key, {}))
        if kept := {name: value for name, value in changed.items() if value}:
            made[key] = kept
    return made


async def test_an_outsider_finds_the_same_to_the_last_unit(client_for, installed):
    async with client_for(Role.OPERATOR) as client:
        await add_all(client)
        fill(installed.ledger)
        october, november = await recomputed(client, OCTOBER), await recomputed(client, NOVEMBER)
        for start, mine in ((OCTOBER, october), (NOVEMBER, november)):
            report = await costs(client, **{"from": iso(start), "to": iso(start + HOURS * HOUR)})
            assert outsider.reported(report) == mine
            assert whole(report) == sums(mine)
        assert {(key.engine, key.purchase) for key in october} == {
            ("a", "on_demand"), ("b", "on_demand"), ("c", "spot"), ("d", "reserved"),
            ("e", "spot"), ("e", "on_demand"),
        }  # fmt: skip
        assert {key.bucket for key in october} == {"usage", "retry_waste", "startup", "idle"}

        closed = await client.post("/finance/v1/periods/2026-10/close", json={"policy": "none"})
        assert closed.status_code == 200, closed.text
        # Records of a worker that was away, and a price that starts in the closed month, within an hour.
        late = [
            record("late-1", tenant="late", engine="a", gpu_type="H100", gpu_count=2,
                   dispatched=OCTOBER + 5, ended=OCTOBER + HOUR + 17, completion_tokens=70_000),
            record("late-2", engine="d", gpu_type="H200", gpu_count=8,
                   dispatched=OCTOBER + 29 * MINUTE, ended=OCTOBER + 45 * MINUTE),
        ]  # fmt: skip
        installed.ledger.insert(late)
        await add(client, "L40", "", "on_demand", "0.5", "2026-10-01T02:00:01.234567Z")

        posted = await costs(client, month="2026-10")
        assert outsider.reported(posted) == october, "a closed month never changes"
        assert (posted["basis"], posted["state"]) == ("posted", "closed")
        now_known = await recomputed(client, OCTOBER)
        report = await costs(client, **{"from": iso(OCTOBER), "to": iso(OCTOBER + HOURS * HOUR)})
        assert outsider.reported(report) == now_known
        assert (report["basis"], report["state"]) == ("as known now", None)
        assert difference(now_known, october), "late records and the price change something"
        following = await costs(client, month="2026-11")
        november = await recomputed(client, NOVEMBER)  # still open: at the new price
        assert outsider.reported(following) == november
        found = difference(outsider.corrected(following), {})
        assert found == difference(now_known, october), "corrections are what changed, and nothing else"
        assert whole(following) == sums(november) + sums(now_known) - sums(october)


@pytest.mark.parametrize(
    ("zone", "ahead"),
    [
        ("Asia/Kolkata", 5 * HOUR + HOUR // 2),
        ("Asia/Kathmandu", 5 * HOUR + 45 * MINUTE),
        ("-03:30", -7 * HOUR // 2),
    ],
)
async def test_an_outsider_finds_the_same_days_where_midnight_cuts_an_hour(
    client_for, installed, zone, ahead
):
    """The traffic of the two months' first hours, moved so that it is around a local midnight, and cut there:
    each part of the hour is divided on its own, and the days sum to the whole."""
    day = 24 * HOUR
    midnight = OCTOBER + 3 * day - ahead
    first = midnight - 3 * HOUR - midnight % HOUR
    async with client_for(Role.OPERATOR) as client:
        await add_all(client)
        installed.ledger.insert(fleet.records(3, first))
        fleet.span(installed.ledger, first)
        records, spans = hard_cases(first)
        installed.ledger.insert(records)
        see(installed.ledger, first, spans)
        within = {"from": iso(midnight - day), "to": iso(midnight + day), "timezone": zone}
        mine = await recomputed(client, midnight - day, midnight + day, cut_every=day)
        report = await costs(client, **within)
        days = await costs(client, **within, by="day,tenant")
        single = [
            await costs(client, **{**within, "from": iso(start), "to": iso(start + day)}, by="day,tenant")
            for start in (midnight - day, midnight)
        ]
        month = await costs(client, month="2026-10", timezone=zone)
        utc = await costs(client, **{"from": iso(OCTOBER), "to": iso(OCTOBER + 9 * day)})
    assert outsider.reported(report) == mine
    assert whole(report) == sums(mine) == whole(month)
    assert whole(report) == whole(utc), "where an hour is cut changes neither GPU time nor its cost"
    assert [row for one in single for row in one["rows"]] == days["rows"]
    assert sorted({row["day"] for row in days["rows"]}) == ["2026-10-03", "2026-10-04"]
    assert report["local"]["from"].endswith("T00:00:00" + iso_offset(ahead))
    assert (report["from"], report["to"]) == tuple(within[n].replace("+00:00", "Z") for n in ("from", "to"))


def iso_offset(ahead):
    return f"{'-' if ahead < 0 else '+'}{abs(ahead) // HOUR:02}:{abs(ahead) // MINUTE % 60:02}"


async def test_calibrated_weights_too(client_for, installed):
    """Three GPU types are calibrated, one of them so slow that its work exceeds the busy time; one is not."""
    names = ("gpu_type", "prefill_ps", "cached_ps", "decode_ps", "kv_ps", "load_ps")
    rows = [
        ("H100", 123_456_789, 1_234_567, 7_654_321_987, 98_765, 5 * 10**12 + 1),
        ("L40", 10**12 + 7, 3, 10**13 + 11, 0, 0),
        ("B200", 10**8, 10**6, 10**9 + 7, 12_345, 10**12),
    ]
    put(installed.ledger, calibrations, *(calibration(**dict(zip(names, row, strict=True))) for row in rows))
    async with client_for(Role.OPERATOR) as client:
        await add_all(client)
        fill(installed.ledger)
        loading = [
            record(f"load-{n}", engine="a", gpu_type="H100", gpu_count=2, adapter_loads=n, base_model="base",
                   dispatched=OCTOBER + n * MINUTE, ended=OCTOBER + (n + 3) * MINUTE)
            for n in range(3)
        ]  # fmt: skip
        installed.ledger.insert(loading)
        mine = await recomputed(client, OCTOBER)
        by = await weights(client, **{"from": iso(OCTOBER), "to": iso(OCTOBER + HOURS * HOUR)})
        report = await costs(client, **{"from": iso(OCTOBER), "to": iso(OCTOBER + HOURS * HOUR)})
    assert outsider.reported(report) == mine
    assert whole(report) == sums(mine)
    assert {engine for _, engine in by} == {"a", "b", "c", "e"}
    assert report["weights"] == "partly calibrated"
    assert {one["gpu_type"] for one in report["calibrations"]} == {"H100", "L40", "B200"}
    assert any(one["saturated"]["output"] for one in report["unit_prices"])
    spare = {(key.engine, key.hour) for key in mine if key.bucket == "headroom"}
    used = {(key.engine, key.hour) for key in mine if key.bucket == "usage"}
    assert {"a", "c"} <= {engine for engine, _ in spare}, "what is busy beyond the work of its tokens"
    assert {engine for engine, _ in used - spare} >= {"b", "d"}, "more work than time; no calibration"


async def add_all(client):
    for terms in PRICES:
        await add(client, *terms)


async def add(client, gpu_type, region, purchase, rate, since, until=None):  # noqa: PLR0917  # as in PRICES
    body = {
        "gpu_type": gpu_type, "region": region, "purchase": purchase, "rate_per_gpu_hour": rate,
        "valid_from": since, "valid_to": until,
    }  # fmt: skip
    answer = await client.post("/admin/v1/prices", json=body, params={"confirm": "true"})
    assert answer.status_code == 201, answer.text
