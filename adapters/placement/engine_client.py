"""Load, unload, list and ask on one engine, in the words of its driver (`adapters.drivers`).

If the engine's host runs an agent, the agent first stages the version on that host's disk, and the engine
reads it from there.

A 200 response to a load proves little (see docs/vllm.md), so adapters are validated beforehand and the
engine's model list is read afterwards. What an unload does differs, see `adapters.model.Unloads`; running
requests continue in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson

from adapters.drivers import DRIVERS, driver_of
from adapters.drivers.driver import UNREADABLE, HttpCall, Limits, Listing, Loading, Lora
from adapters.errors import EngineError, EngineUnreachableError
from adapters.model import DriverName, Engine, Task, Unloads, Version
from adapters.placement import fingerprint
from adapters.placement.fingerprint import ProbeAnswer
from adapters.security.handshake_errors import explain

log = logging.getLogger(__name__)

MAX_VERSION = 64
SHARING_SECONDS = 0.05
"""From one request to the next that should share its batch."""


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
        self.get: Callable[[Engine, str, float], Awaitable[tuple[int, bytes]]] = self._get
        """Gets a path of an engine within seconds: the status and the body. Raises OSError. Replaced where
        connections to engines are kept: a large fleet is asked for its models all the time."""

        self.learned: Callable[[Engine, Unloads], Awaitable[None]] = _unheard
        """Told when an engine shows what its unloads do."""

    def reconfigure(self, *, timeout: float) -> None:
        self._timeout = timeout

    def agent_token(self, engine: str, key: str = "") -> str:
        """The bearer token that the gateway presents to an engine's agent: hex HMAC-SHA256 of the engine's
        name and the id of the host's API key, keyed with the installation's secret. A host therefore cannot
        call another host's agent, nor an agent enrolled later under its own name."""
        bound = f"{engine}\0{key}" if key else engine
        return hmac.new(self.agent_secret, bound.encode(), hashlib.sha256).hexdigest()

    async def load(self, engine: Engine, version: Version) -> None:
        loading, driver = driver_of(engine).capabilities.loading, driver_of(engine)
        if engine.only is not None:
            if version.id not in engine.only:
                raise EngineError(f"{engine.name} was not started with {version.id}, and loads nothing later")
            return
        if not engine.agent and "://" in version.path:
            raise EngineError(
                f"{engine.name} has no agent, which could fetch {version.id} from its bucket: start it with "
                "florin engine run"
            )
        path = await self._stage(engine, version) if engine.agent else version.path
        lora = Lora(version.engine_name, path)
        try:
            async with self.guard(engine):
                if loading is Loading.CALL:
                    await self._send(engine, driver.load(lora))
                else:
                    await self._ask(engine, fingerprint.one_token(engine.base_model, _salt()), lora)
        except EngineError as error:
            # Engine names are never reused, so an engine that knows this name holds these weights.
            if loading is Loading.CALL and driver.is_loaded(error.status or 0, str(error)):
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

    async def unload(self, engine: Engine, engine_name: str) -> bool:
        """False if the engine keeps the name of an adapter that it no longer holds. Never raises for a
        refused unload: a load must not fail because of it, and the engine's message may name another tenant's
        adapter. Does nothing where the engine evicts by itself, or never."""
        if driver_of(engine).capabilities.loading is not Loading.CALL or engine.serves:
            return True
        try:
            async with self.guard(engine):
                await self._send(engine, driver_of(engine).unload(engine_name))
        except EngineUnreachableError:
            raise
        except EngineError as error:
            if error.status in {400, 404}:
                return True
            if error.status == HTTPStatus.INTERNAL_SERVER_ERROR and await self._lists(engine, engine_name):
                await self.learned(engine, "refuses")
                return False
            log.warning("Engine %s: unload of %s failed: %s", engine.name, engine_name, error)
        return True

    async def _lists(self, engine: Engine, engine_name: str) -> bool:
        """Whether it says so. Raises EngineUnreachableError."""
        try:
            return engine_name in ((await self.serving(engine)).loras or ())
        except EngineUnreachableError:
            raise
        except EngineError:
            return False

    async def serving(self, engine: Engine, *, timeout: float | None = None) -> Listing:
        driver = driver_of(engine)
        answer = await self._call(engine, "GET", driver.models_path, None, timeout=timeout)
        try:
            listing = driver.listing(orjson.loads(answer))
        except UNREADABLE as error:
            raise EngineError(
                f"{engine.name} at {engine.url} sent a response that {driver.title} would not send: {error!r}"
            ) from error
        if engine.serves:  # no adapter: its own weights have the version's name
            return replace(listing, loras=None if engine.model in listing.bases else frozenset())
        return listing

    async def recognize(self, engine: Engine) -> DriverName | None:
        """Which kind of engine answers there; None: none that is known. Raises EngineUnreachableError."""
        models = await self._told(engine, "/v1/models")
        for driver in DRIVERS.values():
            with contextlib.suppress(*UNREADABLE):
                if driver.is_mine(models, None):
                    return driver.name
        info = await self._told(engine, "/info")
        for driver in DRIVERS.values():
            with contextlib.suppress(*UNREADABLE):
                if driver.is_mine(None, info):
                    return driver.name
        return None

    async def _told(self, engine: Engine, path: str) -> Any:
        """JSON; None if there is none. Raises EngineUnreachableError."""
        try:
            return orjson.loads(await self._call(engine, "GET", path, None))
        except EngineUnreachableError:
            raise
        except (EngineError, ValueError):
            return None

    async def takes_adapters(self, engine: Engine) -> bool:
        """Whether the runtime LoRA routes exist. An existing route rejects an empty load; a missing one
        returns 404. True for engines that need none."""
        driver = driver_of(engine)
        if driver.capabilities.loading is not Loading.CALL or engine.serves:
            return True
        try:
            await self._call(engine, "POST", driver.load(Lora("", "")).path, {})
        except EngineUnreachableError:
            raise
        except EngineError as error:
            return error.status not in {404, 405}
        return True

    async def serves(self, engine: Engine, task: Task) -> bool:
        """Whether vLLM's route for a task exists: it refuses an empty request, without any work."""
        try:
            await self._call(engine, "POST", fingerprint.PATHS[task], {})
        except EngineUnreachableError:
            raise
        except EngineError as error:
            return error.status not in {404, 405}
        return True

    async def limits(self, engine: Engine) -> Limits:
        """What the engine tells of its flags."""
        driver = driver_of(engine)
        if not driver.limits_path or engine.serves:
            return Limits()
        try:
            return driver.limits(await self._call(engine, "GET", driver.limits_path, None))
        except UNREADABLE:
            return Limits()

    async def metrics(self, engine: Engine) -> bytes:
        """In the Prometheus text format."""
        return await self._call(engine, "GET", driver_of(engine).metrics.path, None)

    async def version(self, engine: Engine) -> str:
        """The engine's version; empty if it does not tell."""
        try:
            answer = await self._call(engine, "GET", driver_of(engine).version_path, None)
            version = orjson.loads(answer)["version"]
        except EngineUnreachableError:
            raise
        except (EngineError, *UNREADABLE):
            return ""
        return version[:MAX_VERSION] if type(version) is str else ""

    async def score_prompts(self, engine: Engine) -> None:
        """Have its own weights score a prompt in both ways that vLLM offers, each while it answers another
        request: in some builds, that ends the engine. Raises EngineUnreachableError, EngineError."""
        for scored in fingerprint.SCORED * 2:  # the first may compile while the other request is answered
            salt = _salt()
            beside = fingerprint.one_token(engine.model, salt) | fingerprint.LONG
            other = asyncio.create_task(self._call(engine, "POST", "/v1/completions", beside))
            try:
                await asyncio.sleep(SHARING_SECONDS)
                body = fingerprint.one_token(engine.model, salt) | scored
                await self._call(engine, "POST", "/v1/completions", body)
            finally:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
        await self.one_token(engine, timeout=self._timeout)  # it is still alive

    async def probe(self, engine: Engine, version: Version | None) -> ProbeAnswer:
        """Return the answer of `version`, or of the base model, to the fixed prompts."""
        task = engine.tasks[0]
        body = fingerprint.request(version.engine_name if version else engine.base_model, _salt(), task)
        lora = Lora(version.engine_name, version.path) if version else None
        async with self.guard(engine):
            answer = await self._ask(engine, body, lora)
        try:
            return fingerprint.parse(answer, task)
        except UNREADABLE as error:
            raise _strange(engine, error) from error

    async def one_token(self, engine: Engine, *, timeout: float) -> ProbeAnswer:
        """Generate, embed or score one token with its own weights to prove that the engine's core works;
        returns what it cost."""
        body = fingerprint.one_token(engine.model, _salt(), engine.tasks[0])
        answer = await self._ask(engine, body, None, timeout=timeout)
        try:
            return fingerprint.cost(answer)
        except UNREADABLE as error:
            raise _strange(engine, error) from error

    async def _ask(
        self, engine: Engine, body: dict[str, Any], lora: Lora | None, *, timeout: float | None = None
    ) -> Any:
        """The answer to a request for the first of the engine's tasks, as vLLM gives it."""
        driver, task = driver_of(engine), engine.tasks[0]
        if task != "generate":
            raw = await self._call(engine, "POST", fingerprint.PATHS[task], body, timeout=timeout)
            try:
                return orjson.loads(raw)
            except UNREADABLE as error:
                raise _strange(engine, error) from error
        calls = driver.ask(body, engine.base_model, lora)
        answers = [await self._send(engine, call, timeout=timeout) for call in calls]
        try:
            return driver.answer([orjson.loads(answer) for answer in answers])
        except UNREADABLE as error:
            raise _strange(engine, error) from error

    async def _send(self, engine: Engine, call: HttpCall, *, timeout: float | None = None) -> bytes:
        return await self._call(engine, call.method, call.path, call.body, timeout=timeout)

    async def _call(
        self,
        engine: Engine,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        *,
        timeout: float | None = None,
    ) -> bytes:
        seconds = timeout or self._timeout
        try:
            if method == "GET":
                status, answer = await self.get(engine, path, seconds)
            else:
                status, answer = await self._exchange(engine, method, path, body, seconds)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            # aiohttp's message for a refused connection mentions TLS even for plain HTTP.
            words = error.strerror if isinstance(error, aiohttp.ClientConnectorError) else str(error)
            reason = _of_tls(error, engine.url) or words or type(error).__name__
            raise EngineUnreachableError(
                f"{engine.name} at {engine.url} does not respond: {reason}"
            ) from error
        if status == 200:
            return answer
        raise EngineError(f"{engine.name} returned HTTP {status}: {_message(answer)}", status=status)

    async def _get(self, engine: Engine, path: str, timeout: float) -> tuple[int, bytes]:
        return await self._exchange(engine, "GET", path, None, timeout)

    async def _exchange(
        self, engine: Engine, method: str, path: str, body: dict[str, Any] | None, timeout: float
    ) -> tuple[int, bytes]:
        async with self._session.request(
            method,
            engine.url + path,
            data=None if body is None else orjson.dumps(body),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
        ) as response:
            return response.status, await response.read()


async def _unheard(_engine: Engine, _unloads: Unloads) -> None:
    """Nobody learns from it."""


def _salt() -> str:
    return secrets.token_hex(16)


def _strange(engine: Engine, error: Exception) -> EngineError:
    title = driver_of(engine).title
    return EngineError(f"{engine.name} does not answer a probe like {title}: {error!r}")


def _of_tls(error: BaseException, url: str) -> str:
    """Explain a TLS error and name the settings involved; empty for any other error."""
    words = explain(error, url)
    return f"{words} (FLORIN_ENGINE_CA, FLORIN_ENGINE_CERT, FLORIN_ENGINE_KEY)" if words else ""


def _message(answer: bytes) -> str:
    """The message in an engine's error body."""
    try:
        body = orjson.loads(answer)
        error = body.get("error", body)
        if type(error) is str:  # TGI's
            return error[:500]
        return str(error.get("message", error.get("error_message", error)))[:500]
    except (ValueError, AttributeError):
        return answer[:500].decode(errors="replace")
