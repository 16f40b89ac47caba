"""Announces the gateway, and refuses to start beside one with another ledger."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore
from adapters.store.redis.connection import without_password
from gateway.composition.context import WorkerContext
from gateway.metering.ledger.identity import identity
from gateway.metering.ledger.ledger import Ledger
from gateway.observability.gateway_name import GatewayName
from gateway.observability.process_metrics import ProcessValues
from gateway.runtime.gateways import Gateways, announcement


async def open_gateways(
    context: WorkerContext, store: CoordinationStore, ledger: Ledger, process_values: ProcessValues | None
) -> Gateways:
    """Raises SettingsError."""
    settings = context.settings
    own = announcement(
        process_values.gateway if process_values else GatewayName.of_this_process(),
        workers=settings.workers,
        ledger_url=without_password(settings.ledger),
        redis_url=without_password(settings.redis_url),
    )
    gateways = Gateways(store, own, partial(identity, ledger), process_values, context.clock.now)

    async def leave() -> None:
        with suppress(StoreUnavailableError):
            await gateways.leave()

    context.stack.push_async_callback(leave)
    await gateways.start(separate_ledgers=settings.separate_ledgers)
    return gateways
