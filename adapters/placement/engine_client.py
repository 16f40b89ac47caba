"""Load, unload and list on one engine: vLLM's runtime LoRA routes.

An engine whose host runs an agent reads a version from that host's own disk, where the agent stages it first.

Beware: a 200 from a load proves little (docs/vllm.md says why), so adapters are validated before and
the engine's own list is read after. An unload only forgets the name: the weights keep their GPU slot until
the engine's own LRU evicts them, and requests that run go on.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from adapters.errors import EngineError, EngineUnreachableError
from adapters.model import Engine, Version
from adapters.placement import fingerprint
from adapters.placement.fingerprint import ProbeAnswer
from adapters.security.tls import explain

log = logging.getLogger(__name__)

MAX_MODELS = 10_000
"""That one engine may list; no `--max-cpu-loras` comes near it."""
MAX_NAME = 4_096
"""Characters of a model's name or path."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an engine says it serves."""

    bases: dict[str, str]
    """Served name → path or hub id of the base model."""
    loras: frozenset[str]
    max_model_len: int | None


class EngineClient:
    """Raises EngineUnreachableError when nobody answers, EngineError when the engine says no."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout: float, agent_secret: bytes = b"") -> None:
        """`agent_secret`: the installation's, see `agent_token`; the attribute may be set anew."""
        self._session = session
        self._timeout = timeout
        self.agent_secret = agent_secret
        self.guard: Callable[[Engine], AbstractAsyncContextManager[None]] = lambda _engine: nullcontext()
        """Around each call that an engine's core must answer, and not only its HTTP server: may end it with
        EngineUnreachableError."""

    def reconfigure(self, *, timeout: float) -> None:
        self._timeout = timeout

    def agent_token(self, engine: str, key: str = "") -> str:
        """What the gateway shows to the agent of the engine of that name, and nobody else knows: HMAC-SHA256,
        hex, of the name and the id of the host's API key under the installation's secret. So no host can
        speak to another's agent, nor to its own name's next one once it has been enrolled anew."""
        bound = f"{engine}\0{key}" if key else engine
        return hmac.new(self.agent_secret, bound.encode(), hashlib.sha256).hexdigest()

    async def load(self, engine: Engine, version: Version) -> None:
        path = await self._stage(engine, version) if engine.agent else version.path
        body = {"lora_name": version.engine_name, "lora_path": path}
        try:
            async with self.guard(engine):
                await self._call(engine, "POST", "/v1/load_lora_adapter", body)
        except EngineError as error:
            # Our names are never reused: if the engine knows this one, it holds these very weights.
            if error.status == 400 and "already" in str(error):
                return
            if path != version.path:  # one name for the files, whichever host's they are
                raise type(error)(str(error).replace(path, version.path), error.status) from error
            raise

    async def _stage(self, engine: Engine, version: Version) -> str:
        """The path of the version's files on the engine's host. What is not there in time goes on coming, for
        the next attempt. Raises EngineUnreachableError (the agent's silence too), EngineError."""
        body = {"digest": version.digest, "size_bytes": version.size_bytes}
        try:
            async with self._session.post(
                engine.agent + "/stage",
                data=orjson.dumps(body),
                headers={
                    "content-type": "application/json",
                    "authorization": f"Bearer {self.agent_token(engine.name, engine.key)}",
                },
                timeout=aiohttp.ClientTimeout(total=self._timeout),
                allow_redirects=False,
            ) as response:
                answer = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise EngineUnreachableError(
                f"the agent of {engine.name} at {engine.agent} does not answer: "
                f"{_of_tls(error, engine.agent) or str(error) or type(error).__name__}"
            ) from error
        words = _words(answer)
        if response.status == 401:  # it has not registered here yet, or not again: no fault of the version's
            raise EngineUnreachableError(f"the agent of {engine.name} does not know this gateway: {words}")
        if response.status != 200:
            raise EngineError(f"the agent of {engine.name} could not stage {version.id}: {words}")
        try:
            return str(orjson.loads(answer)["path"])
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"the agent of {engine.name} does not answer like one: {error!r}") from error

    async def unload(self, engine: Engine, engine_name: str) -> None:
        """Returns also when the engine did not know the name, or would not forget it: no load fails for that,
        and its words, which name another tenant's adapter, reach no client."""
        try:
            async with self.guard(engine):
                await self._call(engine, "POST", "/v1/unload_lora_adapter", {"lora_name": engine_name})
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if error.status not in {400, 404}:
                log.warning("unloading %s failed: %s", engine_name, error)

    async def serving(self, engine: Engine, *, timeout: float | None = None) -> Listing:
        answer = await self._call(engine, "GET", "/v1/models", None, timeout=timeout)
        try:
            return _listing(orjson.loads(answer))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
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

    async def metrics(self, engine: Engine) -> bytes:
        """In the Prometheus text format."""
        return await self._call(engine, "GET", "/metrics", None)

    async def probe(self, engine: Engine, model: str) -> ProbeAnswer:
        """How `model`, by the engine's name for it, answers the fixed prompts."""
        body = fingerprint.request(model, secrets.token_hex(16))
        async with self.guard(engine):
            answer = await self._call(engine, "POST", "/v1/completions", body)
        try:
            return fingerprint.parse(orjson.loads(answer))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineError(f"{engine.name} does not answer a probe like vLLM: {error!r}") from error

    async def one_token(self, engine: Engine, *, timeout: float) -> ProbeAnswer:
        """Whether its core works: one token of the base model, and what that cost."""
        body = fingerprint.one_token(engine.base_model, secrets.token_hex(16))
        answer = await self._call(engine, "POST", "/v1/completions", body, timeout=timeout)
        try:
            return fingerprint.cost(orjson.loads(answer))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineError(f"{engine.name} does not answer a probe like vLLM: {error!r}") from error

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
            reason = _of_tls(error, engine.url) or words or type(error).__name__
            raise EngineUnreachableError(
                f"{engine.name} at {engine.url} does not answer: {reason}"
            ) from error
        if response.status == 200:
            return answer
        raise EngineError(f"{engine.name} said {response.status}: {_words(answer)}", status=response.status)


def _listing(body: Any) -> Listing:
    """The answer of /v1/models. Raises ValueError, LookupError, TypeError or AttributeError if it is none."""
    cards = body["data"]
    if len(cards) > MAX_MODELS:
        raise ValueError(f"it lists {len(cards)} models")
    bases = [(_name(c["id"]), c) for c in cards if not c.get("parent")]
    longest = bases[0][1].get("max_model_len") if bases else None
    return Listing(
        bases={name: _name(c.get("root") or name) for name, c in bases},
        loras=frozenset(_name(c["id"]) for c in cards if c.get("parent")),
        max_model_len=longest if type(longest) is int and longest > 0 else None,
    )


def _name(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_NAME:
        raise ValueError(f"a model's name is {str(value)[:80]!r}")
    return value


def _of_tls(error: BaseException, url: str) -> str:
    """In words, with the settings that matter; empty: it is about something else."""
    words = explain(error, url)
    return f"{words} (FLORIN_ENGINE_CA, FLORIN_ENGINE_CERT, FLORIN_ENGINE_KEY)" if words else ""


def _words(answer: bytes) -> str:
    """The human part of an engine's error body."""
    try:
        body = orjson.loads(answer)
        error = body.get("error", body)
        return str(error.get("message", error))[:500]
    except (ValueError, AttributeError):
        return answer[:500].decode(errors="replace")
