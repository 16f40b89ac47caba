"""A customer with a rate card: no route and no page that its keys reach shows what it costs the operator."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2
import pytest

from adapters.store.protocol.registry import Change
from gateway.console.pages import ROUTES as PAGES
from gateway.costs.closing.closing import close
from gateway.costs.cost_lines import DIMENSIONS
from gateway.costs.forecasting.alerts import alerts_of, raise_alerts
from gateway.costs.forecasting.budgets import set_budget
from gateway.costs.forecasting.forecast import forecast
from gateway.costs.forecasting.look_ahead import find_anomalies, look_ahead
from gateway.costs.periods import Period, instant, iso, month_of
from gateway.costs.reports.request_cost import request_cost
from gateway.costs.rollups.rollup import roll
from gateway.metering.ledger.ledger import Ledger
from gateway.tenants import directory
from gateway.tenants.directory import TENANT_ROLES, Role, Tenant
from gateway.units import DAY, HOUR
from tests.support.console import Browser
from tests.support.empty_ledgers import put_sqlite
from tests.support.forms import some_of
from tests.support.harness import Gateway, running_gateway
from tests.support.ledger_rows import price, see_up
from tests.tools.docs.http_api import openapi, operations
from tests.tools.docs.roles import routes
from tests.unit.gateway.costs.rolled import lines
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.metering.make import record

NOW = time.time_ns() // 1000
THIS = month_of(iso(NOW)[:7])
LAST = month_of(iso(THIS.start - 1)[:7])
CLOSED = month_of(iso(LAST.start - 1)[:7])
DAYS = [*range(CLOSED.start, NOW - DAY, 4 * DAY), *range(NOW - NOW % DAY - 9 * DAY, NOW - 2 * HOUR, DAY)]
STARTS = sorted({day - day % HOUR + HOUR for day in DAYS})
RATE = "271828.182845"
"""Per GPU-hour: so much that the costs' digits are nobody else's."""


def fill(ledger: Ledger) -> None:
    """Two tenants on one engine, an hour every few days of three months, the first of which is closed."""
    price(ledger, "H100", RATE)
    ledger.insert([
        record(
            f"{start}-{n}-{tenant}", tenant=tenant, adapter=f"{tenant}/chat", key_id=f"{tenant}-key",
            engine="zebra", gpu_type="H100", gpu_count=3, dispatched=start + n, first_token=start + n + 1,
            ended=start + HOUR // (7 + n) + start // DAY % 5, prompt_tokens=12_345, cached_tokens=2_345, completion_tokens=678,
            end_user="ann", tag="docs", cost_centre="sales",
        )
        for start in STARTS for n in range(3) for tenant in ("acme", "bolt")
    ])  # fmt: skip
    for start in STARTS:
        see_up(ledger, start, start + HOUR, engine="zebra", gpu_count=3)
    sell(ledger, "acme", since=iso(CLOSED.start)[:7], free_input=10_000)
    close(ledger, iso(CLOSED.start)[:7], now=NOW, by="test", policy="proportional")
    roll(ledger, NOW)
    set_budget(ledger, tenant="acme", amount="0.01", first=iso(CLOSED.start)[:7], warn_percent=1, now=NOW)
    with ledger.write() as connection:
        for name in (iso(LAST.start)[:7], iso(THIS.start)[:7]):
            look = look_ahead(connection, name, now=NOW)
            raise_alerts(connection, alerts_of(look, find_anomalies(connection, now=NOW), now=NOW))


@pytest.fixture
async def gateway(tmp_path, valkey_url, prefix):
    (tmp_path / "state").mkdir()
    url = f"sqlite:///{put_sqlite(tmp_path / 'state' / 'ledger.db')}"
    ledger = Ledger(url)
    fill(ledger)
    ledger.close()
    async with running_gateway(tmp_path / "state", valkey_url, prefix) as running:
        tenant = Tenant("acme", base_access=True, created=0)
        await running.commit(Change("tenant", "acme", directory.dump(tenant)))
        yield running


def costs(ledger: Ledger) -> set[int]:
    """All that acme's use cost, by any dimension and day, and of single requests, in 10**-15 of the
    currency."""
    found: set[int] = set()
    for period in (CLOSED, LAST, THIS, Period(CLOSED.start, NOW)):
        for by in ("tenant", "day", "hour", "adapter", "key", "tag"):
            sums: dict[str, int] = {}
            for line in lines(ledger, period, ("tenant", by)):
                if line.keys[0] == "acme":
                    sums[line.keys[1]] = sums.get(line.keys[1], 0) + (line.cost or 0)
            found |= {*sums.values(), sum(sums.values())}
    whole = ledger.usage(start=0, end=NOW, tenant="acme", limit=1000)
    for one in whole[:: len(whole) // 6]:
        shown = request_cost(ledger, one.request_id, owner=None, now=NOW)
        found.add(round(float(shown["cost"]) * 10**15))
    days: dict[int, int] = {}
    for period in (LAST, THIS):
        for line in lines(ledger, period, ("tenant", "day")):
            if line.keys[0] == "acme":
                day = instant("day", line.keys[1])
                days[day] = days.get(day, 0) + (line.cost or 0)
    for day in range(THIS.start + DAY, NOW, DAY):
        estimate = forecast(days, THIS, day)
        found |= {estimate.so_far, *(n for n in (estimate.expected, estimate.high) if n)}
    return {cost for cost in found if cost >= 1000 * 10**15}


def spellings(cost: int) -> str:
    """The amount with any number of decimal places, or in cents."""
    whole, cents = cost // 10**15, cost // 10**13
    return rf"{whole}\.\d|(?:{cents}|{cents + 1})(?!\d)"


MONTHS = [iso(period.start)[:7] for period in (CLOSED, LAST, THIS)]
NAMES = {"tenant": "acme", "name": "chat", "request_id": f"{STARTS[-1]}-0-acme"}


def filled(path: str, of: str) -> str:
    values = NAMES | {"month": of}
    return re.sub(r"\{(\w+)[^}]*\}", lambda parameter: values.get(parameter[1], "none"), path)


def questions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every route that reads, in every way that changes which figures it shows."""
    for method, path, operation in operations(openapi()):
        if method == "GET" and path.startswith(("/admin/v1", "/finance/v1")):
            if "{month}" in path:
                yield from ((filled(path, of), {}) for of in MONTHS)
            else:
                yield filled(path, MONTHS[0]), {}
            if any(p["name"] == "month" and p["in"] == "query" for p in operation.get("parameters", ())):
                yield from ((filled(path, of), {"month": of}) for of in MONTHS)
    for by, of in product(DIMENSIONS, MONTHS):
        yield "/finance/v1/costs", {"month": of, "by": by}
    yield (
        "/finance/v1/costs",
        {"month": MONTHS[1], "by": "day,adapter", "timezone": "Asia/Kolkata", "format": "csv"},
    )
    yield "/finance/v1/costs", {"from": iso(CLOSED.start), "to": iso(NOW), "by": "day,tag,key"}
    for day in range(THIS.start + DAY, NOW, 3 * DAY):
        yield "/finance/v1/forecast", {"as_of": iso(day), "confidence": "95"}
    for kind, of in product(("csv", "focus-1.2", "focus-1.4"), MONTHS):
        yield "/finance/v1/export", {"month": of, "format": kind, "granularity": "daily"}
    for form, of in product(("html", "json", "csv"), MONTHS):
        yield "/finance/v1/statements/acme", {"month": of, "format": form, "by": "key"}


