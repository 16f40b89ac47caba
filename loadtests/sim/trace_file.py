"""Reads a trace of real traffic from a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gateway.planning.simulator.workloads import Workload

COLUMNS = ("arrival_s", "tenant", "adapter", "rank", "prompt_tokens", "output_tokens")


class TraceError(ValueError):
    """The file cannot be used; the message names the line and the column."""


def read(path: Path) -> Workload:
    """Raises TraceError. The requests are sorted by arrival, and the first one arrives at 0."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}, line 1: column {missing[0]} is missing")
            rows = [_row(row, f"{path}, line {reader.line_num}") for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    if not rows:
        raise TraceError(f"{path}: no requests")
    rows.sort(key=lambda row: row[0])
    arrival, tenant, adapter, rank, prompt, output = zip(*rows, strict=True)
    tenants, tenant_numbers = np.unique(tenant, return_inverse=True)
    names, numbers = np.unique([f"{t}/{a}" if a else "" for t, a in zip(tenant, adapter, strict=True)],
                               return_inverse=True)  # fmt: skip
    return Workload(
        arrival=np.array(arrival) - arrival[0],
        adapter=numbers,
        tenant=tenant_numbers,
        rank=np.array(rank),
        prompt=np.array(prompt),
        output=np.array(output),
        names=tuple(names.tolist()),
        tenants=tuple(tenants.tolist()),
    )


def _row(row: Mapping[str, str | None], where: str) -> tuple[float, str, str, int, int, int]:
    tenant, adapter = row["tenant"], row["adapter"]
    if not tenant:
        raise TraceError(f"{where}, column tenant: empty")
    return (
        _arrival(row["arrival_s"], where),
        tenant,
        adapter or "",
        _whole(row, "rank", where, least=1 if adapter else 0),
        _whole(row, "prompt_tokens", where, least=1),
        _whole(row, "output_tokens", where, least=1),
    )


def _arrival(text: str | None, where: str) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise TraceError(f"{where}, column arrival_s: {text!r} is not a number of seconds")
    return seconds


def _whole(row: Mapping[str, str | None], column: str, where: str, *, least: int) -> int:
    text = row[column]
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if number < least:
        raise TraceError(f"{where}, column {column}: {text!r} is not a whole number of at least {least}")
    return number
