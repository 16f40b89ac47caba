"""The agent's client of its own engine: health, running requests, loaded adapters."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

import aiohttp
import orjson

_ANSWER_SECONDS = 5.0
_RUNNING = re.compile(rb"^vllm:num_requests_(?:running|waiting)(?:\{[^}\n]*\})? ([0-9.e+]+)", re.MULTILINE)


class EngineWatch:
    """Observes one engine. `url`: its root as reached from this host; `advertised`: its URL for the gateway,
    whose name the engine's certificate carries. Methods return None if the engine does not respond."""

    def __init__(self, session: aiohttp.ClientSession, url: str, advertised: str = "") -> None:
        self._session = session
        self.url = url
        tls = url.startswith("https://")
        self._name = urlsplit(advertised).hostname if tls else None

    async def taken(self) -> bool:
        """Whether a process listens there. Before the engine is started, it is a foreign one."""
        parts = urlsplit(self.url)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except (TimeoutError, OSError):
            return False
        writer.close()
        return True

    async def healthy(self) -> bool:
        return await self._get("/health") is not None

    async def requests(self) -> int | None:
        """Number of running and waiting requests."""
        metrics = await self._get("/metrics")
        if metrics is None:
            return None
        return round(sum(float(number) for number in _RUNNING.findall(metrics)))

    async def listed(self) -> frozenset[str] | None:
        """Paths of the adapters that it lists."""
        answer = await self._get("/v1/models")
        try:
            cards = orjson.loads(answer or b"")["data"]
            return frozenset(str(card.get("root") or "") for card in cards if card.get("parent"))
        except (ValueError, LookupError, TypeError, AttributeError):
            return None

    async def _get(self, path: str) -> bytes | None:
        try:
            async with self._session.get(
                self.url + path,
                timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
                allow_redirects=False,
                server_hostname=self._name,
            ) as response:
                body = await response.read()
                return body if response.status == 200 else None
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None
