"""A year of a reseller (see tests/support/reseller), closed month by month, and every statement recomputed in exact
fractions from what the API exports: each quantity, each exact amount, each cent."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict

import pytest
from sqlalchemy import select

from adapters.store.protocol.registry import Event
from gateway.costs.periods import iso, month_of
from gateway.metering.ledger.schema import period_tenants
from gateway.tenants.directory import Role, Tenant, dump
from gateway.units import DAY, HOUR
from tests.support import recomputation as outsider
from tests.support import reseller
from tests.support import statement_recomputation as accountant
from tests.support.forms import LONG
from tests.support.paging import pages_of
from tests.support.reseller import MONTHS, TENANTS

CLOSED = HOUR * 3
"""After a month's end."""
POLICIES = dict(zip(MONTHS, ("none", "proportional", "even") * 4, strict=True))
GPU_TYPES = {place.engine: place.gpu_type for place in reseller.PLACES}


class Clock:
    """Mutable: stands still at a time."""

    def __init__(self) -> None:
        self.time = month_of(MONTHS[0]).start

    def __call__(self) -> int:
        return self.time


@pytest.fixture
def now():
    return Clock()


@pytest.fixture
def installed(installed):
    for seq, name in enumerate(TENANTS, 10):
        installed.directory.apply(Event(seq, "tenant", name, dump(Tenant(name, base_access=True, created=0))))
    return installed


async def post(client, path, body, *statuses):
    answer = await client.post(path, json=body, params={"confirm": "true"})
    assert answer.status_code in (statuses or (201,)), answer.text
    return answer.json()


async def get(client, path, **params):
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(client, path, **params):
    return [row async for page in pages_of(client, path, **params, limit=1000) for row in page["data"]]


async def open_the_books(client):
    for price in reseller.PRICES:
        await post(client, "/admin/v1/prices", price)
    for card in reseller.CARDS:
        await post(client, "/finance/v1/rate-cards", card)
    for assignment in reseller.assignments():
        await post(client, "/finance/v1/rate-cards/assignments", assignment)


def windows(month):
    """Where the traffic is."""
    period = month_of(month)
    return (period.start, period.start + 3 * HOUR), (period.end - HOUR, period.end)


class Outsider:
    """Keeps what it recomputed, as long as the exported data are the same. Mutable."""

    def __init__(self):
        self._known = {}

    async def usage(self, client, months):
        """What is known of each month, from the exports of now."""
        year = {"from": iso(month_of(months[0]).start), "to": iso(month_of(months[-1]).end + 2 * HOUR)}
        records = await listed(client, "/finance/v1/usage", **year)
        sightings = await listed(client, "/finance/v1/provisioned-time", **year)
        prices = (await get(client, "/admin/v1/prices"))["data"]
        return {month: self._month(month, records, sightings, prices) for month in months}

    def _month(self, month, records, sightings, prices):
        attributed = {}
        period = month_of(month)
        ended = [r for r in records if period.start <= r["ended"] < period.end]
        assert all(any(start <= r["ended"] < end for start, end in windows(month)) for r in ended)
        for start, end in windows(month):
            near = [r for r in records if r["dispatched"] < end and r["ended"] >= start]
            seen = [s for s in sightings if s["started"] < end + HOUR and s["seen"] > start - HOUR]
            exported = near, seen, prices
            if self._known.get((month, start), (None,))[0] != exported:
                self._known[month, start] = exported, outsider.recompute(near, seen, prices, start, end)
            attributed |= self._known[month, start][1]
        return accountant.usage_of(attributed, ended, GPU_TYPES, residency(month, period))


def residency(month, period):
    """Thousandths of an hour, by tenant and adapter: the union of an adapter's stays."""
    stays = defaultdict(list)
    for name in MONTHS[: MONTHS.index(month) + 1]:
        for stay in reseller.stays(name):
            stays[stay["version"].partition("@")[0]].append((stay["started"], stay["seen"]))
    hours = defaultdict(dict)
    for adapter, own in stays.items():
        covered = sum(max(0, min(end, period.end) - max(start, period.start)) for start, end in union(own))
        if milli := covered * 1000 // HOUR:
            hours[adapter.partition("/")[0]][adapter] = milli
    return hours


def union(stays):
    merged = []
    for start, end in sorted(stays):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


def sealed(ledger, month):
    """The statements that the seal of a month covers, in the form of the accountant."""
    with ledger.read() as connection:
        query = select(period_tenants.c.tenant, period_tenants.c.document).where(
            period_tenants.c.month == month
        )
        documents = {tenant: json.loads(document) for tenant, document in connection.execute(query)}
    return {tenant: in_units(document) for tenant, document in documents.items()}


def in_units(document):
    return {
        "cost": units(document["cost"]),
        "amount_cents": document["amount_cents"],
        "lines": dict(filter(None, map(line_of, document["lines"]))),
        "charges": None if (charges := document.get("charges")) is None else charges_of(charges),
        "manual": [
            (line["kind"], line["id"], line["amount_cents"], line.get("days", 0))
            for line in document.get("manual", ())
        ],
    }


