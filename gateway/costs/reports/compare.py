"""Prices a month's work on other GPUs. Pure.

    total cost of compute = rate x duration
    effective cost        = rate / speedup, per hour of the reference GPU

The speedup of a GPU type for a mix of traffic is w_reference(mix) / w_gpu(mix), where w is the GPU time of
the mix by the calibrated weights of each GPU type. Without calibrations, the speedup stated in the price book
is used; without that, it is unknown and nothing is guessed. All values are exact fractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil


@dataclass(frozen=True, slots=True)
class Mix:
    """Tokens of one base model."""

    base_model: str
    uncached: int
    """Prompt tokens that were computed."""
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class MeasuredWeights:
    """GPU-picoseconds per token, of one GPU type and base model. KV residency and adapter loads are left out:
    they depend on the fleet as much as on the GPU."""

    gpu_type: str
    base_model: str
    calibration: int
    uncached: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class Stated:
    """The speedup of a GPU type as stated in the price book."""

    gpu_type: str
    speedup: Fraction
    reference: str
    source: str


@dataclass(frozen=True, slots=True)
class Speed:
    """Relative to the reference GPU."""

    value: Fraction | None
    """None: unknown."""
    how: str
    """`reference`, `measured`, `stated` or `unknown`."""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """What ran on one GPU type."""

    gpu_type: str
    provisioned: Fraction
    """GPU-hours."""
    busy: Fraction
    """The part with something in flight."""
    mixes: tuple[Mix, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU offered in the price book."""

    gpu_type: str
    region: str
    purchase: str
    rate: Fraction
    """Per GPU-hour."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work, in hours of the reference GPU."""

    busy: Fraction
    provisioned: Fraction
    left_out: tuple[str, ...]
    """GPU types of unknown speed, whose work is not included."""
    mixes: tuple[Mix, ...]


@dataclass(frozen=True, slots=True)
class Priced:
    """The work on an offer; None if its speed is unknown."""

    offer: Offer
    speed: Speed
    effective_rate: Fraction | None
    """Per hour of the reference GPU."""
    busy_hours: Fraction | None
    busy_cost: Fraction | None
    """Without idle time."""
    loaded_hours: Fraction | None
    loaded_cost: Fraction | None
    """With the same share of idle time as in the month."""
    gpus: int | None
    """Whole GPUs that are always on, which have at least `loaded_hours`."""
    gpus_cost: Fraction | None
    discount: Fraction | None
    """Its rate relative to the on-demand rate; None if that is not in the price book."""


def total_cost(rate: Fraction, hours: Fraction) -> Fraction:
    """Total cost of compute: rate x duration, for any unit (a GPU, a node)."""
    return rate * hours


def effective_cost(rate: Fraction, speedup: Fraction) -> Fraction:
    """Per hour of the reference GPU."""
    return rate / speedup


def work(mixes: Iterable[Mix], weights: Mapping[str, MeasuredWeights]) -> int:
    """GPU-picoseconds, by the weights of each base model."""
    return sum(
        mix.uncached * w.uncached + mix.cached * w.cached + mix.output * w.output
        for mix in mixes
        for w in (weights[mix.base_model],)
    )


def speed(
    gpu_type: str,
    reference: str,
    mixes: Sequence[Mix],
    weights: Iterable[MeasuredWeights],
    stated: Mapping[str, Stated],
) -> Speed:
    """The speed of a GPU type for a mix of traffic. `weights`: at most one per GPU type and base model."""
    if gpu_type == reference:
        return Speed(Fraction(1), "reference")
    known = [w for w in weights if w.gpu_type in {gpu_type, reference}]
    mine = {w.base_model: w for w in known if w.gpu_type == gpu_type}
    theirs = {w.base_model: w for w in known if w.gpu_type == reference}
    models = {mix.base_model for mix in mixes}
    if models and models <= mine.keys() & theirs.keys():
        own, other = work(mixes, mine), work(mixes, theirs)
        if own and other:
            ids = sorted({mine[m].calibration for m in models} | {theirs[m].calibration for m in models})
            return Speed(Fraction(other, own), "measured", f"calibrations {', '.join(map(str, ids))}")
    return _stated(gpu_type, reference, stated)


