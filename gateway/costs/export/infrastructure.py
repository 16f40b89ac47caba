"""The infrastructure dataset: the cost of each engine-hour, split among the workloads that ran in it.

The origin charge is an engine-hour (or the part of it with one rate). Its rows share its dimensions, sum to
its quantity and cost, and differ only in what they are allocated to. Unused time (idle, start-up, headroom)
is allocated to nothing: its AllocatedResourceId is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from gateway.costs.cost_lines import CostLine
from gateway.costs.export.cells import Fixed, Row
from gateway.costs.export.row_facts import PURCHASE, gpu_time, hour, object_text, priced, sku

BY = ("hour", "engine", "gpu_type", "region", "purchase", "tenant", "adapter", "version", "base_model")
_ENGINE_HOUR = 5  # keys
_RATIO_PLACES = 12


def rows(lines: Iterable[CostLine]) -> Iterator[Row]:
    """Rows from lines grouped by BY, in their order. Memory use is proportional to one engine-hour."""
    for _, of_hour in groupby(lines, key=lambda line: line.keys[:_ENGINE_HOUR]):
        origins: dict[tuple[int, bool, int], list[CostLine]] = {}
        for line in of_hour:
            if line.bucket != "rejected":  # reached no engine
                key = (priced(line), line.correction, line.calibration)
                origins.setdefault(key, []).append(line)
        for _, origin in sorted(origins.items()):
            yield from _split(origin)


def _split(origin: list[CostLine]) -> Iterator[Row]:
    first = origin[0]
    start, engine, gpu_type, region, purchase, *_ = first.keys
    same: Row = {
        **hour(start),
        **sku("gpu", "GPU Time", gpu_type, region, purchase),
        "ChargeClass": "Correction" if first.correction else None,
        "ChargeDescription": f"GPU-hours of engine {engine} ({gpu_type}, {PURCHASE[purchase]})",
        "ResourceId": engine,
        "ResourceName": engine,
        "ResourceType": "GPU Engine",
        "AllocatedMethodId": "florin-measured-gpu-time" if first.calibration else "florin-weighted-tokens",
        "x_GpuType": gpu_type,
    }
    for line, ratio in zip(origin, ratios([line.nano_gpu_hours for line in origin]), strict=True):
        yield {**same, **gpu_time(line.nano_gpu_hours, priced(line)), **_share(line, ratio)}


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
    correction that only moves GPU-time between workloads."""
    whole = sum(parts)
    if whole == 0:
        return [None] * len(parts)
    one = 10**_RATIO_PLACES
    floors = [part * one // whole for part in parts]
    lost = [abs(part * one % whole) for part in parts]
    first = sorted(range(len(parts)), key=lambda index: (-lost[index], index))[: one - sum(floors)]
    return [Fixed(floor + (index in first), _RATIO_PLACES) for index, floor in enumerate(floors)]
