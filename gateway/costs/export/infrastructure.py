"""The infrastructure dataset: the cost of each engine-hour, split among the workloads that ran in it.

The origin charge is an engine-hour or engine-day (or the part of it with one rate). Its rows sum to its
quantity and cost. In FOCUS 1.4 they share its dimensions and differ only in what they are allocated to, as
the specification requires of a split charge. FOCUS 1.2 knows no split charges, so there the tenant is the
sub-account and, with its adapter, in the tags. Unused time (idle, start-up, headroom) is allocated to
nothing: it has no tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.charges import Charge, Covering, UnitPrices
from gateway.costs.export.row_facts import PURCHASE, discount, gpu_time, object_text, sku, tags

BY = ("hour", "engine", "gpu_type", "region", "purchase", "tenant", "adapter", "version", "base_model")
_ENGINE_HOUR = 5  # keys
TENANT = BY.index("tenant")
_MEASURED, _WEIGHTED = "florin-measured-gpu-time", "florin-weighted-tokens"
_RATIO_PLACES = 12


def rows(charges: Iterable[Charge], version: str) -> Iterator[Row]:
    """Rows from charges grouped by BY, in their order. Memory use is proportional to one engine-hour (or
    day)."""
    for _, of_engine in groupby(charges, key=lambda charge: charge.line.keys[:_ENGINE_HOUR]):
        origins: dict[tuple[int, int, bool, int, int], list[Charge]] = {}
        for charge in of_engine:
            line, prices = charge.line, charge.prices
            by = 0 if charge.covering is None else charge.covering.id
            key = (prices.paid, prices.list, line.correction, line.calibration, by)
            origins.setdefault(key, []).append(charge)
        for _, origin in sorted(origins.items()):
            yield from _split(origin, version)


def _split(origin: list[Charge], version: str) -> Iterator[Row]:
    first, prices = origin[0], origin[0].prices
    _, engine, gpu_type, region, purchase, *_ = first.line.keys
    same: Row = {
        "ChargePeriodStart": first.start,
        "ChargePeriodEnd": first.end,
        **sku("gpu", "GPU Time", gpu_type, region, prices),
        "ChargeClass": "Correction" if first.line.correction else None,
        "ChargeDescription": f"GPU-hours of engine {engine} ({gpu_type}, {PURCHASE[purchase]})",
        "ResourceId": engine,
        "ResourceName": engine,
        "ResourceType": "GPU Engine",
        "Tags": tags(gpu_type, purchase),
        "AllocatedMethodId": "florin-measured-gpu-time"
        if first.line.calibration
        else "florin-weighted-tokens",
        "x_GpuType": gpu_type,
    }
    shares = ratios([charge.line.nano_gpu_hours for charge in origin])
    for charge, ratio in zip(origin, shares, strict=True):
        line = charge.line
        owner = _owner(line, prices) if version == "1.2" else {}
        time = {**gpu_time(line.nano_gpu_hours, prices), **_covered(charge.covering, line.nano_gpu_hours)}
        yield {**same, **time, **_share(line, ratio), **owner}


def _covered(by: Covering | None, nano: int) -> Row:
    """A commitment is billed when it is bought."""
    if by is None:
        return {}
    cost = Fixed(by.effective, 15)
    return {
        **discount(by.id, by.description, nano),
        "BilledCost": Fixed(0, 15),
        "EffectiveCost": cost,
        "PricingCurrencyEffectiveCost": cost,
    }


def _owner(line: CostLine, prices: UnitPrices) -> Row:
    tenant, adapter, version, base_model = line.keys[_ENGINE_HOUR:]
    if not tenant:
        return {}
    named = {"tenant": tenant, "adapter": adapter, "version": version, "base_model": base_model}
    return {
        "SubAccountId": tenant,
        "SubAccountName": tenant,
        "Tags": tags(line.gpu_type, prices.purchase, bucket=line.bucket, **named),
    }


def _share(line: CostLine, ratio: Fixed | None) -> Row:
    tenant, adapter, version, base_model = line.keys[_ENGINE_HOUR:]
    return {
        **({} if not tenant else _workload(tenant, adapter, version, base_model, line.bucket)),
        "AllocatedMethodDetails": None if ratio is None else _details(line, ratio),
        "x_Adapter": adapter or None,
        "x_AdapterVersion": version or None,
        "x_BaseModel": base_model or None,
        "x_Bucket": line.bucket,
        "x_CachedTokens": line.cached_tokens,
        "x_GpuHours": Fixed(line.nano_gpu_hours, 9),
        "x_InputTokens": line.prompt_tokens - line.cached_tokens,
        "x_OutputTokens": line.completion_tokens,
        "x_Requests": line.requests,
        "x_Tenant": tenant or None,
    }


def _workload(tenant: str, adapter: str, version: str, base_model: str, bucket: str) -> Row:
    name = f"{adapter}@{version}" if adapter else base_model
    tags = {"florin/tenant": tenant, "florin/base_model": base_model, "florin/bucket": bucket}
    if adapter:
        tags |= {"florin/adapter": adapter, "florin/version": version}
    return {
        "AllocatedResourceId": f"{tenant}:{name}:{bucket}",
        "AllocatedResourceName": f"{name} for {tenant}" + (" (retries)" if bucket == "retry_waste" else ""),
        "AllocatedTags": object_text(**tags),
    }


def _details(line: CostLine, ratio: Fixed) -> str:
    hours = Fixed(line.nano_gpu_hours, 9)
    # Built as text, since a float would not be exact. It contains only numbers.
    return f'{{"Elements":[{{"AllocatedRatio":{ratio},"UsageUnit":"GPU-Hours","UsageQuantity":{hours}}}]}}'


def ratios(parts: list[int]) -> list[Fixed | None]:
    """Each part's share of the sum, to 12 places that add up to exactly 1; None if the sum is 0, as in a
    correction that only moves GPU time between workloads."""
    total = sum(parts)
    if total == 0:
        return [None] * len(parts)
    unit = 10**_RATIO_PLACES
    floors = [part * unit // total for part in parts]
    lost = [abs(part * unit % total) for part in parts]
    first = sorted(range(len(parts)), key=lambda index: (-lost[index], index))[: unit - sum(floors)]
    return [Fixed(floor + (index in first), _RATIO_PLACES) for index, floor in enumerate(floors)]
