"""MockEngine: the server. In a test, on a free port of this process:

    async with MockEngine(max_loras=2) as engine:
        engine.faults.update({"stop_at": "events", "events": 3, "times": 1})
        ...
        assert engine.state.calls[-1].outcome == "aborted"

or in a process of its own: `python -m loadtests.mock_engine --port 0`, then the same by HTTP:
POST /_mock/faults, DELETE /_mock/faults, GET and DELETE /_mock/log, POST /_mock/forget, POST /_mock/die,
POST /_mock/stop-core, POST /_mock/continue-core.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self

import orjson

from loadtests.mock_engine import answers
from loadtests.mock_engine.asked import Asked, BadRequestError, read
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.core import Core
from loadtests.mock_engine.faults import FaultError, Faults
from loadtests.mock_engine.generation import STREAM_HEAD, Generation
from loadtests.mock_engine.probing import is_probe, probed
from loadtests.mock_engine.state import Call, Spec, State

_GENERATE = {"/v1/chat/completions": True, "/v1/completions": False}


class MockEngine:
    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        api_key: str = "",
        **spec: Any,
    ) -> None:
        """`spec`: the fields of Spec. Port 0 picks a free port. As in vLLM, `api_key` is required under /v1
        only."""
        self.state = State(Spec(**spec))
        self.faults = Faults()
        self.core = Core()
        self.connections: set[Connection] = set()
        self.host = host
        self.port = port
        self.tls = tls
        self.api_key = api_key
        self.on_death: Callable[[], None] | None = None
        """Called at the end of `die`; a separate process exits there."""
        self._queue: list[tuple[Call, Generation]] = []
        """Requests beyond `max_num_seqs`, in order of arrival."""
        self._server: asyncio.Server | None = None
        self._routes: dict[tuple[str, str], Callable[[Connection, bytes], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): lambda connection, _: connection.answer(200, b'{"version":"0.32.0"}'),
            ("POST", "/v1/load_lora_adapter"): self._load,
            ("POST", "/v1/unload_lora_adapter"): self._unload,
            ("GET", "/_mock/faults"): self._show_faults,
            ("POST", "/_mock/faults"): self._set_faults,
            ("DELETE", "/_mock/faults"): self._reset_faults,
            ("GET", "/_mock/log"): lambda connection, _: connection.answer(200, _json(self.state.log())),
            ("DELETE", "/_mock/log"): self._clear_log,
            ("POST", "/_mock/forget"): self._forget,
            ("POST", "/_mock/die"): lambda _connection, _: self.die(),
            ("POST", "/_mock/stop-core"): lambda connection, _: self._act(connection, self.stop_core),
            ("POST", "/_mock/continue-core"): lambda connection, _: self._act(connection, self.core.go_on),
        }

    def __repr__(self) -> str:
        return (
            f"<MockEngine {self.url} adapters={list(self.state.adapters)} running={dict(self.state.running)}>"
        )

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        return self._server is not None

    # life

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), self.host, self.port, backlog=2048, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        server, self._server = self._server, None
        self._cut()
        if server is not None:
            _stop_accepting(server)
            await asyncio.sleep(0)
            server.close()
            await server.wait_closed()
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def die(self) -> None:
        """Like `kill -9`: reset every socket and stop listening. `revive` restarts it."""
        server, self._server = self._server, None
        self._cut()
        if server is not None:
            _stop_accepting(server)
            asyncio.get_running_loop().call_soon(server.close)
        if self.on_death:
            self.on_death()

    async def revive(self) -> None:
        """Restart on the same port, with nothing loaded."""
        self.state.forget()
        self.core = Core()
        await self.start()

    def stop_core(self) -> None:
        """Like SIGSTOP of vLLM's EngineCore: it hangs without its HTTP server noticing. See `core.go_on`."""
        self.core.stop(self.state.metrics(self.faults.waiting))

    def _cut(self) -> None:
        for connection in tuple(self.connections):
            connection.drop("reset")

    async def until(self, true: Callable[[State], bool], timeout: float = 5.0) -> None:
        """Wait until `true(state)`; raise TimeoutError with the state otherwise."""
        deadline = time.monotonic() + timeout
        while not true(self.state):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self!r} did not reach the state within {timeout} s")
            await asyncio.sleep(0.005)

    # requests

    def handle(
        self, connection: Connection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        guarded = self.api_key and path.startswith("/v1")
        if guarded and headers.get("authorization") != f"Bearer {self.api_key}":
            connection.answer(401, b'{"error":"Unauthorized"}')
            return
        chat = _GENERATE.get(path)
        if chat is not None and method == "POST":
            self._generate(connection, path, headers, body, chat=chat)
            return
        route = self._routes.get((method, path))
        if route is None:
            connection.answer(404, answers.error("Not Found", "NotFoundError", 404))
            return
        if not path.startswith("/_mock/"):
            self.state.probes[path] += 1
        route(connection, body)

    def _generate(
        self, connection: Connection, path: str, headers: dict[str, str], body: bytes, *, chat: bool
    ) -> None:
        spec = self.state.spec
        try:
            fields = orjson.loads(body)
            if not chat and is_probe(fields):
                self._do(connection, lambda: self._probe(connection, fields))
                return
            asked = read(fields, chat=chat, base=spec.base, natural=spec.answer_tokens)
        except orjson.JSONDecodeError as problem:
            message = (
                f"[{{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error: {problem}'}}]"
            )
            connection.answer(400, answers.error(message, "BadRequestError", 400))
            return
        except BadRequestError as problem:
            connection.answer(400, answers.error(str(problem), problem.kind, 400, problem.param))
            return
        call = Call(path, asked.model, headers, fields, time.monotonic())
        if spec.log:
            self.state.calls.append(call)
        refusal = self._refusal(asked)
        if refusal is not None:
            call.ended, call.outcome = time.monotonic(), "refused"
            connection.answer(*refusal)
            return
        if self.core.stopped and asked.stream:
            connection.write(STREAM_HEAD)  # vLLM's HTTP server sends this without waiting for its core
        head = not self.core.stopped
        self._do(connection, lambda: self._begin(connection, asked, call, head=head))

    def _do(self, connection: Connection, work: Callable[[], None]) -> None:
        """Do the work when the core can, unless the client has left by then."""
        self.core.do(lambda: work() if connection in self.connections else None)

    def _begin(self, connection: Connection, asked: Asked, call: Call, *, head: bool) -> None:
        state = self.state
        generation = Generation(
            connection,
            asked,
            call,
            faults=self.faults,
            struck=self.faults.strikes(asked.model, asked.prompt),
            cached=state.begin(asked),
            request_id=("chatcmpl-" if asked.chat else "cmpl-")
            + (call.headers.get("x-request-id") or uuid.uuid4().hex),
            on_end=self._ended,
            head=head,
        )
        connection.generation = generation
        if state.spec.max_num_seqs and state.in_flight > state.spec.max_num_seqs:
            self._queue.append((call, generation))
            state.queued = len(self._queue)
        else:
            generation.begin()

    def _probe(self, connection: Connection, fields: dict[str, Any]) -> None:
        """Probes are excluded from faults and logs and have their own faults."""
        self.state.verifications[fields["model"]] += 1
        if self.faults.probe_delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(self.faults.probe_delay, self._probe_now, connection, fields)
        else:
            self._probe_now(connection, fields)

    def _probe_now(self, connection: Connection, fields: dict[str, Any]) -> None:
        model, spec, faults = fields["model"], self.state.spec, self.faults
        adapter = model != spec.base
        if adapter and model not in self.state.adapters:
            message = f"The model `{model}` does not exist. Valid aliases: {spec.base}."
            connection.answer(404, answers.error(message, "NotFoundError", 404, "model"))
            return
        if adapter and faults.probe_status:
            status = faults.probe_status
            connection.answer(status, answers.error("The mock engine was told to fail.", "Error", status))
            return
        struck = faults.probe_as and (not faults.probe_only or faults.probe_only == model)
        seed = f"{model}/{self.state.contents[model]}" if adapter else spec.root
        if struck and adapter and faults.probe_as == "base":
            seed = spec.root
        elif struck and (adapter or faults.probe_as == "all_other"):
            seed += f"/{self.port}"
        connection.answer(200, probed(fields, seed))

    def _ended(self, asked: Asked, call: Call) -> None:
        state = self.state
        state.end(asked, call.sent)
        if not self._queue:
            return
        self._queue = [(c, g) for c, g in self._queue if not c.ended]  # drop those whose clients have left
        while self._queue and state.in_flight - len(self._queue) < state.spec.max_num_seqs:
            waiting, generation = self._queue.pop(0)
            self._begin_later(waiting, generation)
        state.queued = len(self._queue)

    def _begin_later(self, call: Call, generation: Generation) -> None:
        asyncio.get_running_loop().call_soon(lambda: None if call.ended else generation.begin())

    def _refusal(self, asked: Asked) -> tuple[int, bytes] | None:
        spec = self.state.spec
        if asked.model != spec.base and asked.model not in self.state.adapters:
            message = f"The model `{asked.model}` does not exist. Valid aliases: {spec.base}."
            return 404, answers.error(message, "NotFoundError", 404, "model")
        prompt = max(asked.prompts)
        if prompt + asked.tokens > spec.max_model_len:
            message = (
                f"This model's maximum context length is {spec.max_model_len} tokens. However, you requested "
                f"{asked.tokens} output tokens and your prompt contains {prompt} input tokens."
            )
            return 400, answers.error(message, "BadRequestError", 400, "input_tokens")
        return None

    # the other routes

    def _health(self, connection: Connection, _: bytes) -> None:
        faults = self.faults
        if faults.health_delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(faults.health_delay, connection.answer, faults.health_status, b"")
        else:
            connection.answer(faults.health_status, b"")

    def _models(self, connection: Connection, _: bytes) -> None:
        spec = self.state.spec
        connection.answer(
            200, answers.model_cards(spec.base, spec.root, self.state.adapters, spec.max_model_len)
        )

    def _metrics(self, connection: Connection, _: bytes) -> None:
        faults = self.faults
        body = faults.metrics.encode() * faults.metrics_times
        if not body:
            body = self.core.metrics if self.core.stopped else self.state.metrics(faults.waiting)
        connection.answer(200, body, b"text/plain; version=0.0.4; charset=utf-8")

    def _load(self, connection: Connection, body: bytes) -> None:
        if self.faults.load_delay > 0:
            asyncio.get_running_loop().call_later(self.faults.load_delay, self._load_now, connection, body)
        elif not _parsed(body):
            self._load_now(connection, body)  # refused by the route
        else:
            self._do(connection, lambda: self._load_now(connection, body))

    def _load_now(self, connection: Connection, body: bytes) -> None:
        fields = _parsed(body)
        if self.faults.refuses_load():
            status = self.faults.load_status
            self.state.note_refused_load(fields, status)
            connection.answer(
                status, answers.error("The mock engine was told to refuse.", "LoadError", status)
            )
            return
        status, said = self.state.load(fields)
        connection.answer(status, said, _kind(status))

    def _unload(self, connection: Connection, body: bytes) -> None:
        self._do(connection, lambda: self._unload_now(connection, body))

    def _unload_now(self, connection: Connection, body: bytes) -> None:
        status, said = self.state.unload(_parsed(body))
        connection.answer(status, said, _kind(status))

    def _act(self, connection: Connection, act: Callable[[], None]) -> None:
        act()
        connection.answer(200, b"{}")

    def _show_faults(self, connection: Connection, _: bytes) -> None:
        connection.answer(200, _json(asdict(self.faults)))

    def _set_faults(self, connection: Connection, body: bytes) -> None:
        try:
            self.faults.update(_parsed(body) or {})
        except FaultError as problem:
            connection.answer(400, answers.error(str(problem), "BadRequestError", 400))
            return
        self._show_faults(connection, b"")

    def _reset_faults(self, connection: Connection, _: bytes) -> None:
        self.faults.reset()
        self._show_faults(connection, b"")

    def _clear_log(self, connection: Connection, _: bytes) -> None:
        self.state.clear_log()
        connection.answer(200, b"{}")

    def _forget(self, connection: Connection, _: bytes) -> None:
        self.state.forget()
        connection.answer(200, b"{}")


def _stop_accepting(server: asyncio.Server) -> None:
    """First half of closing a server. Closing it immediately would leak connections being accepted: in Python
    3.11 no transport can be created for a closed server, and its socket is never closed."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError):  # not needed in other event loops
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())


def _json(value: Any) -> bytes:
    return orjson.dumps(value)


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _kind(status: int) -> bytes:
    """Like vLLM, send no content type after a successful load or unload."""
    return b"" if status == 200 else b"application/json"
