"""Allocates unused time (idle, headroom, start-up) to tenants by a policy. Pure, in whole nano-GPU-hours.

- `none`: not allocated; it stays a line of its own.
- `proportional`: by the GPU time of each tenant's delivered attempts.
- `even`: equally among the tenants that used the pool.
- `fixed`: by agreed shares, regardless of use.

A tenant may have a policy of its own. It then bears what that policy alone would give it; if all tenants
together would bear more than the whole, each bears proportionally less.

Each pool (GPU type, region, purchase model and rate) is divided separately, so that cost follows from time.
Retry waste is not divided: it has a tenant, and a line of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any

from gateway.costs.cost_lines import CostLine
from gateway.costs.fixed_shares import PolicyError, parse_shares
from gateway.costs.rollups.attribution import largest_remainder
from gateway.units import decimal_of

POLICIES = ("none", "proportional", "even", "fixed")
OWN_POLICIES = ("none", "proportional", "even")
"""Policies that a tenant can have of its own: `fixed` needs the shares of all."""
UNUSED = ("headroom", "startup", "idle")

Pool = tuple[str, str, str, int | None]
"""GPU type, region, purchase model, rate."""
Allocated = dict[tuple[str, str, str, str, int | None], int]
"""(tenant, *pool) → nano-GPU-hours."""


@dataclass(frozen=True, slots=True)
class AllocationPolicy:
    name: str = "none"
    shares: Mapping[str, int] = field(default_factory=dict)
    """For `fixed`: by tenant, in any proportion."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Tenant → its own policy, one of OWN_POLICIES."""

    @property
    def allocates(self) -> bool:
        """Whether it can allocate anything to anybody."""
        return self.name != "none" or any(name != "none" for name in self.own.values())

    def document(self) -> dict[str, Any]:
        """As the terms of a closed month hold it."""
        return {"policy": self.name, "shares": dict(self.shares), "own": dict(sorted(self.own.items()))}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> AllocationPolicy:
        """The inverse of `document`."""
        return cls(document["policy"], document["shares"], document.get("own", {}))


NONE = AllocationPolicy()


def policy_of(name: str, shares: str | None = None) -> AllocationPolicy:
    """Parse a policy. `shares`: `acme=60,bolt=40` or `acme=60%,bolt=40%`, for `fixed` only. Raises
    PolicyError."""
    parsed, total = parse_shares((shares or "").split(",") if shares else ())
    return checked(name, parsed, total)


def checked(name: str, shares: Mapping[str, int], total: int | None = None) -> AllocationPolicy:
    """The policy. `total`: what the shares are said to sum to. Raises PolicyError."""
    if name not in POLICIES:
        raise PolicyError("policy", f"policy: {name[:40]!r} is not one of {', '.join(POLICIES)}.")
    if (name == "fixed") != bool(shares):
        raise PolicyError(
            "shares", "shares: required for policy fixed, like acme=60,bolt=40, and only for it."
        )
    if shares and not any(shares.values()):
        raise PolicyError("shares", "shares: at least one must be greater than 0.")
    if total is not None and (given := sum(shares.values())) != total:
        percent = decimal_of(Fraction(100 * given, total)).removesuffix(".00")
        raise PolicyError("shares", f"shares: they sum to {percent} %, not to 100 %.")
    return AllocationPolicy(name, shares)


def divide(policy: AllocationPolicy, unused: int, used: Mapping[str, int]) -> dict[str, int]:
    """Divide `unused` by largest remainder, ties to the smaller name; {} if no tenant can bear it. `used`: by
    tenant. Amounts may be negative: a correction is divided in the same way."""
    weights = _weights(policy, used)
    if not unused or not weights:
        return {}
    names = sorted(weights)
    sign = -1 if unused < 0 else 1
    parts = largest_remainder(abs(unused), [weights[name] for name in names], names)
    return {name: sign * part for name, part in zip(names, parts, strict=True) if name != _NOBODY}


_NOBODY = ""
"""Bears what tenants with policies of their own leave."""


def _weights(policy: AllocationPolicy, used: Mapping[str, int]) -> dict[str, int]:
    weights = _weights_of(policy.name, policy.shares, used)
    return _mixed(policy, weights, used) if policy.own else weights


def _weights_of(name: str, shares: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    if name == "none":
        return {}
    if name == "fixed":
        return {tenant: share for tenant, share in shares.items() if share}
    # Positive use alone counts; if there is only negative use (corrections), that counts.
    signed = {n: u for n, u in used.items() if u > 0} or {n: -u for n, u in used.items() if u < 0}
    return dict.fromkeys(signed, 1) if name == "even" else signed


def _mixed(policy: AllocationPolicy, common: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """Weights of the shares that each tenant's policy gives it, with a common denominator."""
    shares = {t: share for t, share in _shares(common).items() if t not in policy.own}
    for name in OWN_POLICIES:
        alone = _shares(_weights_of(name, {}, used))
        shares |= {t: share for t, share in alone.items() if policy.own.get(t) == name}
    if not shares:
        return {}
    shares[_NOBODY] = max(1 - sum(shares.values(), Fraction(0)), Fraction(0))
    scale = lcm(*(share.denominator for share in shares.values()))
    return {tenant: int(share * scale) for tenant, share in shares.items()}


def _shares(weights: Mapping[str, int]) -> dict[str, Fraction]:
    total = sum(weights.values())
    return {name: Fraction(weight, total) for name, weight in weights.items()}


def pool(line: CostLine) -> Pool:
    return *line.series, line.rate_micros


class PoolSums:
    """Unused time, and the time that each tenant used, by pool. Mutable."""

    def __init__(self) -> None:
        self._unused: defaultdict[Pool, int] = defaultdict(int)
        self._used: defaultdict[Pool, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, line: CostLine, tenant: str) -> None:
        if line.bucket in UNUSED:
            self._unused[pool(line)] += line.nano_gpu_hours
        elif line.bucket == "usage":
            self._used[pool(line)][tenant] += line.nano_gpu_hours

    def allocated(self, policy: AllocationPolicy) -> Allocated:
        """Each tenant's share of each pool."""
        return {
            (tenant, *key): nano
            for key, unused in sorted(self._unused.items(), key=repr)
            for tenant, nano in divide(policy, unused, self._used[key]).items()
            if nano
        }


def allocate(
    policy: AllocationPolicy,
    lines: Iterable[CostLine],
    tenant_of: Callable[[CostLine], str] = lambda line: line.keys[0],
) -> Allocated:
    """Each tenant's share of each pool. `lines`: of all tenants, and without tenant."""
    sums = PoolSums()
    for line in lines:
        sums.add(line, tenant_of(line))
    return sums.allocated(policy)


def merged(*parts: Allocated, sign: int = 1) -> Allocated:
    """The sum of the first and, with `sign`, the others; without zeros."""
    sums: defaultdict[tuple[str, str, str, str, int | None], int] = defaultdict(int)
    for index, part in enumerate(parts):
        for key, nano in part.items():
            sums[key] += nano if index == 0 else sign * nano
    return {key: nano for key, nano in sorted(sums.items(), key=repr) if nano}


def spread(nano: int, used: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Divide a tenant's share among its rows in proportion to their use, for reports by more than tenant.
    Equally if none was used; ties to the smaller key."""
    keys = sorted(used)
    weights = [max(used[key], 0) for key in keys]
    sign = -1 if nano < 0 else 1
    parts = largest_remainder(abs(nano), weights, ["\0".join(key) for key in keys])
    return {key: sign * part for key, part in zip(keys, parts, strict=True)}
