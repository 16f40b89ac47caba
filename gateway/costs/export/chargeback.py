"""The chargeback dataset: what each tenant is charged for tokens, by adapter, version and GPU.

The GPU-time of an hour's answers is divided among input, cached and output tokens in proportion to their
weights; weights of no token (KV residency, adapter loads) thereby follow the tokens. Whole nano-GPU-hours are
divided by largest remainder, so the rows sum to the origin. GPU-time without tokens (of an answer that spans
two hours; its tokens count in the hour in which it ended) is a row in GPU-hours.

If a month was closed with a policy that allocates unused time to tenants, each tenant's share is one row for
the whole month per GPU type, region, purchase model and rate. Without a policy, unused time has no row.

A unit price is what that hour's tokens cost, not a list price: cost divided by tokens, to 21 places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gateway.costs.allocation import Allocated
from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, Row, divided
from gateway.costs.export.row_facts import PURCHASE, costs, gpu_time, hour, priced, sku, unit_price
from gateway.costs.periods import iso
from gateway.costs.periods import month as month_of
from gateway.costs.rollups.attribution import largest_remainder

BY = ("hour", "tenant", "adapter", "version", "base_model", "gpu_type", "region", "purchase")

_METERS = ("Input Tokens", "Cached Input Tokens", "Output Tokens")
_FAMILIES = ("input-tokens", "cached-input-tokens", "output-tokens")
_COLUMNS = ("x_InputTokens", "x_CachedTokens", "x_OutputTokens")


def rows(lines: Iterable[CostLine]) -> Iterator[Row]:
    """Rows from lines grouped by BY. Only delivered answers are charged; others have no row."""
    for line in lines:
        if line.bucket == "usage":
            yield from _charges(line)


def allocated_rows(
    allocated: Allocated, tenants: Collection[str], month: str, *, correction: bool = False
) -> Iterator[Row]:
    """Unused time of a month allocated to tenants, or a correction of it. `tenants`: as in `files.Order`."""
    period = month_of(month)
    for (tenant, gpu_type, region, purchase, rate), nano in allocated.items():
        assert rate is not None, "a file with missing prices is refused before"
        if any(tenant != wanted for wanted in tenants):
            continue
        yield {
            "ChargePeriodStart": iso(period.start),
            "ChargePeriodEnd": iso(period.end),
            "ChargeClass": "Correction" if correction else None,
            **sku("unused-gpu-time", "GPU Time", gpu_type, region, purchase),
            **gpu_time(nano, rate),
            "ChargeDescription": f"Share of unused GPU time on {gpu_type} ({PURCHASE[purchase]})",
            "ResourceId": f"pool/{gpu_type}",
            "ResourceName": f"All {gpu_type} GPUs",
            "ResourceType": "GPU Pool",
            **_owner(tenant, gpu_type, "allocated"),
            "x_GpuHours": Fixed(nano, 9),
            "x_Requests": 0,
        }


def _charges(line: CostLine) -> Iterator[Row]:
    requests = line.requests
    for row in _meters(line):
        yield {**_same(line), **row, "x_Requests": requests}
        requests = 0  # once per line, so that sums are right


def _meters(line: CostLine) -> Iterator[Row]:
    tokens = (line.prompt_tokens - line.cached_tokens, line.cached_tokens, line.completion_tokens)
    nanos, rest = split(line, tokens)
    rate = priced(line)
    _, _, adapter, version, base_model, gpu_type, region, purchase = line.keys
    name = f"{adapter}@{version}" if adapter else base_model
    on = f"of {name} on {gpu_type} ({PURCHASE[purchase]})"
    for index, (count, nano) in enumerate(zip(tokens, nanos, strict=True)):
        if count or nano:
            yield {
                **sku(_FAMILIES[index], _METERS[index], gpu_type, region, purchase),
                **_tokens(count, nano * rate, correction=line.correction),
                "ChargeDescription": f"{_METERS[index]} {on}",
                "x_GpuHours": Fixed(nano, 9),
                _COLUMNS[index]: count,
            }
    if rest or not any(tokens):
        yield {
            **sku("gpu-time", "GPU Time", gpu_type, region, purchase),
            **gpu_time(rest, rate),
            "ChargeDescription": f"GPU time {on}, for answers whose tokens are counted in another row",
            "x_GpuHours": Fixed(rest, 9),
        }


def split(line: CostLine, tokens: tuple[int, int, int]) -> tuple[list[int], int]:
    """The line's nano-GPU-hours by kind of token, and the part that no token accounts for. They sum to the
    line.

    In a correction, tokens and GPU-time may change in opposite directions; then no token accounts for it."""
    weights = [line.weight_input, line.weight_cached, line.weight_output]
    weights = [weight if count else 0 for weight, count in zip(weights, tokens, strict=True)]
    sign = -1 if line.nano_gpu_hours < 0 else 1
    if not any(weights) or any(sign * value < 0 for value in (*weights, *tokens)):
        return [0, 0, 0], line.nano_gpu_hours
    return largest_remainder(line.nano_gpu_hours, [abs(weight) for weight in weights], _FAMILIES), 0


def _tokens(count: int, cost: int, *, correction: bool) -> Row:
    quantity = Fixed(count, 6)
    # cost / 10**15 over count / 10**6, to 21 places
    price = Fixed(divided(cost * 10**12, count), 21) if count else None
    if correction and not cost:
        price = None  # only the counts changed
    return {
        "PricingQuantity": quantity,
        "PricingUnit": "1000000 Tokens",
        "ConsumedQuantity": Fixed(count, 0),
        "ConsumedUnit": "Tokens",
        **unit_price(price),
        **costs(cost),
    }


def _same(line: CostLine) -> Row:
    start, tenant, adapter, version, base_model, gpu_type, *_ = line.keys
    resource = f"{adapter}@{version}" if adapter else base_model
    return {
        **hour(start),
        "ChargeClass": "Correction" if line.correction else None,
        "ResourceId": resource,
        "ResourceName": resource,
        "ResourceType": "LoRA Adapter" if adapter else "Base Model",
        "x_Adapter": adapter or None,
        "x_AdapterVersion": version or None,
        "x_BaseModel": base_model or None,
        **_owner(tenant, gpu_type, "usage"),
    }


def _owner(tenant: str, gpu_type: str, bucket: str) -> Row:
    return {
        "SubAccountId": tenant,
        "SubAccountName": tenant,
        "x_Bucket": bucket,
        "x_CachedTokens": 0,
        "x_GpuType": gpu_type,
        "x_InputTokens": 0,
        "x_OutputTokens": 0,
        "x_Tenant": tenant,
    }
