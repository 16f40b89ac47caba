"""Load, unload and list on one engine: vLLM's runtime LoRA routes.

If the engine's host runs an agent, the agent first stages the version on that host's disk, and the engine
reads it from there.

A 200 response to a load proves little (see docs/vllm.md), so adapters are validated beforehand and the
engine's model list is read afterwards. An unload only drops the name: the weights keep their GPU slot until
the engine's own LRU evicts them, and running requests continue.
"""

from __future__ import annotations

import asyncio
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
from adapters.security.handshake_errors import explain

log = logging.getLogger(__name__)

MAX_MODELS = 10_000
"""Most models that one engine may list, far above any real `--max-cpu-loras`."""
MAX_VERSION = 64
SHARING_SECONDS = 0.05
"""From one request to the next that should share its batch."""
MAX_NAME = 4_096
"""Maximum length of a model's name or path, in characters."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The models that an engine reports it serves."""

    bases: dict[str, str]
    """Served name → path or hub id of the base model."""
    loras: frozenset[str]
    max_model_len: int | None


class EngineClient:
    """HTTP client for one engine's control routes. Every method raises EngineUnreachableError if the engine
    does not respond and EngineError if it refuses."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout: float, agent_secret: bytes = b"") -> None:
        """`agent_secret` is the installation's secret, see `agent_token`; it may be set later."""
        self._session = session
        self._timeout = timeout
        self.agent_secret = agent_secret
        self.guard: Callable[[Engine], AbstractAsyncContextManager[None]] = lambda _engine: nullcontext()
        """Wraps each call that needs the engine's core and not only its HTTP server; may end the call with
        EngineUnreachableError."""

    def reconfigure(self, *, timeout: float) -> None:
        self._timeout = timeout

    def agent_token(self, engine: str, key: str = "") -> str:
        """The bearer token that the gateway presents to an engine's agent: hex HMAC-SHA256 of the engine's
        name and the id of the host's API key, keyed with the installation's secret. A host therefore cannot
        call another host's agent, nor an agent enrolled later under its own name."""
        bound = f"{engine}\0{key}" if key else engine
        return hmac.new(self.agent_secret, bound.encode(), hashlib.sha256).hexdigest()

    async def load(self, engine: Engine, version: Version) -> None:
        path = await self._stage(engine, version) if engine.agent else version.path
        body = {"lora_name": version.engine_name, "lora_path": path}
        try:
            async with self.guard(engine):
                await self._call(engine, "POST", "/v1/load_lora_adapter", body)
        except EngineError as error:
            # Engine names are never reused, so an engine that knows this name holds these weights.
            if error.status == 400 and "already" in str(error):
                return
            if path != version.path:  # show one path, whichever host the files are on
                raise type(error)(str(error).replace(path, version.path), error.status) from error
            raise

    async def _stage(self, engine: Engine, version: Version) -> str:
        """Return the path of the version's files on the engine's host. A download that misses the deadline
        continues in the background for the next attempt. Raises EngineUnreachableError (also if the agent
        does not respond), EngineError."""
        body = {"digest": version.digest, "size_bytes": version.size_bytes}
        status, answer = await self._ask_agent(engine, "/stage", body)
        if status != 200:
            raise EngineError(f"the agent of {engine.name} could not stage {version.id}: {_message(answer)}")
        try:
            return str(orjson.loads(answer)["path"])
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"the agent of {engine.name} sent an invalid response: {error!r}") from error

    async def restart(self, engine: Engine) -> None:
        """Let the engine's agent restart it. Raises EngineUnreachableError (also if the agent does not
        respond), EngineError."""
        status, answer = await self._ask_agent(engine, "/restart", {})
        if status != 200:
            raise EngineError(f"the agent of {engine.name} did not restart it: {_message(answer)}")

    async def _ask_agent(self, engine: Engine, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Raises EngineUnreachableError."""
        try:
            async with self._session.post(
                engine.agent + path,
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
                f"the agent of {engine.name} at {engine.agent} does not respond: "
                f"{_of_tls(error, engine.agent) or str(error) or type(error).__name__}"
            ) from error
        if response.status == 401:  # the agent has yet to register here; not the version's fault
            words = _message(answer)
            raise EngineUnreachableError(f"the agent of {engine.name} does not know this gateway: {words}")
        return response.status, answer

    async def unload(self, engine: Engine, engine_name: str) -> None:
        """Never raises for a refused unload: a load must not fail because of it, and the engine's message may
        name another tenant's adapter."""
        try:
            async with self.guard(engine):
                await self._call(engine, "POST", "/v1/unload_lora_adapter", {"lora_name": engine_name})
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if error.status not in {400, 404}:
                log.warning("Engine %s: unload of %s failed: %s", engine.name, engine_name, error)

    async def serving(self, engine: Engine, *, timeout: float | None = None) -> Listing:
        answer = await self._call(engine, "GET", "/v1/models", None, timeout=timeout)
        try:
            return _listing(orjson.loads(answer))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{engine.name} at {engine.url} sent a response that vLLM would not send: {error!r}"
            ) from error

    async def takes_adapters(self, engine: Engine) -> bool:
        """Whether the runtime LoRA routes exist. An existing route rejects an empty load; a missing one
        returns 404."""
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

    async def version(self, engine: Engine) -> str:
        """VLLM's version; empty if it does not tell."""
        try:
            told = orjson.loads(await self._call(engine, "GET", "/version", None))["version"]
        except EngineUnreachableError:
            raise
        except (EngineError, ValueError, LookupError, TypeError):
            return ""
        return told[:MAX_VERSION] if type(told) is str else ""

    async def score_prompts(self, engine: Engine) -> None:
        """Have the base model score a prompt in both ways that vLLM offers, each while it answers another
        request: in some builds, that ends the engine. Raises EngineUnreachableError, EngineError."""
        for scored in fingerprint.SCORED * 2:  # the first may compile while the other request is answered
            salt = secrets.token_hex(16)
            beside = fingerprint.one_token(engine.base_model, salt) | fingerprint.LONG
            other = asyncio.create_task(self._call(engine, "POST", "/v1/completions", beside))
            try:
                await asyncio.sleep(SHARING_SECONDS)
                body = fingerprint.one_token(engine.base_model, salt) | scored
                await self._call(engine, "POST", "/v1/completions", body)
            finally:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
        await self.one_token(engine, timeout=self._timeout)  # it is still alive

    async def probe(self, engine: Engine, model: str) -> ProbeAnswer:
        """Return the answer of `model` (its name on the engine) to the fixed prompts."""
        body = fingerprint.request(model, secrets.token_hex(16))
        async with self.guard(engine):
            answer = await self._call(engine, "POST", "/v1/completions", body)
        try:
            return fingerprint.parse(orjson.loads(answer))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise EngineError(f"{engine.name} does not answer a probe like vLLM: {error!r}") from error

    async def one_token(self, engine: Engine, *, timeout: float) -> ProbeAnswer:
        """Generate one token with the base model to prove that the engine's core works; returns what it
        cost."""
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
            # aiohttp's message for a refused connection mentions TLS even for plain HTTP.
            words = error.strerror if isinstance(error, aiohttp.ClientConnectorError) else str(error)
            reason = _of_tls(error, engine.url) or words or type(error).__name__
            raise EngineUnreachableError(
                f"{engine.name} at {engine.url} does not respond: {reason}"
            ) from error
        if response.status == 200:
            return answer
        raise EngineError(
            f"{engine.name} returned HTTP {response.status}: {_message(answer)}", status=response.status
        )


def _listing(body: Any) -> Listing:
    """Parse a /v1/models response. Raises ValueError, LookupError, TypeError or AttributeError."""
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
    """Explain a TLS error and name the settings involved; empty for any other error."""
    words = explain(error, url)
    return f"{words} (FLORIN_ENGINE_CA, FLORIN_ENGINE_CERT, FLORIN_ENGINE_KEY)" if words else ""


def _message(answer: bytes) -> str:
    """The message in an engine's error body."""
    try:
        body = orjson.loads(answer)
        error = body.get("error", body)
        return str(error.get("message", error))[:500]
    except (ValueError, AttributeError):
        return answer[:500].decode(errors="replace")
