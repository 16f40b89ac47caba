"""The measured steps. Each runs in its own process, so that its memory can be measured."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text

from gateway.costs.allocation import AllocationPolicy
from gateway.costs.closing.closing import close
from gateway.costs.closing.preview import preview
from gateway.costs.export.columns import Granularity
from gateway.costs.export.files import Order, export
from gateway.costs.periods import month_of
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.daily_sums import mark_unsummed
from gateway.costs.rollups.rollup import imbalance, roll
from gateway.costs.statement.page import statement_json
from gateway.costs.verification.verify import verify
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_hours, rollup_parts, rollups
from gateway.metering.records import FINAL, UsageRecord, record_id
from gateway.units import HOUR
from loadtests.ledger.month import BATCH, HOURS, MONTH, START, engines

END = START + HOURS * HOUR
"""The reports' period: the month."""
LATE = 20_000
"""Number of records that the `insert` step adds."""
PATIENCE = 60.0
"""Seconds of roll-up if only a part of the month is to be rolled up."""
ROLL_PARTLY = "roll up for a minute"
NAIVE = """
    SELECT tenant, adapter, gpu_type, COUNT(*), SUM(prompt_tokens), SUM(cached_tokens), SUM(completion_tokens)
    FROM usage WHERE billable GROUP BY tenant, adapter, gpu_type
"""
"""The query on a plain table of spend logs: tokens only, because the table does not know GPU costs. This is
its best case, because there are no other months to skip."""


NAIVE_STEP = "raw records by tenant, adapter, GPU type"


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    seconds: float
    cpu_seconds: float
    """CPU seconds of the process: everything with SQLite, excluding the server with PostgreSQL."""
    peak_mib: float
    """Peak resident memory of the process, including the interpreter and imports."""
    result: dict[str, Any]


def measure(name: str, url: str) -> Measured:
    """Run one step in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured, name, url).result()


def _measured(name: str, url: str) -> Measured:
    ledger = Ledger(url)
    with ledger.read():
        pass
    start, cpu = time.perf_counter(), time.process_time()
    result = {**STEPS, **PARTLY, **DAILY}[name](ledger)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    ledger.close()
    return Measured(name, seconds, cpu_seconds, _peak_mib(), result)


def _peak_mib() -> float:
    """Peak memory of this process alone; getrusage's figure includes the parent's memory at the fork."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _roll(ledger: Ledger, patience: float | None = None) -> dict[str, Any]:
    done = roll(ledger, END, patience=patience)
    return {"engine_hours": done.rolled, "pending": done.pending}