def _stated(gpu_type: str, reference: str, stated: Mapping[str, Stated]) -> Speed:
    """From the price book, if both are stated relative to the same GPU type, or one relative to the other."""
    mine, theirs = stated.get(gpu_type), stated.get(reference)
    roots = [reference, *(s.reference for s in (mine, theirs) if s is not None)]
    for root in roots:
        own, other = _to(gpu_type, root, mine), _to(reference, root, theirs)
        if own is not None and other is not None:
            sources = dict.fromkeys(s.source for s in (own, other) if s.source)
            return Speed(own.speedup / other.speedup, "stated", ", ".join(sources))
    return Speed(None, "unknown")


def _to(gpu_type: str, root: str, speed: Stated | None) -> Stated | None:
    if gpu_type == root:
        return Stated(gpu_type, Fraction(1), root, "")
    return speed if speed is not None and speed.reference == root and speed.speedup > 0 else None


def demand(
    used: Sequence[Used], reference: str, weights: Sequence[MeasuredWeights], stated: Mapping[str, Stated]
) -> Demand:
    """The work in hours of the reference GPU: each GPU type's hours times its speed for the work that it
    did."""
    busy = provisioned = Fraction(0)
    left_out: list[str] = []
    mixes: list[Mix] = []
    for use in used:
        factor = speed(use.gpu_type, reference, use.mixes, weights, stated)
        if factor.value is None:
            left_out.append(use.gpu_type)
            continue
        busy += use.busy * factor.value
        provisioned += use.provisioned * factor.value
        mixes += use.mixes
    return Demand(busy, provisioned, tuple(left_out), _sum(mixes))


def _sum(mixes: Iterable[Mix]) -> tuple[Mix, ...]:
    mixes_of: dict[str, Mix] = {}
    for mix in mixes:
        before = mixes_of.get(mix.base_model, Mix(mix.base_model, 0, 0, 0))
        mixes_of[mix.base_model] = Mix(
            mix.base_model,
            before.uncached + mix.uncached,
            before.cached + mix.cached,
            before.output + mix.output,
        )
    return tuple(mixes_of[name] for name in sorted(mixes_of))


def compare(
    work: Demand,
    offers: Sequence[Offer],
    reference: str,
    weights: Sequence[MeasuredWeights],
    stated: Mapping[str, Stated],
    hours: Fraction,
) -> list[Priced]:
    """The work on each offer, with the cheapest whole GPUs first; offers of unknown speed last. `hours`:
    length of the period. A GPU cannot be had in fractions, so work that fills half of one costs all of it."""
    on_demand = {(o.gpu_type, o.region): o.rate for o in offers if o.purchase == "on_demand"}
    priced = [
        _priced(
            offer,
            speed(offer.gpu_type, reference, work.mixes, weights, stated),
            work,
            hours,
            on_demand.get((offer.gpu_type, offer.region)),
        )
        for offer in offers
    ]
    return sorted(priced, key=_order)


def _priced(offer: Offer, factor: Speed, work: Demand, hours: Fraction, on_demand: Fraction | None) -> Priced:
    discount = None if not on_demand or offer.purchase == "on_demand" else 1 - offer.rate / on_demand
    if factor.value is None:
        return Priced(offer, factor, None, None, None, None, None, None, None, discount)
    busy, loaded = work.busy / factor.value, work.provisioned / factor.value
    gpus = max(ceil(loaded / hours), 1)
    return Priced(
        offer=offer,
        speed=factor,
        effective_rate=effective_cost(offer.rate, factor.value),
        busy_hours=busy,
        busy_cost=total_cost(offer.rate, busy),
        loaded_hours=loaded,
        loaded_cost=total_cost(offer.rate, loaded),
        gpus=gpus,
        gpus_cost=total_cost(offer.rate, gpus * hours),
        discount=discount,
    )


def _order(priced: Priced) -> tuple[bool, Fraction, Fraction, str, str, str]:
    cost, rate = priced.gpus_cost, priced.effective_rate
    key = (priced.offer.gpu_type, priced.offer.region, priced.offer.purchase)
    return cost is None, cost or Fraction(0), rate or Fraction(0), *key