def line_of(line):
    names = ("kind", "adapter", "gpu_type", "region", "purchase")
    correction = "correction" if line["correction"] else ""
    counts = {name: line[name] for name in accountant.COUNTS}
    counts |= {"nano": line["nano_gpu_hours"], "cost": units(line["cost"])}
    counts = {name: n for name, n in counts.items() if n}
    key = (*(line[name] for name in names), correction, line.get("corrects", ""))
    return (key, (counts, line["amount_cents"])) if counts else None


def charges_of(charges):
    lines, corrections = [], {}
    for line in charges["lines"]:
        exact = units(line["exact"])
        match line["kind"]:
            case "correction":
                if exact:
                    corrections[line["month"]] = exact, line["amount_cents"]
                continue
            case "cost":
                what = "cost", None
            case "requests":
                what = line["sku"], (line["requests"], line["free_requests"])
            case "residency":
                hours = {
                    each["adapter"]: int(outsider.Fraction(each["hours"]) * 1000) for each in line["adapters"]
                }
                what = line["sku"], hours
            case "batch_discount":  # stated by line; the accountant has their sum
                what = line["sku"].partition("/")[0], None
                if lines and lines[-1][:2] == what:
                    exact, cents = exact + lines[-1][2], line["amount_cents"] + lines[-1][3]
                    lines[-1] = (*what, exact, cents)
                    continue
            case "discount" | "minimum":
                what = line["sku"], None
            case _:
                what = line["sku"], (line["tokens"], line["free_tokens"])
        lines.append((*what, exact, line["amount_cents"]))
    return {
        "card": None if charges["card"] is None else (charges["card"], charges["card_from"]),
        "exact": units(charges["exact"]),
        "amount_cents": charges["amount_cents"],
        "corrections": corrections,
        "lines": lines,
    }


def units(text):
    amount = outsider.Fraction(text) * accountant.UNIT
    assert amount.denominator == 1
    return int(amount)


async def test_every_statement_of_a_year_is_recomputed_to_the_last_unit(client_for, installed, now):
    traffic = reseller.traffic(seed=7, each=12 if LONG else 2)
    checked = charged = 0
    before, stated_in = {}, {}
    async with client_for(Role.OPERATOR) as client:
        export = Outsider()
        await open_the_books(client)
        for month in MONTHS:
            period = month_of(month)
            now.time = period.start + 20 * DAY
            for when, line in reseller.MANUAL:
                if when == month:
                    await post(client, "/finance/v1/manual-lines", line)
            if month == "2026-08":
                prices = (await get(client, "/admin/v1/prices"))["data"]
                number = next(p["id"] for p in prices if p["rate_per_gpu_hour"] == "3.07")
                await post(client, f"/admin/v1/prices/{number}/correct", reseller.CORRECTED)
            installed.ledger.insert(traffic.arriving[month])
            reseller.see(installed.ledger, month)
            now.time = period.end + CLOSED
            closing = {"policy": POLICIES[month]}
            await post(client, f"/finance/v1/periods/{month}/close", closing, 200)

            known = await export.usage(client, MONTHS[: MONTHS.index(month) + 1])
            cards = accountant.Cards(await get(client, "/finance/v1/rate-cards"))
            books = accountant.Books(cards, TENANTS, POLICIES, before, known)
            days = (period.end - period.start) // DAY
            added = (await get(client, "/finance/v1/manual-lines"))["data"]
            manual = accountant.manual_lines(added, month, days)
            mine = accountant.statements_of(month, books, manual)
            stated = sealed(installed.ledger, month)
            assert stated.keys() == mine.keys(), month
            for tenant, statement in stated.items():
                assert statement == mine[tenant], (month, tenant)
            checked += len(stated)
            stated_in[month] = stated
            charged += sum(s["charges"]["amount_cents"] for s in stated.values() if s["charges"])
            before = known
        assert checked > 400
        assert charged > 0
        await files_sum_to_statements(client, client_for, "2026-08", stated_in["2026-08"])
        for month in (MONTHS[0], MONTHS[-1]):
            verification = await get(client, f"/finance/v1/periods/{month}/verify")
            assert not [c for c in verification["checks"] if not c["ok"]], month


async def files_sum_to_statements(client, client_for, month, statements):
    """The file of all charges, and each customer's own FOCUS file."""
    charges = await table(client, month=month, dataset="charges")
    for tenant, statement in statements.items():
        own = statement["charges"] or statement
        manual = sum(cents for _, _, cents, _ in statement["manual"])
        stated = own["amount_cents"] + manual
        rows = [row for row in charges if row["tenant"] == tenant]
        assert sum(outsider.Fraction(row["amount"]) for row in rows) == outsider.Fraction(stated, 100), tenant
        for row in filter(lambda row: row["quantity"], rows):
            exact = outsider.Fraction(row["quantity"]) * outsider.Fraction(row["unit_price"])
            assert abs(exact - outsider.Fraction(row["amount"])) < outsider.Fraction(1, 100), row
        if not LONG and int(tenant[1:]) % 4:
            continue
        async with client_for(Role.TENANT, tenant) as customer:
            rows = await table(customer, month=month)
        exact = (statement["charges"] or {"exact": statement["cost"]})["exact"] + manual * accountant.CENT
        billed = sum(outsider.Fraction(row["BilledCost"]) for row in rows)
        assert billed == outsider.Fraction(exact, accountant.UNIT), tenant


async def table(client, **params):
    answer = await client.get("/finance/v1/export", params=params)
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text)))
