"""Unit prices: the cost of a million tokens of computed input, cached input and output, by GPU type, region
and purchase model, in three ways. Pure, and exact until rendered.

- saturated: the calibrated weight of a token times the rate: its cost on a GPU that is never idle. None
without calibration.
- busy: the cost of busy time (B in `rollups.attribution`), split by the weights of what ran in it. Weights of
no token (KV residency, adapter loads) are split like the rest.
- loaded: busy times H/B, which includes start-up and idle time. Multiplied by the tokens of all attempts,
delivered or not, it gives the whole cost.

Prices are rounded to millionths of the currency, half away from zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gateway.costs.cost_lines import CostLine
from gateway.costs.rollups.token_weights import Weights
from gateway.units import FEMTO, MICRO, decimal_text, half_up

KINDS = ("input", "cached", "output")
WAYS = ("saturated", "busy", "loaded")
_WORKED = ("usage", "retry_waste")
_TOKENS = 1_000_000
_PS_PER_HOUR = 3600 * 10**12
"""Costs come in 10**-15 of the currency."""
_PLACES = 6

Three = tuple[Fraction, Fraction, Fraction]
"""Input, cached, output."""


@dataclass(frozen=True, slots=True)
class UnitPrices:
    """Currency per million tokens by kind; None without such tokens, price or calibration."""

    gpu_type: str
    region: str
    purchase: str
    tokens: tuple[int, int, int]
    """By KINDS, of all attempts."""
    saturated: tuple[Fraction | None, ...]
    busy: tuple[Fraction | None, ...]
    loaded: tuple[Fraction | None, ...]

    def document(self) -> dict[str, Any]:
        return {
            "gpu_type": self.gpu_type,
            "region": self.region,
            "purchase": self.purchase,
            **{
                way: {k: price_text(p) for k, p in zip(KINDS, getattr(self, way), strict=True)}
                for way in WAYS
            },
        }


def price_text(price: Fraction | None) -> str | None:
    if price is None:
        return None
    units = half_up(abs(price) * 10**_PLACES)
    return decimal_text(units if price >= 0 else -units, _PLACES)


def unit_prices(lines: Iterable[CostLine], weights: Mapping[int, Weights]) -> list[UnitPrices]:
    """By GPU type, region and purchase model, in this order. `lines`: of everything, by any dimensions.
    `weights`: by calibration."""
    pools: defaultdict[tuple[str, str, str], list[CostLine]] = defaultdict(list)
    for line in lines:
        if line.gpu_type:
            pools[line.series].append(line)
    return [_of_pool(key, pools[key], weights) for key in sorted(pools)]


def _of_pool(
    key: tuple[str, str, str], lines: Sequence[CostLine], weights: Mapping[int, Weights]
) -> UnitPrices:
    tokens = _tokens(lines)
    none: tuple[Fraction | None, ...] = (None,) * len(KINDS)
    busy = loaded = none
    working = [line for line in lines if line.bucket in (*_WORKED, "headroom")]
    cost = _cost(working)
    parts = None if cost is None else _split(working, cost)
    if cost is not None and parts is not None:
        busy = tuple(_per_million(part, n) for part, n in zip(parts, tokens, strict=True))
        pool_cost = _cost(lines)
        if pool_cost is not None and cost:
            loaded = tuple(None if price is None else price * pool_cost / cost for price in busy)
        elif pool_cost == 0:
            loaded = busy
    return UnitPrices(*key, tokens, _saturated(lines, weights), busy, loaded)


def _cost(lines: Iterable[CostLine]) -> int | None:
    """None if a price is missing."""
    costs = [0 if not line.nano_gpu_hours else line.cost for line in lines]
    return None if None in costs else sum(cost for cost in costs if cost)


def _tokens(lines: Iterable[CostLine]) -> tuple[int, int, int]:
    inputs = cached = outputs = 0
    for line in lines:
        if line.bucket in _WORKED:
            inputs += line.prompt_tokens - line.cached_tokens
            cached += line.cached_tokens
            outputs += line.completion_tokens
    return inputs, cached, outputs


def _split(working: Iterable[CostLine], pool_cost: int) -> Three | None:
    """Split a pool's cost by kind of token: by weight within each calibration and rate, because weights of
    different calibrations have different units; cost without weights is split like the rest. None if nothing
    has a weight."""
    groups: defaultdict[tuple[int, int | None], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for line in working:
        group = groups[line.calibration, line.rate_micros]
        values = (line.cost or 0, line.weight_input, line.weight_cached, line.weight_output)
        for index, value in enumerate(values):
            group[index] += value
    totals = [Fraction(0)] * len(KINDS)
    for cost, *omegas in groups.values():
        if weight := sum(omegas):
            totals = [t + Fraction(cost * omega, weight) for t, omega in zip(totals, omegas, strict=True)]
    divided = sum(totals)
    if not divided:
        return None if pool_cost else (Fraction(0), Fraction(0), Fraction(0))
    return totals[0] * pool_cost / divided, totals[1] * pool_cost / divided, totals[2] * pool_cost / divided


def _per_million(cost: Fraction, tokens: int) -> Fraction | None:
    return cost * _TOKENS / (FEMTO * tokens) if tokens > 0 else None


def _saturated(lines: Iterable[CostLine], weights: Mapping[int, Weights]) -> tuple[Fraction | None, ...]:
    """Mean over calibrated tokens; for a kind that did not occur, that of the latest calibration."""
    sums = [[Fraction(0), Fraction(0)] for _ in KINDS]
    latest: Three | None = None
    known = [line for line in lines if line.calibration in weights and line.bucket in _WORKED]
    for line in sorted(known, key=lambda line: line.calibration):
        if line.rate_micros is None:
            return (None,) * len(KINDS)
        latest = saturated(weights[line.calibration], line.rate_micros)
        for total, price, tokens in zip(sums, latest, _tokens([line]), strict=True):
            total[0] += price * tokens
            total[1] += tokens
    if latest is None:
        return (None,) * len(KINDS)
    return tuple(cost / n if n > 0 else last for (cost, n), last in zip(sums, latest, strict=True))


def saturated(weights: Weights, rate_micros: int) -> Three:
    """Currency per million tokens of input, cached, output: weight in GPU time times the rate."""
    per_ps = Fraction(rate_micros * _TOKENS, MICRO * _PS_PER_HOUR)
    return weights.prefill_ps * per_ps, weights.cached_ps * per_ps, weights.decode_ps * per_ps
