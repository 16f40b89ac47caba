"""Load, unload and list on one engine: vLLM's runtime LoRA routes.

Beware: a 200 from a load proves little (the README says why), so adapters are validated before and
the engine's own list is read after. An unload only forgets the name: the weights keep their GPU slot until
the engine's own LRU evicts them, and requests that run go on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from adapters.errors import EngineError, EngineUnreachableError
from adapters.model import Engine, Version

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listing:
    """What an engine says it serves."""

    bases: dict[str, str]
    """Served name → path or hub id of the base model."""
    loras: frozenset[str]
    max_model_len: int | None


class EngineControl:
    """Raises EngineUnreachableError when nobody answers, EngineError when the engine says no."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout: float) -> None:
        self._session = session
        self._timeout = timeout

    async def load(self, engine: Engine, version: Version) -> None:
        body = {"lora_name": version.engine_name, "lora_path": version.path}
        try:
            await self._call(engine, "POST", "/v1/load_lora_adapter", body)
        except EngineError as error:
            # Our names are never reused: if the engine knows this one, it holds these very weights.
            if error.status == 400 and "already" in str(error):
                return
            raise

    async def unload(self, engine: Engine, engine_name: str) -> None:
        """Returns also when the engine did not know the name, or would not forget it: no load fails for that,
        and its words, which name another tenant's adapter, reach no client."""
        try:
            await self._call(engine, "POST", "/v1/unload_lora_adapter", {"lora_name": engine_name})
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if error.status not in {400, 404}:
                log.warning("unloading %s failed: %s", engine_name, error)

    async def serving(self, engine: Engine, *, timeout: float | None = None) -> Listing:
        answer = await self._call(engine, "GET", "/v1/models", None, timeout=timeout)
        try:
            cards = orjson.loads(answer)["data"]
            return Listing(
                bases={c["id"]: str(c.get("root") or c["id"]) for c in cards if not c.get("parent")},
                loras=frozenset(c["id"] for c in cards if c.get("parent")),
                max_model_len=next((c.get("max_model_len") for c in cards if not c.get("parent")), None),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{engine.name} at {engine.url} does not answer like vLLM: {error!r}"
            ) from error

    async def takes_adapters(self, engine: Engine) -> bool:
        """Whether the runtime LoRA routes exist: an empty load is refused by the route, or there is none."""
        try:
            await self._call(engine, "POST", "/v1/load_lora_adapter", {})
        except EngineUnreachableError:
            raise
        except EngineError as error:
            return error.status not in {404, 405}
        return True

    async def _call(
        self,
        engine: Engine,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        *,
        timeout: float | None = None,
    ) -> bytes:
        try:
            async with self._session.request(
                method,
                engine.url + path,
                data=None if body is None else orjson.dumps(body),
                headers={"content-type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout or self._timeout),
                allow_redirects=False,
            ) as response:
                answer = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            # aiohttp's own words for a refused connection speak of TLS even where there is none.
            words = error.strerror if isinstance(error, aiohttp.ClientConnectorError) else str(error)
            reason = words or type(error).__name__
            raise EngineUnreachableError(
                f"{engine.name} at {engine.url} does not answer: {reason}"
            ) from error
        if response.status == 200:
            return answer
        raise EngineError(f"{engine.name} said {response.status}: {_words(answer)}", status=response.status)


def _words(answer: bytes) -> str:
    """The human part of an engine's error body."""
    try:
        body = orjson.loads(answer)
        error = body.get("error", body)
        return str(error.get("message", error))[:500]
    except (ValueError, AttributeError):
        return answer[:500].decode(errors="replace")
