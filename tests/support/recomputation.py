"""Recomputes a cost report from what the finance API says, as an outsider would: in exact fractions, from
records, sightings and prices as JSON, by the rules of docs/computation.md.

It imports nothing of Florin, so that it shares no mistake with it. GPU time is divided by input to output 1:2,
or by calibrated weights: a token's GPU time at saturation, and the rest of the busy time is spare."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from gateway.units import HOUR

BRIDGED = 60_000_000
UNUSED = ("startup", "idle")
CONTINUED = ("resumed", "resumed_cut")
SPARE = chr(0x10FFFF)
"""Of the busy time; after every record in a tie."""
Json = Mapping[str, Any]
Intervals = list[tuple[int, int]]


class Key(NamedTuple):
    bucket: str
    hour: int
    engine: str
    region: str
    purchase: str
    tenant: str = ""
    adapter: str = ""
    version: str = ""


Terms = tuple[str, str]
"""Region, purchase model."""
Amounts = Counter[str]
"""nano_gpu_hours; cost in 10**-15 of the currency; requests; prompt, cached and completion tokens."""


def micros(text: str) -> int:
    at = datetime.fromisoformat(text)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def recompute(  # noqa: PLR0917  # what an outsider has
    records: Sequence[Json],
    sightings: Sequence[Json],
    prices: Sequence[Json],
    start: int,
    end: int,
    weights: Mapping[tuple[int, str], Json] | None = None,
    cut_every: int = HOUR,
) -> dict[Key, Amounts]:
    """What a report of [start, end) must show, without what is zero. `weights`: the calibration of an hour
    and engine, as the API lists them; none: it is not calibrated. `start` and `end` are whole hours, unless
    local midnights, `cut_every` so often from `start`, cut hours."""
    found: dict[Key, Amounts] = defaultdict(Counter)
    records = [attempt for record in records for attempt in _attempts(record)]
    for place in _places(records, sightings):
        for hour in range(start - start % HOUR, end, HOUR):
            by = (weights or {}).get((hour, place[0]))
            cuts = {cut for cut in range(start, end + 1, cut_every) if hour < cut < hour + HOUR}
            _engine_hour(found, place, hour, records, sightings, (prices, by, cuts, (start, end)))
    return {key: +amounts for key, amounts in found.items() if +amounts}


def _places(records: Iterable[Json], sightings: Iterable[Json]) -> list[tuple[str, str, int]]:
    """Engines with their GPUs."""
    found = {(one["engine"], one["gpu_type"], one["gpu_count"]) for one in (*records, *sightings)}
    return sorted(place for place in found if place[0])  # a rejected request reached no engine


def _engine_hour(
    found: dict[Key, Amounts],
    place: tuple[str, str, int],
    hour: int,
    records: Sequence[Json],
    sightings: Sequence[Json],
    given: tuple[Sequence[Json], Json | None, set[int], tuple[int, int]],
) -> None:
    """`given`: prices, calibrated weights if there are any, further cuts, and what is reported."""
    engine, gpu_type, gpus = place
    prices, by, further, (first, last) = given
    here = [r for r in records if _place(r) == place and _run(r)[0] < hour + HOUR and _run(r)[1] > hour]
    seen = [
        s for s in sightings
        if _place(s) == place and s["started"] < hour + HOUR + BRIDGED and s["seen"] > hour - BRIDGED
    ]  # fmt: skip
    inside = [s for s in seen if s["started"] < hour + HOUR and s["seen"] >= hour]
    if not here and not inside:
        return
    timeline = _terms(inside, hour)
    engine_prices = {terms: _Prices.of(prices, gpu_type, *terms) for _, terms in timeline}
    busy = _union([_run(r) for r in here])
    up = [(s["started"], s["seen"]) for s in seen if s["phase"] == "up"]
    alive = [(s["started"], s["seen"]) for s in seen]
    ready = _union([*up, *busy])
    whole = _union([*_bridge(_union(alive)), *busy])
    cuts = {since for since, _ in timeline[1:]}
    for (since, terms), (until, _) in pairwise([*timeline, (hour + HOUR, ("", ""))]):
        cuts |= {cut for cut in engine_prices[terms].changes() if since < cut < until}
    cuts = sorted(cuts | further)
    spread = elapsed = 0
    for start, end in zip([hour, *cuts], [*cuts, hour + HOUR], strict=True):
        provisioned, working = _length(whole, start, end), _length(busy, start, end)
        starting = _length(_union([*alive, *ready]), start, end) - _length(ready, start, end)
        elapsed += provisioned
        total = elapsed * gpus * 10**9 // HOUR - spread  # a GPU-hour is 10**9 nano-GPU-hours
        spread += total
        spent = _divide(
            total,
            {"busy": Fraction(working), "startup": Fraction(starting),
             "unused": Fraction(provisioned - working - starting)},
        )  # fmt: skip
        if not first <= start < last:
            continue
        present = {r["id"]: r for r in here if _run(r)[0] < end and _run(r)[1] > start}
        omegas = {i: _weight(r, start, end, by) for i, r in present.items()}
        if by is not None:  # in GPU-nanoseconds; busy time beyond them is spare capacity
            omegas[SPARE] = max(working * gpus * 1000 - sum(omegas.values()), Fraction(0))
        shares = _divide(spent["busy"], omegas)
        terms = next(terms for since, terms in reversed(timeline) if since <= start)
        rate = engine_prices[terms].rate(start)
        at = (hour, engine, *terms)
        spare = shares.pop(SPARE, 0)
        found[Key("headroom", *at)].update(nano_gpu_hours=spare, cost=spare * rate)
        for name, nano in shares.items():
            record = present[name]
            bucket = "usage" if record["billable"] else "retry_waste"
            amounts = found[Key(bucket, *at, record["tenant"], record["adapter"], record["version"])]
            amounts.update(nano_gpu_hours=nano, cost=nano * rate)
            if start <= record["ended"] < end:
                amounts.update(
                    requests=record["requests"],
                    prompt_tokens=record["prompt_tokens"],
                    cached_tokens=record["cached_tokens"] or 0,
                    completion_tokens=record["completion_tokens"],
                )
        for bucket, nano in (("startup", spent["startup"]), ("idle", spent["unused"])):
            found[Key(bucket, *at)].update(nano_gpu_hours=nano, cost=nano * rate)


def _place(one: Json) -> tuple[str, str, int]:
    return one["engine"], one["gpu_type"], one["gpu_count"]


def _run(record: Json) -> tuple[int, int]:
    start, end = record["dispatched"], record["ended"]
    return (start, end) if start < end else (end, end + 1)


def _union(intervals: Iterable[tuple[int, int]]) -> Intervals:
    made: Intervals = []
    for start, end in sorted(intervals):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(end, made[-1][1]))
        else:
            made.append((start, end))
    return made


def _bridge(intervals: Intervals) -> Intervals:
    """Without gaps shorter than a minute."""
    made: Intervals = []
    for start, end in intervals:
        if made and start - made[-1][1] < BRIDGED:
            made[-1] = (made[-1][0], end)
        else:
            made.append((start, end))
    return made


def _length(intervals: Intervals, start: int, end: int) -> int:
    return sum(max(0, min(e, end) - max(s, start)) for s, e in intervals)


def _weight(record: Json, start: int, end: int, by: Json | None) -> Fraction:
    """The weight of a record's tokens in [start, end): linear between its start, its marks at the full hours
    and its end."""
    begun, ended = _run(record)
    known, kv = [(begun, 0)], 0
    computed = cached = done = 0
    most_cached = _cached(record)
    for time, prompt, hit, completion in _counts(record, begun, ended):
        before = done
        computed = max(computed, min(prompt - hit, record["prompt_tokens"] - most_cached))
        cached = max(cached, min(hit, most_cached))
        done = max(done, completion)
        if by is None:
            known.append((time, computed + 2 * done))
            continue
        # Half tokens in the KV cache times microseconds: the prompt, and the mean of the answer so far.
        kv += (2 * (computed + cached) + before + done) * (time - known[-1][0])
        known.append((time, _calibrated(by, computed, cached, done, kv, record["adapter_loads"])))

    def until(at: int) -> Fraction:
        for (low, weight), (high, more) in pairwise(known):
            if at <= high:
                return weight + Fraction((more - weight) * (max(at, low) - low), high - low)
        return Fraction(known[-1][1])

    return until(end) - until(start)


def _counts(record: Json, begun: int, ended: int) -> list[tuple[int, int, int, int]]:
    """(time, prompt, cached, completion) at each mark between start and end, and at the end. A cached count of
    null is that of the record; no count is more than the record's, but the cached one, which is no more than
    the prompt then."""
    prompt, cached, completion = record["prompt_tokens"], _cached(record), record["completion_tokens"]
    marks = {mark[0]: mark for mark in json.loads(record["hour_marks"] or "[]") if begun < mark[0] < ended}
    counts = [
        (time, min(read, prompt), cached if hit is None else hit, min(written, completion))
        for time, read, hit, written in (marks[time] for time in sorted(marks))
    ]
    return [(time, read, min(hit, read), written) for time, read, hit, written in counts] + [
        (ended, prompt, cached, completion)
    ]


def _cached(record: Json) -> int:
    return min(record["cached_tokens"] or 0, record["prompt_tokens"])


def _attempts(record: Json) -> list[Json]:
    """A record, or the two attempts that one of a continued stream stands for: reading the prompt again, which
    is waste, and the rest of the answer, which is the customer's."""
    if not record["billable"] or record["outcome"] not in CONTINUED:
        return [{**record, "requests": 1}]
    rest = {"prompt_tokens": 0, "cached_tokens": None, "adapter_loads": 0, "requests": 0}
    return [
        {**record, "completion_tokens": 0, "billable": False, "requests": 1},
        {**record, **rest, "id": record["id"] + "+"},
    ]


