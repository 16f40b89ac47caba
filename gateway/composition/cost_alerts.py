"""Delivers alerts about cost by webhook, on one worker of the installation.

Posts follow Standard Webhooks (www.standardwebhooks.com): the header `webhook-id` is the alert's id, the same
at every try, so that a receiver can drop repetitions; `webhook-signature` is the HMAC-SHA256 of id, timestamp
and body. An alert counts as delivered when the receiver has answered with 2xx and the ledger knows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson
from yarl import URL

from adapters.sources.staging_area import SourceRefusedError
from adapters.sources.url_policy import Allowed
from adapters.sources.web_client import guarded_connector
from adapters.store.leader_job import PassFailedError
from gateway.config import Settings
from gateway.costs.forecasting.alerts import Alert, mark_delivered, undelivered
from gateway.metering.ledger.ledger import Ledger
from gateway.runtime.clock import Clock
from gateway.runtime.webhook_signatures import signature

ROLE: Final = "cost-alerts"
LOOK_SECONDS: Final = 15.0
LONGEST_PAUSE: Final = 900.0
"""Seconds between two tries while the receiver fails."""
_POST_SECONDS: Final = 10.0


def signed(alert: Alert, secret: str, sent_at: int) -> tuple[dict[str, str], bytes]:
    """Headers and body of a post. `secret`: as in the setting; `sent_at`: Unix seconds. Pure."""
    body = orjson.dumps(alert.json())
    headers = {"content-type": "application/json", "user-agent": "florin"}
    return headers | signature(alert.id, sent_at, body, secret), body


@dataclass(slots=True)
class AlertDelivery:
    """Every worker has one; the one that holds the role delivers."""

    ledger: Ledger
    clock: Clock
    settings: Settings
    """Replaced by a reload."""

    def ready(self) -> bool:
        return bool(self.settings.cost_webhook)

    async def deliver(self) -> None:
        """Post what waits, oldest first. Raises PassFailedError if the receiver failed; the rest waits then.
        Raises LedgerUnavailableError."""
        now = self.clock.now()
        for alert in await asyncio.to_thread(undelivered, self.ledger, now=now):
            headers, body = signed(alert, self.settings.cost_webhook_secret, now // 1_000_000)
            failure = await self._post(URL(self.settings.cost_webhook), headers, body)
            if failure:
                raise PassFailedError(failure)
            await asyncio.to_thread(mark_delivered, self.ledger, alert.id, self.clock.now())

    async def _post(self, url: URL, headers: dict[str, str], body: bytes) -> str:
        """Why it failed; empty if it did not. Without the URL, which may contain a secret."""
        connector = guarded_connector(Allowed.parse(self.settings.allowed_sources), url)
        timeout = aiohttp.ClientTimeout(total=_POST_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                return "" if 200 <= response.status < 300 else f"status {response.status}"
        except SourceRefusedError:
            return "its address is not public; see FLORIN_SOURCE_PRIVATE"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__