def _copy_days(ledger: Ledger) -> dict[str, Any]:
    """The sums of the first day, once more for each other day."""
    counted = {}
    with ledger.write() as connection:
        mark_unsummed(connection, (START + day * 24 * HOUR for day in range(HOURS // 24)))
        for table in (engine_hours, rollups, rollup_parts):
            names = [column.name for column in table.columns if column.name != "id"]
            for day in range(1, HOURS // 24):
                own = [
                    (column + day * 24 * HOUR if column.name in {"hour", "piece"} else column)
                    for column in (table.c[name] for name in names)
                ]
                first = table.c.hour < START + 24 * HOUR
                connection.execute(table.insert().from_select(names, select(*own).where(first)))
            counted[str(table.name)] = connection.execute(
                select(func.count()).select_from(table)
            ).scalar_one()
    return counted


def _imbalance(ledger: Ledger) -> dict[str, Any]:
    return {"nano_gpu_hours": imbalance(ledger)}


def _report(*by: str, **more: Any) -> Callable[[Ledger], dict[str, Any]]:
    def step(ledger: Ledger) -> dict[str, Any]:
        report = cost_report(ledger, Question(month_of(MONTH), by, **more), now=END)
        return {
            "rows": len(report["rows"]),
            "requests": sum(row["requests"] for row in report["rows"]),
            "completion_tokens": sum(row["completion_tokens"] for row in report["rows"]),
            "complete": report["complete"],
        }

    return step


def _naive(ledger: Ledger) -> dict[str, Any]:
    with ledger.read() as connection:
        rows = connection.execute(text(NAIVE)).all()
    return {
        "rows": len(rows),
        "requests": sum(row[3] for row in rows),
        "completion_tokens": int(sum(row[6] for row in rows)),
    }


def _insert(ledger: Ledger) -> dict[str, Any]:
    """Insert like the shipper, into a full ledger: records of the hour after the month."""
    engine = engines()[0]
    for first in range(0, LATE, BATCH):
        ledger.insert([_later(n, engine.name, engine.gpu_type) for n in range(first, first + BATCH)])
    return {"records": LATE}


def _later(n: int, engine: str, gpu_type: str) -> UsageRecord:
    end = END + (n + 1) * (HOUR // (LATE + 1))
    request = f"req-{end // 1000 - 2000:012x}{n:016x}"
    return UsageRecord(
        id=record_id(request, 1), request_id=request, attempt=1, tenant=f"tenant-{n % 97:03}", key_id="key",
        adapter=f"tenant-{n % 97:03}/adapter-1", version="v1", base_model="base", engine=engine,
        gpu_type=gpu_type, gpu_count=1, dispatched=max(end - 2_000_000, END), first_token=None, ended=end,
        prompt_tokens=300, cached_tokens=20, completion_tokens=90, reasoning_tokens=0, n=1,
        usage_source="engine_final", outcome="ok", billable=True, seq=FINAL, seen=end,
    )  # fmt: skip  # one argument per line would not be clearer


def _roll_later(ledger: Ledger) -> dict[str, Any]:
    done = roll(ledger, END + HOUR)
    return {"engine_hours": done.rolled, "pending": done.pending}


def _close(ledger: Ledger) -> dict[str, Any]:
    closed = close(ledger, MONTH, now=END + 2 * HOUR, by="the load test", policy="proportional", force=True)
    return {"records": closed["records"]}


def _preview(ledger: Ledger) -> dict[str, Any]:
    with ledger.read() as connection:
        document = preview(connection, MONTH, now=END + 2 * HOUR)
    return {"statements": len(document["statements"])}


def _statement(ledger: Ledger) -> dict[str, Any]:
    statement = statement_json(ledger, "tenant-007", MONTH, issuer="", now=END + 2 * HOUR, known=True)
    assert statement is not None, "known"
    return {"amount_cents": statement["amount_cents"], "state": statement["state"]}


def _verify(*, quick: bool) -> Callable[[Ledger], dict[str, Any]]:
    def step(ledger: Ledger) -> dict[str, Any]:
        [verification] = verify(ledger, MONTH, quick=quick)
        return {"problems": [check.detail for check in verification.checks if check.ok is False]}

    return step


def _export(granularity: Granularity) -> Callable[[Ledger], dict[str, Any]]:
    order = Order(MONTH, "focus-1.2", "chargeback", "the load test", granularity=granularity)

    def step(ledger: Ledger) -> dict[str, Any]:
        with tempfile.NamedTemporaryFile(prefix="florin-export-") as file:
            rows = export(ledger, order, Path(file.name))
            return {"rows": rows, "bytes": Path(file.name).stat().st_size}

    return step


STEPS: dict[str, Callable[[Ledger], dict[str, Any]]] = {
    "roll up the month": _roll,
    "check that it adds up": _imbalance,
    "report by tenant, adapter, GPU type": _report("tenant", "adapter", "gpu_type"),
    "the same, idle time allocated": _report(
        "tenant", "adapter", "gpu_type", policy=AllocationPolicy("proportional")
    ),
    "report of one tenant by hour": _report("adapter", "hour", tenants=("tenant-007",)),
    "statement of one tenant": _statement,
    "preview of the closing": _preview,
    "export, FOCUS by day": _export("daily"),
    NAIVE_STEP: _naive,
    "insert 20,000 more, by 500": _insert,
    "roll up their hour": _roll_later,
    "close the month": _close,
    "report of the closed month": _report("tenant", "adapter", "gpu_type"),
    "statement of the closed month": _statement,
    "verify it, quickly": _verify(quick=True),
    "verify it": _verify(quick=False),
}
"""Step → what it does. In this order."""
PARTLY: dict[str, Callable[[Ledger], dict[str, Any]]] = {
    ROLL_PARTLY: partial(_roll, patience=PATIENCE),
    "insert 20,000 more, by 500": _insert,
}
"""The steps of a month that is too large to be rolled up in the time that there is."""
DAILY: dict[str, Callable[[Ledger], dict[str, Any]]] = {
    "roll up a day": _roll,
    "copy its sums to the other days": _copy_days,
    **{name: STEPS[name] for name in list(STEPS)[1:8] if name != NAIVE_STEP},
}
"""The steps of a month of which only one day's records are made: what reads no records."""
