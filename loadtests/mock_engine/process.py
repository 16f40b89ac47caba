"""A mock engine in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx2

ROOT = Path(__file__).resolve().parents[2]


class MockProcess:
    """`with MockProcess(max_loras=2) as engine:`; keywords are command-line options."""

    module = "loadtests.mock_engine"

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.port = 0
        self.ports: list[int] = []
        """One for each engine, if `count` was given."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", self.module]
        for name, value in self._options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self._process = subprocess.Popen(  # a new session, so that Ctrl-C does not reach it
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the mock engine did not start (exit {self._process.wait()})")
        started = json.loads(line)
        self.port, self.ports = started["port"], started["ports"]
        self.url = f"http://127.0.0.1:{self.port}"

    def faults(self, **values: Any) -> None:
        """Set faults; without arguments, reset all."""
        if values:
            httpx2.post(f"{self.url}/_mock/faults", json=values).raise_for_status()
        else:
            httpx2.delete(f"{self.url}/_mock/faults").raise_for_status()

    def act(self, what: str) -> None:
        """Call a route under /_mock: `stop-core`, `continue-core`, `forget`."""
        httpx2.post(f"{self.url}/_mock/{what}").raise_for_status()

    def log(self) -> dict[str, Any]:
        log: dict[str, Any] = httpx2.get(f"{self.url}/_mock/log").json()
        return log

    def kill(self) -> None:
        """`kill -9`; `start` restarts it, on the same port if one was given."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
