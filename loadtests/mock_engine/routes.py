"""The routes that do not generate: vLLM's own, and those under /_mock that control the mock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import orjson

from loadtests.mock_engine import answers
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.core import Core
from loadtests.mock_engine.faults import FaultError, Faults
from loadtests.mock_engine.state import State

Do = Callable[[Connection, Callable[[], None]], None]
"""Does the work when the engine's core can."""
_LOOK_S = 0.01
"""How often a held load looks whether it may begin."""


class Routes:
    def __init__(self, state: State, faults: Faults, core: Core, do: Do) -> None:
        self._state = state
        self._faults = faults
        self._core = core
        self._do = do
        self.table: dict[tuple[str, str], Callable[[Connection, bytes], None]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): lambda connection, _: connection.answer(
                200, orjson.dumps({"version": state.spec.version})
            ),
            ("POST", "/v1/load_lora_adapter"): self._load,
            ("POST", "/v1/unload_lora_adapter"): self._unload,
            ("GET", "/_mock/faults"): self._show_faults,
            ("POST", "/_mock/faults"): self._set_faults,
            ("DELETE", "/_mock/faults"): self._reset_faults,
            ("GET", "/_mock/log"): lambda connection, _: connection.answer(200, orjson.dumps(state.log())),
            ("DELETE", "/_mock/log"): self._clear_log,
            ("POST", "/_mock/forget"): self._forget,
            ("POST", "/_mock/stop-core"): self._stop_core,
            ("POST", "/_mock/continue-core"): self._continue_core,
        }

    def _health(self, connection: Connection, _: bytes) -> None:
        faults = self._faults
        if faults.health_delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(faults.health_delay, connection.answer, faults.health_status, b"")
        else:
            connection.answer(faults.health_status, b"")

    def _models(self, connection: Connection, _: bytes) -> None:
        spec = self._state.spec
        connection.answer(
            200, answers.model_cards(spec.base, spec.root, self._state.adapters, spec.max_model_len)
        )

    def _metrics(self, connection: Connection, _: bytes) -> None:
        faults = self._faults
        body = faults.metrics.encode() * faults.metrics_times
        if not body:
            body = self._core.metrics if self._core.stopped else self._state.metrics(faults.waiting)
        connection.answer(200, body, b"text/plain; version=0.0.4; charset=utf-8")

    def _load(self, connection: Connection, body: bytes) -> None:
        if self._faults.load_held:
            asyncio.get_running_loop().call_later(_LOOK_S, self._load, connection, body)
        elif self._faults.load_delay > 0:
            asyncio.get_running_loop().call_later(self._faults.load_delay, self._load_now, connection, body)
        elif not _parsed(body):
            self._load_now(connection, body)  # refused by the route
        else:
            self._do(connection, lambda: self._load_now(connection, body))

    def _load_now(self, connection: Connection, body: bytes) -> None:
        fields = _parsed(body)
        if self._faults.refuses_load():
            status = self._faults.load_status
            self._state.note_refused_load(fields, status)
            connection.answer(
                status, answers.error("The mock engine was told to refuse.", "LoadError", status)
            )
            return
        status, answer = self._state.load(fields)
        connection.answer(status, answer, _kind(status))

    def _unload(self, connection: Connection, body: bytes) -> None:
        self._do(connection, lambda: self._unload_now(connection, body))

    def _unload_now(self, connection: Connection, body: bytes) -> None:
        status, answer = self._state.unload(_parsed(body))
        connection.answer(status, answer, _kind(status))

    def _stop_core(self, connection: Connection, _: bytes) -> None:
        self._core.stop(self._state.metrics(self._faults.waiting))
        connection.answer(200, b"{}")

    def _continue_core(self, connection: Connection, _: bytes) -> None:
        self._core.resume()
        connection.answer(200, b"{}")

    def _show_faults(self, connection: Connection, _: bytes) -> None:
        connection.answer(200, orjson.dumps(asdict(self._faults)))

    def _set_faults(self, connection: Connection, body: bytes) -> None:
        try:
            self._faults.update(_parsed(body) or {})
        except FaultError as problem:
            connection.answer(400, answers.error(str(problem), "BadRequestError", 400))
            return
        self._show_faults(connection, b"")

    def _reset_faults(self, connection: Connection, _: bytes) -> None:
        self._faults.reset()
        self._show_faults(connection, b"")

    def _clear_log(self, connection: Connection, _: bytes) -> None:
        self._state.clear_log()
        connection.answer(200, b"{}")

    def _forget(self, connection: Connection, _: bytes) -> None:
        self._state.forget()
        connection.answer(200, b"{}")


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _kind(status: int) -> bytes:
    """Like vLLM, send no content type after a successful load or unload."""
    return b"" if status == 200 else b"application/json"
