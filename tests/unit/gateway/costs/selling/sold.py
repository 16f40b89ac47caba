"""Two months of a fleet whose names and rates are easy to find where they do not belong: acme has a rate card,
bolt pays the cost, corgi has a minimum and no usage. October is closed, and then a record of it arrives."""

from __future__ import annotations

from typing import Any

from gateway.costs.closing.closing import close
from gateway.costs.periods import month_of
from gateway.costs.rollups.rollup import roll
from gateway.costs.statement.page import statement_json
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import UsageRecord
from gateway.units import HOUR
from tests.support.ledger_rows import price, see_up
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.metering.make import record

ENGINE, RATE = "zebra-host-17", "2.718281"
OCTOBER, NOVEMBER = month_of("2026-10").start, month_of("2026-11").start
END = month_of("2026-11").end
NOW = END + 2 * HOUR
LATE = {"prompt_tokens": 5_000_000, "cached_tokens": 1_000_000, "completion_tokens": 700_000}


def attempt(name: str, tenant: str, start: int, **changes: int) -> UsageRecord:
    counts = {"prompt_tokens": 12_345, "cached_tokens": 2_345, "completion_tokens": 678, **changes}
    return record(
        name, tenant=tenant, adapter=f"{tenant}/chat", engine=ENGINE, gpu_type="H100", gpu_count=3,
        dispatched=start, first_token=start + 1, ended=start + HOUR // 7, **counts,
    )  # fmt: skip  # one name a line says no more


def up(ledger: Ledger, start: int) -> None:
    see_up(ledger, start, start + 3 * HOUR, engine=ENGINE, gpu_count=3)


def fill(ledger: Ledger) -> None:
    price(ledger, "H100", RATE)
    for number, start in enumerate((OCTOBER, NOVEMBER)):
        ledger.insert(
            [
                attempt(f"{number}-{n}-{tenant}", tenant, start + n * HOUR // 5)
                for n in range(9)
                for tenant in ("acme", "bolt")
            ]
        )
        up(ledger, start)
    sell(ledger, "acme", free_input=10_000)
    sell(ledger, "corgi", name="small", minimum_micros=25_000_000)


def close_october(ledger: Ledger) -> None:
    close(ledger, "2026-10", now=NOW, by="test", policy="proportional")


def arrive_late(ledger: Ledger) -> None:
    ledger.insert(
        [attempt("late", "acme", OCTOBER + HOUR, **LATE), attempt("late too", "bolt", OCTOBER + HOUR, **LATE)]
    )
    roll(ledger, NOW)


def fill_to_the_end(ledger: Ledger) -> None:
    """All of it."""
    fill(ledger)
    close_october(ledger)
    arrive_late(ledger)


def statement(ledger: Ledger, tenant: str = "acme", month: str = "2026-10", **more: Any) -> Any:
    return statement_json(ledger, tenant, month, issuer="Nordlicht", now=NOW, known=True, **more)