def _calibrated(by: Json, computed: int, cached: int, completion: int, kv: int, loads: int) -> int:
    """GPU-nanoseconds, each of four parts rounded down; the weights are in picoseconds."""
    parts = (
        Fraction(computed * by["prefill_ps"]),
        Fraction(cached * by["cached_ps"]),
        Fraction(completion * by["decode_ps"]),
        Fraction(kv, 2 * 10**6) * by["kv_ps"] + loads * by["load_ps"],
    )
    return sum(part // 1000 for part in parts)


def _divide(total: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """By largest remainder; ties to the smaller name. Without weights, equally."""
    if not weights:
        return {}
    if not sum(weights.values()):
        weights = dict.fromkeys(weights, Fraction(1))
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    parts = {name: int(share) for name, share in exact.items()}
    order = sorted(exact, key=lambda name: (parts[name] - exact[name], name))
    for name in order[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def _terms(inside: Iterable[Json], hour: int) -> list[tuple[int, Terms]]:
    """(since, region and purchase model) in an hour: from when they were seen, the first from its start."""
    timeline: list[tuple[int, Terms]] = []
    for sighting in sorted(inside, key=lambda s: (s["started"], s["seen"], s["worker"], s["phase"])):
        terms = sighting["region"], sighting["purchase"]
        since = max(sighting["started"], hour) if timeline else hour
        if since == hour:
            timeline = [(hour, terms)]
        elif timeline[-1][1] != terms:
            timeline.append((since, terms))
    return timeline or [(hour, ("", "on_demand"))]


class _Prices(NamedTuple):
    """The prices of an engine's terms: its region's own, and those of no region for the times between."""

    own: Sequence[Json]
    others: Sequence[Json]

    @classmethod
    def of(cls, prices: Sequence[Json], gpu_type: str, region: str, purchase: str) -> _Prices:
        series: dict[Terms, list[Json]] = defaultdict(list)
        for price in prices:
            if price["gpu_type"].lower() == gpu_type.lower():
                series[price["region"], price["purchase"]].append(price)
        if (region, purchase) == ("", "on_demand") and (region, purchase) not in series and len(series) == 1:
            return cls(*series.values(), ())
        return cls(series[region, purchase], series["", purchase])

    def applying(self, time: int) -> Json | None:
        """The price that applies: of those that cover a time, the one that began last."""
        for prices in self:
            covering = [
                price for price in prices
                if micros(price["valid_from"]) <= time
                and (price["valid_to"] is None or time < micros(price["valid_to"]))
            ]  # fmt: skip
            if covering:
                return max(covering, key=lambda price: micros(price["valid_from"]))
        return None

    def rate(self, time: int) -> int:
        price = self.applying(time)
        assert price is not None, "there is no price"
        return _millionths(price)

    def changes(self) -> set[int]:
        """When another price begins to apply."""
        ends = [price[name] for prices in self for price in prices for name in ("valid_from", "valid_to")]
        times = {micros(text) for text in ends if text is not None}
        return {time for time in times if self.applying(time) is not self.applying(time - 1)}


def _millionths(price: Json) -> int:
    rate = Fraction(price["rate_per_gpu_hour"]) * 10**6
    assert rate.denominator == 1
    return int(rate)


def reported(report: Json) -> dict[Key, Amounts]:
    """A report by hour, engine, region, purchase, tenant, adapter and version, in the same form. Without
    allocated time."""
    found: dict[Key, Amounts] = defaultdict(Counter)
    parts = [("usage", report["rows"])]
    parts += [(name, report[name]["rows"]) for name in ("retry_waste", "headroom", *UNUSED)]
    for bucket, rows in parts:
        for row in rows:
            found[_key(bucket, row)].update(_amounts(row))
    return {key: +amounts for key, amounts in found.items() if +amounts}


def corrected(report: Json) -> dict[Key, Amounts]:
    """The corrections of a report, which may be negative."""
    found: dict[Key, Amounts] = defaultdict(Counter)
    for row in report["corrections"]["rows"]:
        found[_key(row["bucket"], row)].update(_amounts(row))
    return found


def _key(bucket: str, row: Json) -> Key:
    names = ("tenant", "adapter", "version")
    return Key(
        bucket, micros(row["hour"]), row["engine"], row["region"], row["purchase"],
        *(row.get(name, "") for name in names),
    )  # fmt: skip


def _amounts(row: Json) -> dict[str, int]:
    cost = Fraction(row["cost"]) * 10**15
    assert cost.denominator == 1
    counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    return {
        "nano_gpu_hours": row["nano_gpu_hours"], "cost": int(cost), **{name: row.get(name, 0) for name in counts},
    }  # fmt: skip
