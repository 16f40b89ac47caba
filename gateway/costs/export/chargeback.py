"""The chargeback dataset: what each tenant is charged for tokens, by adapter, version and GPU, and what
nobody is charged for. It sums to the infrastructure dataset.

The GPU time of an hour's (or day's) answers is divided among input, cached and output tokens in proportion to
their weights; weights of no token (KV residency, adapter loads) thereby follow the tokens. Whole nano-GPU-
hours are divided by largest remainder, so the rows sum to the origin. Tokens are what is consumed; what is
priced is GPU time, so that quantity times unit price is exactly the cost. GPU time without tokens (of an
answer that spans two hours; its tokens count in the hour in which it ended) is a row of its own.

If the month's policy allocates unused time to tenants, each tenant's share is one row for the whole month per
GPU type, region, purchase model and rate. What is left of it, and retry waste, are rows without a
sub-account, likewise for the whole month.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from gateway.costs.allocation import UNUSED, Allocated, Pool, pool
from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.charges import Charge, ListPrice, UnitPrices, unit_prices, within
from gateway.costs.export.row_facts import PURCHASE, gpu_time, sku, tags
from gateway.costs.periods import month_of
from gateway.costs.rollups.attribution import largest_remainder

BY = ("hour", "tenant", "adapter", "version", "base_model", "gpu_type", "region", "purchase")

_METERS = ("Input Tokens", "Cached Input Tokens", "Output Tokens")
_FAMILIES = ("input-tokens", "cached-input-tokens", "output-tokens")
_COLUMNS = ("x_InputTokens", "x_CachedTokens", "x_OutputTokens")
_NOBODYS = {
    "retry_waste": ("retry-waste", "Retries, which no tenant is charged for, on"),
    "unallocated": ("unused-gpu-time", "Unused GPU time that no tenant is charged for, on"),
}

Leftover = Mapping[tuple[str, str, Pool], int]
"""(month, `retry_waste` or `unallocated`, pool) → nano-GPU-hours that no tenant is charged for."""


def rows(charges: Iterable[Charge]) -> Iterator[Row]:
    """Rows from charges grouped by BY. Only delivered answers are charged; others are in `leftover`."""
    for charge in charges:
        if charge.line.bucket == "usage":
            yield from _charges(charge)


def leftover(lines: Iterable[CostLine], allocated: Mapping[str, Allocated]) -> Leftover:
    """`lines`: all that are posted to the month, by day. `allocated`: by the month that it is for."""
    unused: defaultdict[tuple[str, str, Pool], int] = defaultdict(int)
    for line in lines:
        if line.bucket in UNUSED:
            unused[line.keys[0][:7], "unallocated", pool(line)] += line.nano_gpu_hours
        elif line.bucket == "retry_waste":
            unused[line.keys[0][:7], line.bucket, pool(line)] += line.nano_gpu_hours
    for name, parts in allocated.items():
        for (_, *key), nano in parts.items():
            unused[name, "unallocated", tuple(key)] -= nano  # type: ignore[index]  # a pool
    return {key: nano for key, nano in sorted(unused.items(), key=repr) if nano}


def leftover_rows(left: Leftover, month: str, listed: ListPrice) -> Iterator[Row]:
    for (name, bucket, (gpu_type, region, purchase, rate)), nano in left.items():
        family, words = _NOBODYS[bucket]
        start = month_of(name).start
        prices = unit_prices(gpu_type, region, purchase, rate, start, listed)
        yield {
            **_of_month(name, gpu_type, prices, correction=name != month),
            **sku(family, "GPU Time", gpu_type, region, prices),
            **gpu_time(nano, prices),
            "ChargeDescription": f"{words} {gpu_type} ({PURCHASE[purchase]})",
            "Tags": tags(gpu_type, purchase, bucket=bucket),
            "x_Bucket": bucket,
            "x_GpuHours": Fixed(nano, 9),
        }


def allocated_rows(
    allocated: Allocated,
    tenants: Collection[str],
    month: str,
    listed: ListPrice,
    *,
    correction: bool = False,
) -> Iterator[Row]:
    """Unused time of a month allocated to tenants, or a correction of it. `tenants`: as in `files.Order`."""
    start = month_of(month).start
    for (tenant, gpu_type, region, purchase, rate), nano in allocated.items():
        if any(tenant != only for only in tenants):
            continue
        prices = unit_prices(gpu_type, region, purchase, rate, start, listed)
        yield {
            **_of_month(month, gpu_type, prices, correction=correction),
            **sku("unused-gpu-time", "GPU Time", gpu_type, region, prices),
            **gpu_time(nano, prices),
            "ChargeDescription": f"Share of unused GPU time on {gpu_type} ({PURCHASE[purchase]})",
            **_owner(tenant, "allocated", tags(gpu_type, purchase, tenant=tenant, bucket="allocated")),
            "x_GpuHours": Fixed(nano, 9),
        }


def _of_month(month: str, gpu_type: str, prices: UnitPrices, *, correction: bool) -> Row:
    return {
        **within(month_of(month)),
        **_no_tokens(gpu_type),
        "ChargeClass": "Correction" if correction else None,
        "ResourceId": f"pool/{gpu_type}/{prices.purchase}",
        "ResourceName": f"All {gpu_type} GPUs ({PURCHASE[prices.purchase]})",
        "ResourceType": "GPU Pool",
        "x_Requests": 0,
    }


def _charges(charge: Charge) -> Iterator[Row]:
    requests = charge.line.requests
    same = _same(charge)
    for row in _meters(charge):
        yield {**same, **row, "x_Requests": requests}
        requests = 0  # once per line, so that sums are right


def _meters(charge: Charge) -> Iterator[Row]:
    line, prices = charge.line, charge.prices
    tokens = (line.prompt_tokens - line.cached_tokens, line.cached_tokens, line.completion_tokens)
    nanos, rest = split(line, tokens)
    _, _, adapter, version, base_model, gpu_type, region, purchase = line.keys
    name = f"{adapter}@{version}" if adapter else base_model
    on = f"of {name} on {gpu_type} ({PURCHASE[purchase]})"
    for index, (count, nano) in enumerate(zip(tokens, nanos, strict=True)):
        if count or nano:
            yield {
                **sku(_FAMILIES[index], _METERS[index], gpu_type, region, prices),
                **gpu_time(nano, prices),
                "ConsumedQuantity": Fixed(count, 0),
                "ConsumedUnit": "Tokens",
                "ChargeDescription": f"{_METERS[index]} {on}",
                "x_GpuHours": Fixed(nano, 9),
                _COLUMNS[index]: count,
            }
    if rest or not any(tokens):
        yield {
            **sku("gpu-time", "GPU Time", gpu_type, region, prices),
            **gpu_time(rest, prices),
            "ChargeDescription": f"GPU time {on}, for answers whose tokens are counted in another row",
            "x_GpuHours": Fixed(rest, 9),
        }


def split(line: CostLine, tokens: tuple[int, int, int]) -> tuple[list[int], int]:
    """The line's nano-GPU-hours by kind of token, and the part that no token accounts for. They sum to the
    line.

    In a correction, tokens and GPU time may change in opposite directions; then no token accounts for it."""
    weights = [line.weight_input, line.weight_cached, line.weight_output]
    weights = [weight if count else 0 for weight, count in zip(weights, tokens, strict=True)]
    sign = -1 if line.nano_gpu_hours < 0 else 1
    if not any(weights) or any(sign * value < 0 for value in (*weights, *tokens)):
        return [0, 0, 0], line.nano_gpu_hours
    return largest_remainder(line.nano_gpu_hours, [abs(weight) for weight in weights], _FAMILIES), 0


def _same(charge: Charge) -> Row:
    _, tenant, adapter, version, base_model, gpu_type, _, purchase = charge.line.keys
    resource = f"{adapter}@{version}" if adapter else base_model
    named = {"tenant": tenant, "adapter": adapter, "version": version, "base_model": base_model}
    return {
        "ChargePeriodStart": charge.start,
        "ChargePeriodEnd": charge.end,
        "ChargeClass": "Correction" if charge.line.correction else None,
        "ResourceId": resource,
        "ResourceName": resource,
        "ResourceType": "LoRA Adapter" if adapter else "Base Model",
        "x_Adapter": adapter or None,
        "x_AdapterVersion": version or None,
        "x_BaseModel": base_model or None,
        **_no_tokens(gpu_type),
        **_owner(tenant, "usage", tags(gpu_type, purchase, **named)),
    }


def _owner(tenant: str, bucket: str, tags_: str) -> Row:
    return {
        "SubAccountId": tenant,
        "SubAccountName": tenant,
        "Tags": tags_,
        "x_Bucket": bucket,
        "x_Tenant": tenant,
    }


def _no_tokens(gpu_type: str) -> Row:
    return {"x_CachedTokens": 0, "x_GpuType": gpu_type, "x_InputTokens": 0, "x_OutputTokens": 0}
