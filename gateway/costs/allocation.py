"""Allocates unused time (idle, headroom, start-up) to tenants by a policy. Pure, in whole nano-GPU-hours.

- `none`: not allocated; it stays a line of its own.
- `proportional`: by the GPU-time of each tenant's delivered attempts.
- `even`: equally among the tenants that used the pool.
- `fixed`: by agreed shares, regardless of use.

Each pool (GPU type, region, purchase model and rate) is divided separately, so that cost follows from time.
Retry waste is not divided: it has a tenant, and a line of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.costs.cost_lines import CostLine
from gateway.costs.rollups.attribution import largest_remainder

POLICIES = ("none", "proportional", "even", "fixed")
UNUSED = ("headroom", "startup", "idle")

Pool = tuple[str, str, str, int | None]
"""GPU type, region, purchase model, rate."""
Allocated = dict[tuple[str, str, str, str, int | None], int]
"""(tenant, *pool) → nano-GPU-hours."""

_SHARE = re.compile(r"([^=,\s]+)=([0-9]{1,9})", re.ASCII)


class PolicyError(ValueError):
    """An invalid policy. `param` names the parameter."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class AllocationPolicy:
    name: str = "none"
    shares: Mapping[str, int] = field(default_factory=dict)
    """For `fixed`: by tenant, in any proportion."""


NONE = AllocationPolicy()


def policy_of(name: str, shares: str | None = None) -> AllocationPolicy:
    """Parse a policy. `shares`: `acme=60,bolt=40`, for `fixed` only. Raises PolicyError."""
    if name not in POLICIES:
        raise PolicyError("policy", f"policy: {name[:40]!r} is not one of {', '.join(POLICIES)}.")
    if (name == "fixed") != bool(shares):
        raise PolicyError(
            "shares", "shares: required for policy fixed, like acme=60,bolt=40, and only for it."
        )
    found: dict[str, int] = {}
    for part in (shares or "").split(",") if shares else ():
        match = _SHARE.fullmatch(part.strip())
        if match is None or match[1] in found:
            raise PolicyError("shares", f"shares: {part[:40]!r} is not tenant=share, once per tenant.")
        found[match[1]] = int(match[2])
    if found and not any(found.values()):
        raise PolicyError("shares", "shares: at least one must be greater than 0.")
    return AllocationPolicy(name, found)


def divide(policy: AllocationPolicy, unused: int, used: Mapping[str, int]) -> dict[str, int]:
    """Divide `unused` by largest remainder, ties to the smaller name; {} if no tenant can bear it. `used`: by
    tenant. Amounts may be negative: a correction is divided in the same way."""
    weights = _weights(policy, used)
    if not unused or not weights:
        return {}
    names = sorted(weights)
    sign = -1 if unused < 0 else 1
    parts = largest_remainder(abs(unused), [weights[name] for name in names], names)
    return {name: sign * part for name, part in zip(names, parts, strict=True)}


def _weights(policy: AllocationPolicy, used: Mapping[str, int]) -> dict[str, int]:
    if policy.name == "none":
        return {}
    if policy.name == "fixed":
        return {name: share for name, share in policy.shares.items() if share}
    # Positive use alone counts; if there is only negative use (corrections), that counts.
    signed = {n: u for n, u in used.items() if u > 0} or {n: -u for n, u in used.items() if u < 0}
    return dict.fromkeys(signed, 1) if policy.name == "even" else signed


def pool(line: CostLine) -> Pool:
    return line.gpu_type, line.region, line.purchase, line.rate_micros


def allocate(
    policy: AllocationPolicy,
    lines: Iterable[CostLine],
    tenant_of: Callable[[CostLine], str] = lambda line: line.keys[0],
) -> Allocated:
    """Each tenant's share of each pool. `lines`: of all tenants, and without tenant."""
    unused: defaultdict[Pool, int] = defaultdict(int)
    used: defaultdict[Pool, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line.bucket in UNUSED:
            unused[pool(line)] += line.nano_gpu_hours
        elif line.bucket == "usage":
            used[pool(line)][tenant_of(line)] += line.nano_gpu_hours
    return {
        (tenant, *key): nano
        for key, whole in sorted(unused.items(), key=repr)
        for tenant, nano in divide(policy, whole, used[key]).items()
        if nano
    }


def spread(nano: int, used: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """Divide a tenant's share among its rows in proportion to their use, for reports by more than tenant.
    Equally if none was used; ties to the smaller key."""
    keys = sorted(used)
    weights = [max(used[key], 0) for key in keys]
    sign = -1 if nano < 0 else 1
    parts = largest_remainder(abs(nano), weights, ["\0".join(key) for key in keys])
    return {key: sign * part for key, part in zip(keys, parts, strict=True)}