def pages() -> Iterator[tuple[str, dict[str, Any]]]:
    for page in PAGES:
        if page.method == "GET":
            path = f"/console{filled(page.path, MONTHS[1])}"
            yield from ((path, params) for params in ({}, {"month": MONTHS[1], "format": "csv"}))
            if "{month}" in path or "/money" in path:
                yield from ((f"/console{filled(page.path, of)}", {"month": of}) for of in MONTHS)


async def shown(client: httpx2.AsyncClient, path: str, params: dict[str, Any]) -> str:
    """What a reader sees of a route or page; of a stream, its first event."""
    async with client.stream("GET", path, params=params, headers={"hx-request": "true"}) as answer:
        if "event-stream" in answer.headers.get("content-type", ""):
            async for line in answer.aiter_lines():
                if not line:
                    return ""
        await answer.aread()
    assert answer.status_code < 500, (path, params, answer.text)
    return answer.text.replace(",", "") if answer.status_code == 200 else ""


@pytest.mark.parametrize("role", some_of(sorted(TENANT_ROLES), Role.TENANT_ADMIN))
async def test_no_route_and_no_page_shows_a_card_customer_what_it_costs(gateway: Gateway, role: Role):
    assert all(
        Role.TENANT_ADMIN in route.roles for route in routes() if route.roles and Role.TENANT in route.roles
    )
    key, text = directory.mint("acme", role, 0)
    await gateway.commit(Change("key", key.id, directory.dump(key)))
    secrets = costs(gateway.state.ledger)
    assert len(secrets) > 40
    cost = re.compile(rf"(?<![\d.])(?:{'|'.join(map(spellings, sorted(secrets)))})")
    read: set[str] = set()
    async with (
        httpx2.AsyncClient(
            base_url=gateway.url, timeout=None, headers={"authorization": f"Bearer {text}"}
        ) as api,
        Browser(base_url=gateway.url, timeout=None) as browser,
    ):
        await browser.sign_in(text)
        for client, asked in ((api, questions()), (browser, pages())):
            for path, params in asked:
                page = await shown(client, path, params)
                told = cost.search(page)
                assert told is None, (path, params, page[max(0, told.start() - 200) : told.end() + 50])
                if page:
                    read.add(path)
        ahead = (await api.get("/finance/v1/forecast", params={"month": iso(LAST.start)[:7]})).json()
        budgets, alerts = [(await api.get(f"/finance/v1/{name}")).json() for name in ("budgets", "alerts")]
    assert {"/finance/v1/usage", "/admin/v1/account", "/console/money", "/console/money/budgets"} <= read
    assert len(read) > 25
    terms = {one["priced_by"] for one in (*ahead["rows"], *budgets["data"])}
    assert (len(ahead["rows"]), len(budgets["data"]), terms) == (1, 1, {"rate_card"})
    assert {alert["data"]["priced_by"] for alert in alerts["data"]} == {"rate_card"}
