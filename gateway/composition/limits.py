"""Limits and budgets: the limiter, and what compares budgets with the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from yarl import URL

from adapters.errors import StoreUnavailableError
from adapters.sources.staging_area import SourceRefusedError
from adapters.sources.url_policy import Allowed
from adapters.sources.web_client import guarded_connector
from gateway.composition.context import WorkerContext
from gateway.composition.registry import Registry
from gateway.config import Settings
from gateway.costs.credit_limits import CreditLimits
from gateway.costs.price_list import PriceList
from gateway.dataplane.request import Sold
from gateway.metering.ledger.budget_usage import Used, tokens_used
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.records import BATCH, task_of
from gateway.tenants.directory import Directory
from gateway.tenants.limits.allowances import Allowance, Consumer, Counter
from gateway.tenants.limits.budget_watch import BudgetWatch
from gateway.tenants.limits.limiter import Limiter
from gateway.tenants.limits.periods import period_of
from gateway.tenants.terms import Measure

log = logging.getLogger(__name__)

WEBHOOK_PAUSES: Final = (1.0, 5.0, 30.0, 120.0)
"""Seconds before each retry."""
WEBHOOK_SECONDS: Final = 10.0


@dataclass(slots=True)
class LimitParts:
    """The settings are replaced by a reload."""

    settings: Settings
    directory: Directory
    ledger: Ledger
    prices: PriceList
    credit_limits: CreditLimits

    async def used(self, consumer: Consumer, start: int, end: int) -> Mapping[Measure, int]:
        """What the ledger says a consumer used in [start, end); money as far as prices are known, each
        tenant's at its own. Raises StoreUnavailableError."""
        members = (
            self.directory.members(consumer.tenant)
            if consumer.level == "organization"
            else [tenant for tenant in (self.directory.tenants.get(consumer.tenant),) if tenant]
        )
        used = dict.fromkeys((Measure.REQUESTS, Measure.TOKENS, Measure.MONEY), 0)
        for member in members:
            try:
                parts = await asyncio.to_thread(
                    tokens_used,
                    self.ledger,
                    member.name,
                    start,
                    end,
                    key=consumer.key,
                    adapter=consumer.adapter,
                    since=member.created,
                )
            except LedgerUnavailableError as error:
                raise StoreUnavailableError(f"The ledger cannot be read: {error}") from error
            used[Measure.REQUESTS] += sum(part.requests for part in parts)
            used[Measure.TOKENS] += sum(part.prompt + part.completion for part in parts)
            used[Measure.MONEY] += sum(self._cost(member.name, part) for part in parts)
        return used

    def _cost(self, tenant: str, part: Used) -> int:
        sold = Sold(part.adapter, part.base_model, part.service_tier == BATCH, task_of(part.task))
        price = self.prices.of(tenant, sold, part.gpu_type)
        if price is None:
            return 0
        counts = part.prompt, part.cached, part.completion
        return price.cost(*counts, reasoning=part.reasoning, requests=part.requests)

    async def post(self, body: dict[str, Any]) -> bool:
        """Send a budget's warning, if a webhook is configured. Returns whether nothing is left to do."""
        text = self.settings.budget_webhook
        if not text:
            return True
        for pause in (0.0, *WEBHOOK_PAUSES):
            await asyncio.sleep(pause)
            failure = await self._try_post(URL(text), body)
            if not failure:
                return True
            log.warning("Budget webhook of tenant %s failed: %s", body["tenant"], failure)
        return False

    async def _try_post(self, url: URL, body: dict[str, Any]) -> str:
        """Why it failed; empty if it did not. Without the URL, which may contain a secret."""
        connector = guarded_connector(Allowed.parse(self.settings.allowed_sources), url)
        timeout = aiohttp.ClientTimeout(total=WEBHOOK_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
                session.post(
                    url, json=body, headers={"user-agent": "florin"}, allow_redirects=False
                ) as response,
            ):
                return "" if 200 <= response.status < 300 else f"status {response.status}"
        except SourceRefusedError:
            return "its address is not public; see FLORIN_SOURCE_PRIVATE"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__


def build_limits(
    context: WorkerContext, registry: Registry, ledger: Ledger
) -> tuple[LimitParts, Limiter, BudgetWatch]:
    store, directory, metrics, now = registry.store, registry.directory, context.metrics, context.clock.now
    prices = PriceList(ledger, now)
    credit_limits = CreditLimits(ledger, directory, now)
    parts = LimitParts(context.settings, directory, ledger, prices, credit_limits)

    async def used_now(consumer: Consumer, counters: Sequence[Counter], terms: Allowance) -> Sequence[int]:
        used = []
        for counter in counters:
            start, end = period_of(counter.window, now(), terms.timezone_of(counter))
            used.append((await parts.used(consumer, start, end))[counter.measure])
        return used

    limiter = Limiter(
        *(store, context.name, directory, context.settings, metrics, prices),
        used=used_now, now=now, budget_of=credit_limits.budget,
    )  # fmt: skip  # one name a line says no more
    watch = BudgetWatch(
        store, directory, metrics, used=parts.used, post=parts.post, now=now, budget_of=credit_limits.budget
    )

    def changed() -> None:
        limiter.forget_terms()
        watch.forget_terms()

    credit_limits.changed = changed
    return parts, limiter, watch
