"""Runs `florin serve` as a child process and calls its admin API over HTTP, the demo's only access to it."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from deploy.demo.engine_env import SITE
from deploy.demo.engines import log_tail

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0
ANNOUNCEMENT = "Florin listens on "


class GatewayError(Exception):
    """The gateway did not start or refused a request; the message says why."""


class Gateway:
    """The gateway process. Mutable state: the process, and its URL once it listens."""

    def __init__(
        self,
        state_dir: Path,
        log: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        entry: str = "gateway.cli",
    ) -> None:
        """`settings`: additional FLORIN_* variables. `entry`: the module whose `main` is the command."""
        self.state_dir = state_dir
        self.operator_key = f"fl-operator-{secrets.token_urlsafe(24)}"
        self.url = ""
        self._log = log
        self._port = port
        self._settings = dict(settings or {})
        self._entry = entry
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process, "not launched"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it; `wait` returns once it listens."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLORIN_")}
        settings = {
            "FLORIN_STATE_DIR": str(self.state_dir),
            "FLORIN_HOST": "127.0.0.1",
            "FLORIN_PORT": str(self._port),
            "FLORIN_OPERATOR_KEY": self.operator_key,
            "FLORIN_SHUTDOWN_GRACE": "5",
            **self._settings,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH")))),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - `entry` is one of our modules
                [sys.executable, "-c", f"import {self._entry}; {self._entry}.main()", "serve"],
                env=inherited | settings,
                cwd=self._log.parent,  # a directory without a florin.yaml
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it reports its address. Raises GatewayError."""
        assert self._process, "not launched"
        assert self._process.stdout
        deadline = time.monotonic() + START_TIMEOUT_S
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if not selector.select(timeout=0.2):
                    continue
                chunk = os.read(self._process.stdout.fileno(), 4096)
                output += chunk
                if not chunk:
                    break
                for line in output.decode(errors="replace").splitlines(keepends=True):
                    if line.startswith(ANNOUNCEMENT) and line.endswith("\n"):
                        self.url = line.removeprefix(ANNOUNCEMENT).strip()
                        return
        raise GatewayError(f"The gateway did not start. The end of {self._log}:\n{log_tail(self._log)}")

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> Any:
        """Call the API and return the JSON. Raises GatewayError with the gateway's message."""
        return self._call(method, path, body, query).json()

    def metrics(self) -> str:
        """The exposition for Prometheus. Raises GatewayError."""
        return self._call("GET", "/metrics").text

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> httpx2.Response:
        try:
            answer = httpx2.request(
                method,
                self.url + path,
                json=body,
                params=query,
                headers={"authorization": f"Bearer {self.operator_key}"},
                timeout=60,
                trust_env=False,
            )
        except httpx2.HTTPError as error:
            raise GatewayError(f"{method} {path}: {error!r}") from error
        if answer.is_error:
            raise GatewayError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer

    def stop(self) -> None:
        """SIGTERM, so that metered usage is flushed, then SIGKILL."""
        if self._process is None:
            return
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
