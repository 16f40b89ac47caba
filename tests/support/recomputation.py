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
    terms: tuple[Sequence[Json], Json | None, set[int], tuple[int, int]],
) -> None:
    """`terms`: prices, calibrated weights if there are any, further cuts, and what is reported."""
    engine, gpu_type, gpus = place
    prices, by, further, (first, last) = terms
    here = [r for r in records if _place(r) == place and _run(r)[0] < hour + HOUR and _run(r)[1] > hour]
    seen = [
        s for s in sightings
        if _place(s) == place and s["started"] < hour + HOUR + BRIDGED and s["seen"] > hour - BRIDGED
    ]  # fmt: skip
    inside = [s for s in seen if s["started"] < hour + HOUR and s["seen"] >= hour]
    if not here and not inside:
        return
    latest = max(inside, key=lambda s: (s["started"], s["seen"], s["worker"], s["phase"]), default=None)
    region, purchase = (latest["region"], latest["purchase"]) if latest else ("", "on_demand")
    rates = _rates(prices, gpu_type, region, purchase)
    busy = _union([_run(r) for r in here])
    up = [(s["started"], s["seen"]) for s in seen if s["phase"] == "up"]
    alive = [(s["started"], s["seen"]) for s in seen]
    ready = _union([*up, *busy])
    whole = _union([*_bridge(_union(alive)), *busy])
    cuts = {at for rate in rates for at in rate[:2] if at is not None and hour < at < hour + HOUR}
    cuts = sorted(cuts | further)
    given = elapsed = 0
    for start, end in zip([hour, *cuts], [*cuts, hour + HOUR], strict=True):
        provisioned, working = _length(whole, start, end), _length(busy, start, end)
        starting = _length(_union([*alive, *ready]), start, end) - _length(ready, start, end)
        elapsed += provisioned
        total = elapsed * gpus * 10**9 // HOUR - given  # a GPU-hour is 10**9 nano-GPU-hours
        given += total
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
        rate = next(r for begins, ends, r in rates if begins <= start and (ends is None or start < ends))
        at = (hour, engine, region, purchase)
        spare = shares.pop(SPARE, 0)
        found[Key("headroom", *at)].update(nano_gpu_hours=spare, cost=spare * rate)
        for name, nano in shares.items():
            record = present[name]
            bucket = "usage" if record["billable"] else "retry_waste"
            amounts = found[Key(bucket, *at, record["tenant"], record["adapter"], record["version"])]
            amounts.update(nano_gpu_hours=nano, cost=nano * rate)
            if start <= record["ended"] < end:
                amounts.update(
                    requests=1,
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
    cached = record["cached_tokens"] or 0
    known, held, done = [(begun, 0)], 0, 0
    marks = json.loads(record["hour_marks"] or "[]")
    for at, prompt, hit, completion in [
        *marks, (ended, record["prompt_tokens"], cached, record["completion_tokens"]),
    ]:  # fmt: skip  # as they are listed
        computed = prompt - (hit or 0)
        if by is None:
            known.append((at, computed + 2 * completion))
            continue
        # Half tokens in the KV cache times microseconds: the prompt, and the mean of the answer so far.
        held += (2 * prompt + done + completion) * (at - known[-1][0])
        done = completion
        known.append((at, _calibrated(by, computed, hit or 0, completion, held, record["adapter_loads"])))

    def until(at: int) -> Fraction:
        for (low, weight), (high, more) in pairwise(known):
            if at <= high:
                return weight + Fraction((more - weight) * (max(at, low) - low), high - low)
        return Fraction(known[-1][1])

    return until(end) - until(start)


def _calibrated(by: Json, computed: int, cached: int, completion: int, held: int, loads: int) -> int:
    """GPU-nanoseconds, each of four parts rounded down; the weights are in picoseconds."""
    parts = (
        Fraction(computed * by["prefill_ps"]),
        Fraction(cached * by["cached_ps"]),
        Fraction(completion * by["decode_ps"]),
        Fraction(held, 2 * 10**6) * by["kv_ps"] + loads * by["load_ps"],
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


def _rates(
    prices: Sequence[Json], gpu_type: str, region: str, purchase: str
) -> list[tuple[int, int | None, int]]:
    """(from, to, millionths per GPU-hour) of the series: that of the region or, without one, of none."""
    for where in (region, ""):
        series = [
            p for p in prices if (p["gpu_type"], p["region"], p["purchase"]) == (gpu_type, where, purchase)
        ]
        if series:
            break
    series.sort(key=lambda price: micros(price["valid_from"]))
    starts = [micros(price["valid_from"]) for price in series]
    ends = [*starts[1:], None]
    return [
        (start, end if price["valid_to"] is None else micros(price["valid_to"]), _millionths(price))
        for price, start, end in zip(series, starts, ends, strict=True)
    ]


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
