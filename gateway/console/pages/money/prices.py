"""The price book: GPU prices, exchange rates, and the rate cards that customers pay by."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from gateway.console.pages.money.shared import Json, month_of, tabs
from gateway.console.tables import Cell, Column
from gateway.console.visit import STAFF, Route, Visit

_PURCHASES: Final = [("on_demand", "On demand"), ("spot", "Spot"), ("reserved", "Reserved")]


async def prices(visit: Visit) -> Response:
    history = bool(visit.query.get("history"))
    book, rates, cards = await asyncio.gather(
        visit.api.get("/admin/v1/prices", history="true" if history else None),
        visit.api.get("/admin/v1/exchange-rates"),
        visit.api.get("/finance/v1/rate-cards"),
    )
    columns = [
        Column("gpu_type", "GPU type", lambda p: p["gpu_type"]),
        Column("rate", "Per GPU-hour", lambda p: Cell(p["rate_per_gpu_hour"]), "money"),
        Column("currency", "Currency", lambda p: p["currency"]),
        Column("purchase", "Purchase", lambda p: dict(_PURCHASES).get(p["purchase"], p["purchase"])),
        Column("region", "Region", lambda p: p["region"] or None),
        Column("from", "From", lambda p: _day(p["valid_from"])),
        Column("to", "To", lambda p: _day(p["valid_to"])),
        Column("state", "State", _state, "badge"),
        Column("id", "Number", _number),
    ]
    table = visit.table(columns, book["data"], sort="gpu_type")
    if found := visit.export(table, "prices"):
        return found
    return visit.page(
        "money_prices.html.j2",
        tabs=tabs(visit, month_of(visit)),
        table=table,
        history=history,
        rates=rates["data"],
        cards=cards["data"],
        assignments=cards["assignments"],
        purchases=_PURCHASES,
        gpu_type=visit.query.get("gpu_type", "")[:63],
    )


def _number(price: Json) -> Cell:
    return Cell(price["id"], href=f"/console/money/prices/{price['id']}", text=f"No. {price['id']}")


def _day(at: str | None) -> str | None:
    """A price without a beginning begins in 1970."""
    return None if at is None or at.startswith("1970") else at[:16].replace("T", " ").removesuffix(" 00:00")


def _state(price: Json) -> Cell:
    if price.get("withdrawn"):
        return Cell("withdrawn", tone="warn", note=price.get("reason") or "")
    if price.get("superseded_by"):
        return Cell("corrected", tone="warn", note=f"by no. {price['superseded_by']}")
    return Cell("in force", tone="good")


async def add(visit: Visit) -> Response:
    body: Json = {
        "gpu_type": visit.text("gpu_type"),
        "rate_per_gpu_hour": visit.text("rate"),
        "currency": visit.text("currency").upper() or "USD",
        "purchase": visit.text("purchase") or "on_demand",
        "region": visit.text("region"),
    }
    if start := visit.text("valid_from"):
        body["valid_from"] = start
    added = await visit.api.post("/admin/v1/prices", body, confirm=_confirmed(visit))
    said = f"{added['gpu_type']} costs {added['rate_per_gpu_hour']} {added['currency']} per GPU-hour."
    return visit.see("/console/money/prices", " ".join([said, *added["warnings"]]))


def _confirmed(visit: Visit) -> str | None:
    return "true" if visit.text("confirm") else None


async def show(visit: Visit) -> Response:
    number = visit.params["number"]
    book = await visit.api.get("/admin/v1/prices", history="true")
    found: Any = next((p for p in book["data"] if p["id"] == number), None)
    if found is None:
        return visit.see("/console/money/prices", f"There is no price no. {number}.")
    shown = tabs(visit, month_of(visit))
    return visit.page("money_price.html.j2", tabs=shown, price=found, state=_state(found))


async def correct(visit: Visit) -> Response:
    number = visit.params["number"]
    body: Json = {"reason": visit.text("reason")}
    if visit.text("withdraw"):
        body["withdraw"] = True
    elif rate := visit.text("rate"):
        body["rate_per_gpu_hour"] = rate
    added = await visit.api.post(
        f"/admin/v1/prices/{quote(str(number))}/correct", body, confirm=_confirmed(visit)
    )
    said = f"Price no. {number} is corrected. Open months change at once, closed ones by corrections."
    return visit.see("/console/money/prices", " ".join([said, *added["warnings"]]))


async def add_rate(visit: Visit) -> Response:
    body: Json = {
        "currency": visit.text("of").upper(),
        "target": visit.text("to").upper(),
        "rate": visit.text("rate"),
        "valid_from": visit.text("valid_from"),
        "source": visit.text("source"),
    }
    if reason := visit.text("reason"):
        body["reason"] = reason
    await visit.api.post("/admin/v1/exchange-rates", body, confirm=_confirmed(visit))
    said = f"From {body['valid_from']}, 1 {body['currency']} is {body['rate']} {body['target']}."
    return visit.see("/console/money/prices", said)


ROUTES = (
    Route("/money/prices", prices, STAFF),
    Route("/money/prices", add, STAFF, "POST"),
    Route("/money/prices/rates", add_rate, STAFF, "POST"),
    Route("/money/prices/{number:int}", show, STAFF),
    Route("/money/prices/{number:int}", correct, STAFF, "POST"),
)
