"""A page shows amounts without their currency rather than wait for a ledger that hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.operations import known_currency
from gateway.operations.known_currency import KnownCurrency
from tests.support.waiting import PATIENCE_S


class Asked:
    """Instead of the price book's query. Mutable: how often it was asked, and what it does."""

    def __init__(self) -> None:
        self.times = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.answer: str | Exception = "USD"

    def __call__(self, _ledger: object) -> str:
        self.times += 1
        self.goes_on.wait(PATIENCE_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def asked(monkeypatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(known_currency, "currency_of", made)
    monkeypatch.setattr(known_currency, "PATIENCE", PATIENCE_S)
    return made


async def test_it_is_asked_for_once(asked):
    known = KnownCurrency()
    assert [await known.get(None) for _ in range(3)] == ["USD"] * 3
    assert asked.times == 1


async def test_nobody_waits_for_a_ledger_that_hangs_and_it_holds_one_thread(asked, monkeypatch):
    monkeypatch.setattr(known_currency, "PATIENCE", 0.01)
    known = KnownCurrency()
    asked.goes_on.clear()
    assert await asyncio.gather(*(known.get(None) for _ in range(20))) == [""] * 20
    assert await known.get(None) == ""
    assert asked.times == 1
    asked.goes_on.set()
    monkeypatch.setattr(known_currency, "PATIENCE", PATIENCE_S)
    assert await known.get(None) == "USD"
    assert asked.times == 1


async def test_what_is_not_known_yet_is_asked_again(asked):
    known = KnownCurrency()
    asked.answer = LedgerUnavailableError("away")
    assert await known.get(None) == ""
    asked.answer = ""
    assert await known.get(None) == ""
    asked.answer = "EUR"
    assert await known.get(None) == "EUR"
    assert asked.times == 3
