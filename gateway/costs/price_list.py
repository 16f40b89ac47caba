"""What a request of a tenant costs, as budgets in money count it: by the tenant's own rate card, at list
prices. Without a card, by an estimate: what the usage of its base model has cost by token in the last days.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from gateway.costs.cost_lines import CostLine, read_lines
from gateway.costs.export.chargeback import split
from gateway.costs.periods import Period, iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import read_prices
from gateway.costs.selling.assignments import RateCards
from gateway.costs.selling.card_lines import CardLine, PriceKey
from gateway.costs.selling.card_store import read_cards
from gateway.costs.selling.cards import RateCard
from gateway.dataplane.request import Sold
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import BATCH
from gateway.tenants.limits.needs import TokenPrice
from gateway.units import DAY, MICRO, Micros, worth

READ_SECONDS = 60.0
_ESTIMATE_AGAIN = 60 * 60 * 1_000_000
"""Microseconds. It reads a week's roll-ups."""
_ESTIMATED_DAYS = 7
_MOST = 10_000
"""Prices that are cached; beyond that, all are dropped."""
_NANO = 1000
"""A millionth in billionths."""
Estimates = Mapping[str, CardLine]
"""Base model → what its usage cost; "" → all usage."""


class PriceList:
    """Read again every minute; estimates every hour, if they are needed. Mutable: what was last read, and the
    prices that were asked for. On the event loop only."""

    def __init__(self, ledger: Ledger, now: Callable[[], int]) -> None:
        """`now`: Unix microseconds."""
        self._ledger = ledger
        self._now = now
        self._estimated_at: int | None = None
        self._needed = asyncio.Event()
        """An estimate is: somebody without a card has a budget."""
        self.load(RateCards(), {})

    def load(self, cards: RateCards, estimates: Estimates | None = None) -> None:
        """`estimates`: None: as before."""
        self._cards = cards
        if estimates is not None:
            self._estimates = estimates
        self._prices: dict[tuple[str, Sold, str | None], TokenPrice | None] = {}

    async def refresh(self) -> None:
        now, last = self._now(), self._estimated_at
        estimate = self._needed.is_set() and (last is None or now - last > _ESTIMATE_AGAIN)
        with contextlib.suppress(LedgerUnavailableError):  # what was read last stays
            self.load(*await asyncio.to_thread(self._read, now, estimate=estimate))
            if estimate:
                self._estimated_at = now

    def read_all(self) -> None:
        """Read cards and estimates once. Blocks. Raises LedgerUnavailableError."""
        self.load(*self._read(self._now(), estimate=True))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.refresh()
            waiting = asyncio.sleep(READ_SECONDS) if self._needed.is_set() else self._needed.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting, READ_SECONDS)

    def of(self, tenant: str, sold: Sold, gpu_type: str | None) -> TokenPrice | None:
        """`gpu_type`: None: not known yet, so the dearest. Returns None if nothing is known."""
        key = tenant, sold, gpu_type
        if key not in self._prices:
            if len(self._prices) >= _MOST:
                self._prices.clear()
            self._prices[key] = self._price(tenant, sold, gpu_type)
        return self._prices[key]

    def currency(self, tenant: str) -> str | None:
        """That of the tenant's rate card; None: it has none."""
        card = self._card(tenant)
        return None if card is None else card.currency

    def _card(self, tenant: str) -> RateCard | None:
        return self._cards.card(tenant, iso(self._now())[:7])

    def _price(self, tenant: str, sold: Sold, gpu_type: str | None) -> TokenPrice | None:
        card = self._card(tenant)
        if card is None:
            self._needed.set()
            line = self._estimates.get(sold.base_model) or self._estimates.get("")
            price = None if line is None else _token_price(line, 100)
            return price if price is None or gpu_type is not None else _at_most(price)
        tier = BATCH if sold.batch else ""
        types = {line.gpu_type for line in card.lines} | {""} if gpu_type is None else {gpu_type}
        keys = [PriceKey(sold.adapter, sold.base_model, sold.task, name, tier) for name in types]
        price = dearest(_by_card(card, key) for key in keys)
        return price if gpu_type is not None else _at_most(price)

    def _read(self, now: int, *, estimate: bool) -> tuple[RateCards, Estimates | None]:
        with self._ledger.read() as connection:
            cards = read_cards(connection)
            if not estimate:
                return cards, None
            today = now // DAY * DAY
            period = Period(max(0, today - _ESTIMATED_DAYS * DAY), today + DAY)
            book = PriceBook(read_prices(connection))
            lines = read_lines(connection, book, period, ("base_model",), as_posted=False)
            return cards, estimates(lines)


def _by_card(card: RateCard, key: PriceKey) -> TokenPrice:
    line = card.line_for(key)
    return _token_price(line, card.batch_percent if key.service_tier and not line.service_tier else 100)


def _token_price(line: CardLine, percent: int) -> TokenPrice:
    def nano(micros: Micros) -> int:
        return micros * _NANO * percent // 100

    output = nano(line.output_micros)
    return TokenPrice(
        nano(line.input_micros),
        nano(line.cached_micros),
        output,
        output if line.reasoning_micros is None else nano(line.reasoning_micros),
        line.request_micros * _NANO,
    )


def dearest(prices: Iterable[TokenPrice]) -> TokenPrice:
    """The dearest of each kind."""
    columns = zip(*((p.input, p.cached, p.output, p.reasoning, p.request) for p in prices), strict=True)
    return TokenPrice(*map(max, columns))


def _at_most(price: TokenPrice) -> TokenPrice:
    """What a request costs at most of which only the length is known."""
    computed, output = max(price.input, price.cached), max(price.output, price.reasoning)
    return TokenPrice(computed, computed, output, output, price.request)


def estimates(lines: Iterable[CostLine]) -> dict[str, CardLine]:
    """What a million tokens of each kind have cost: delivered usage without unused time, over all GPUs. A
    kind without tokens costs what the dearest does, so that a budget errs on the safe side."""
    sums: dict[str, tuple[list[int], list[int]]] = {}
    for line in lines:
        if line.bucket != "usage" or line.rate_micros is None:
            continue
        tokens = (line.prompt_tokens - line.cached_tokens, line.cached_tokens, line.completion_tokens)
        nanos, _ = split(line, tokens)
        for name in (line.keys[0], ""):
            costs, counts = sums.setdefault(name, ([0, 0, 0], [0, 0, 0]))
            for n in range(3):
                costs[n] += nanos[n] * line.rate_micros
                counts[n] += tokens[n]
    return {name: _estimate(costs, counts) for name, (costs, counts) in sums.items()}


def _estimate(costs: list[int], counts: list[int]) -> CardLine:
    prices = [_per_million(cost, count) for cost, count in zip(costs, counts, strict=True)]
    dear = max((price for price in prices if price is not None), default=Micros(0))
    computed, cached, output = (dear if price is None else price for price in prices)
    return CardLine("", computed, cached, output)


def _per_million(cost: int, count: int) -> Micros | None:
    """Rounded up."""
    return None if count <= 0 else Micros(max(0, -(Fraction(-cost * MICRO, count * worth(Micros(1))) // 1)))
