"""The price book: GPU prices, exchange rates, and the rate cards that customers pay by."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from gateway.console.forms import body_of, fields_of
from gateway.console.pages.money.shared import month_of, tabs
from gateway.console.tables import Cell, Column
from gateway.console.visit import BOOKS, STAFF, Route, Visit
from gateway.costs.prices.schemas import AddedPrice, ExchangeRate, ListedPrice, NewExchangeRate, NewPrice
from gateway.costs.selling.schemas import RateCards
from gateway.fleet.engines.schemas.registration import PURCHASES
from gateway.schemas.base import Json, Listed

_PRICE: Final = ("gpu_type", "rate_per_gpu_hour", "currency", "purchase", "region", "valid_from")
"""The fields of the form."""


async def prices(visit: Visit) -> Response:
    history = bool(visit.query.get("history"))
    book, rates, cards = await asyncio.gather(
        visit.api.get("/admin/v1/prices", Listed[ListedPrice], history="true" if history else None),
        visit.api.get("/admin/v1/exchange-rates", Listed[ExchangeRate]),
        visit.api.get("/finance/v1/rate-cards", RateCards),
    )
    columns = [
        Column("gpu_type", "GPU type", lambda p: p.gpu_type),
        Column("rate", "Per GPU-hour", lambda p: Cell(p.rate_per_gpu_hour), "money"),
        Column("currency", "Currency", lambda p: p.currency),
        Column("purchase", "Purchase", lambda p: PURCHASES[p.purchase]),
        Column("region", "Region", lambda p: p.region or None),
        Column("from", "From", lambda p: _day(p.valid_from)),
        Column("to", "To", lambda p: _day(p.valid_to)),
        Column("state", "State", _state, "badge"),
        Column("id", "Number", _number),
    ]
    table = visit.table(columns, book.data, sort="gpu_type")
    if file := visit.export(table, "prices"):
        return file
    new = NewPrice.model_construct(gpu_type=visit.query.get("gpu_type", "")[:63], rate_per_gpu_hour="")
    return visit.page(
        "money_prices.html.j2",
        tabs=tabs(visit, month_of(visit)),
        table=table,
        history=history,
        rates=rates.data,
        cards=cards.data,
        assignments=cards.assignments,
        price_fields=fields_of(NewPrice, *_PRICE, values=new),
        rate_fields=fields_of(NewExchangeRate),
    )


def _number(price: ListedPrice) -> Cell:
    return Cell(price.id, href=f"/console/money/prices/{price.id}", text=f"No. {price.id}")


def _day(start: str | None) -> str | None:
    """A price without a beginning begins in 1970."""
    if start is None or start.startswith("1970"):
        return None
    return start[:16].replace("T", " ").removesuffix(" 00:00")


def _state(price: ListedPrice) -> Cell:
    if price.withdrawn:
        return Cell("withdrawn", tone="warn", note=price.reason or "")
    if price.superseded_by:
        return Cell("corrected", tone="warn", note=f"by no. {price.superseded_by}")
    return Cell("in force", tone="good")


async def add(visit: Visit) -> Response:
    body = body_of(NewPrice, visit.text, *_PRICE)
    body["currency"] = body["currency"].upper()
    added = await visit.api.post("/admin/v1/prices", body, AddedPrice, confirm=_confirmed(visit))
    sentence = f"{added.gpu_type} costs {added.rate_per_gpu_hour} {added.currency} per GPU-hour."
    return visit.see("/console/money/prices", " ".join([sentence, *added.warnings]))


def _confirmed(visit: Visit) -> str | None:
    return "true" if visit.text("confirm") else None


async def show(visit: Visit) -> Response:
    number = int(visit.params["number"])
    book = await visit.api.get("/admin/v1/prices", Listed[ListedPrice], history="true")
    price = next((price for price in book.data if price.id == number), None)
    if price is None:
        return visit.see("/console/money/prices", f"There is no price no. {number}.")
    shown = tabs(visit, month_of(visit))
    return visit.page("money_price.html.j2", tabs=shown, price=price, state=_state(price))


async def correct(visit: Visit) -> Response:
    number = int(visit.params["number"])
    body: Json = {"reason": visit.text("reason")}
    if visit.text("withdraw"):
        body["withdraw"] = True
    elif rate := visit.text("rate"):
        body["rate_per_gpu_hour"] = rate
    path = f"/admin/v1/prices/{number}/correct"
    added = await visit.api.post(path, body, AddedPrice, confirm=_confirmed(visit))
    sentence = f"Price no. {number} is corrected. Open months change at once, closed ones by corrections."
    return visit.see("/console/money/prices", " ".join([sentence, *added.warnings]))


async def add_rate(visit: Visit) -> Response:
    body = body_of(NewExchangeRate, visit.text)
    added = await visit.api.post("/admin/v1/exchange-rates", body, ExchangeRate, confirm=_confirmed(visit))
    sentence = f"From {added.valid_from[:10]}, 1 {added.currency} is {added.rate} {added.target}."
    return visit.see("/console/money/prices", sentence)


ROUTES = (
    Route("/money/prices", prices, BOOKS),
    Route("/money/prices", add, STAFF, "POST"),
    Route("/money/prices/rates", add_rate, STAFF, "POST"),
    Route("/money/prices/{number:int}", show, BOOKS),
    Route("/money/prices/{number:int}", correct, STAFF, "POST"),
)
