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
from collections.abc import Callable, Iterator
from typing import Any, Self

import orjson

from loadtests.mock_engine import answers, pooling
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.core import Core
from loadtests.mock_engine.faults import Faults
from loadtests.mock_engine.generation import STREAM_HEAD, Generation
from loadtests.mock_engine.probing import is_probe, probed
from loadtests.mock_engine.request import BadRequestError, GenerationRequest, parse
from loadtests.mock_engine.routes import Routes
from loadtests.mock_engine.state import Call, Spec, State

_GENERATE = {"/v1/chat/completions": True, "/v1/completions": False}


class MockEngine:
    connection: type[Connection] = Connection

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
        self._routes = Routes(self.state, self.faults, self.core, self._do).table | {
            ("POST", "/_mock/die"): lambda _connection, _: self.die(),
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
            lambda: self.connection(self), self.host, self.port, backlog=2048, ssl=self.tls
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
        self.core.reset()
        await self.start()

    def stop_core(self) -> None:
        """Like SIGSTOP of vLLM's EngineCore: it hangs without its HTTP server noticing. See `core.resume`."""
        self.core.stop(self.state.metrics(self.faults.waiting))

    def _cut(self) -> None:
        for connection in tuple(self.connections):
            connection.drop("reset")

    async def until(self, true: Callable[[State], bool], timeout: float = 30.0) -> None:
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
        task = "generate" if path in _GENERATE else pooling.task(path)
        if task and task not in self.state.spec.tasks:
            connection.answer(404, b'{"detail":"Not Found"}')
            return
        if method == "POST" and (path in _GENERATE or pooling.serves(path)):
            self._generate(connection, path, headers, body)
            return
        route = self._routes.get((method, path))
        if route is None:
            connection.answer(404, answers.error("Not Found", "NotFoundError", 404))
            return
        if not path.startswith("/_mock/"):
            self.state.probes[path] += 1
        route(connection, body)

    def _generate(self, connection: Connection, path: str, headers: dict[str, str], body: bytes) -> None:
        spec, chat = self.state.spec, _GENERATE.get(path)
        try:
            fields = orjson.loads(body)
            if chat is None and pooling.is_probe(fields):
                self._do(connection, lambda: self._probe(connection, fields, pooling.probed))
                return
            if chat is None:
                request = pooling.parse(path, fields, self.state)
            elif not chat and is_probe(fields):
                self._do(connection, lambda: self._probe(connection, fields, probed))
                return
            else:
                request = parse(fields, chat=chat, base=spec.base, natural=spec.answer_tokens)
        except orjson.JSONDecodeError as problem:
            message = (
                f"[{{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error: {problem}'}}]"
            )
            connection.answer(400, answers.error(message, "BadRequestError", 400))
            return
        except BadRequestError as problem:
            connection.answer(400, answers.error(str(problem), problem.kind, 400, problem.param))
            return
        call = Call(path, request.model, headers, fields, time.monotonic())
        scored = "prompt_logprobs" in fields or bool(fields.get("echo"))
        if self.faults.scores_kill and scored and self.state.in_flight:
            self.die()
            return
        if spec.log:
            self.state.calls.append(call)
        refusal = self._refusal(request)
        if refusal is not None:
            call.ended, call.outcome = time.monotonic(), "refused"
            connection.answer(*refusal)
            return
        if self.core.stopped and request.stream:
            connection.write(STREAM_HEAD)  # vLLM's HTTP server sends this without waiting for its core
        head = not self.core.stopped
        self._do(connection, lambda: self._begin(connection, request, call, head=head))

    def events(self, request: GenerationRequest, request_id: str, cached: int) -> Iterator[bytes]:
        """The events of a stream."""
        return answers.events(request, request_id, cached, details=self.state.spec.prompt_details)

    def _do(self, connection: Connection, work: Callable[[], None]) -> None:
        """Do the work when the core can, unless the client has left by then."""
        self.core.do(lambda: work() if connection in self.connections else None)

    def _begin(self, connection: Connection, request: GenerationRequest, call: Call, *, head: bool) -> None:
        state = self.state
        generation = Generation(
            connection,
            request,
            call,
            faults=self.faults,
            faulty=self.faults.applies_to(request.model, request.prompt),
            cached=state.begin(request),
            request_id=("chatcmpl-" if request.chat else "cmpl-")
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

    def _probe(
        self, connection: Connection, fields: dict[str, Any], answer: Callable[..., tuple[int, bytes]]
    ) -> None:
        """Probes are excluded from faults and logs and have their own faults."""
        self.state.verifications[fields["model"]] += 1

        def now() -> None:
            connection.answer(*answer(fields, self.state, self.faults, distinct=str(self.port)))

        if self.faults.probe_delay > 0:
            asyncio.get_running_loop().call_later(self.faults.probe_delay, now)
        else:
            now()

    def _ended(self, request: GenerationRequest, call: Call) -> None:
        state = self.state
        state.end(request, call.sent)
        if not self._queue:
            return
        self._queue = [(c, g) for c, g in self._queue if not c.ended]  # drop those whose clients have left
        while self._queue and state.in_flight - len(self._queue) < state.spec.max_num_seqs:
            waiting, generation = self._queue.pop(0)
            self._begin_later(waiting, generation)
        state.queued = len(self._queue)

    def _begin_later(self, call: Call, generation: Generation) -> None:
        asyncio.get_running_loop().call_soon(lambda: None if call.ended else generation.begin())

    def _refusal(self, request: GenerationRequest) -> tuple[int, bytes] | None:
        spec = self.state.spec
        if request.model != spec.base and request.model not in self.state.adapters:
            return answers.no_such_model(request.model, spec.base)
        prompt = max(request.prompts, default=0)
        if prompt + request.tokens > spec.max_model_len:
            message = (
                f"This model's maximum context length is {spec.max_model_len} tokens. However, you requested "
                f"{request.tokens} output tokens and your prompt contains {prompt} input tokens."
            )
            return 400, answers.error(message, "BadRequestError", 400, "input_tokens")
        return None


def _stop_accepting(server: asyncio.Server) -> None:
    """First half of closing a server. Closing it immediately would leak connections being accepted: in Python
    3.11 no transport can be created for a closed server, and its socket is never closed."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError):  # not needed in other event loops
        for sock in server.sockets:
            loop.remove_reader(sock.fileno())
