"""The measured gateways, started as a user would, on one core."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from loadtests.overhead import adapter_files, cpu

ROOT = Path(__file__).resolve().parents[2]
GATEWAY_CORE = 0


@dataclass(slots=True)
class Contestant:
    name: str
    port: int
    model: str
    """The adapter's name for its client."""
    key: str = ""
    process: subprocess.Popen[bytes] | None = None
    pids: dict[str, list[int]] = field(default_factory=dict)
    """Group → processes; `gateway` is the measured group."""

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def relay(name: str, module: str, upstream: str, model: str) -> Contestant:
    """An ASGI app on the same uvicorn as Florin."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"{module}:app", "--port", str(port), "--loop", "uvloop"]
    command += ["--http", "httptools", "--log-level", "warning", "--no-access-log"]
    with cpu.on_core(GATEWAY_CORE):
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"UPSTREAM": upstream})
    contestant = Contestant(name, port, model, process=process)
    wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200, process)
    contestant.pids = {"gateway": cpu.tree(process.pid)}
    return contestant


def florin(upstream: str, directory: Path, **settings_beside: str) -> Contestant:
    """`florin serve` with its defaults: embedded Valkey, SQLite ledger, one worker. A tenant, its key and its
    adapter are registered through the admin API, and one request has loaded the adapter."""
    port, operator = free_port(), secrets.token_hex(16)
    settings = {
        "FLORIN_STATE_DIR": str(directory / "state"),
        "FLORIN_PORT": str(port),
        "FLORIN_WORKERS": "1",
        "FLORIN_OPERATOR_KEY": operator,
        **settings_beside,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLORIN_")}
    command = [str(Path(sys.executable).with_name("florin")), "serve"]
    with cpu.on_core(GATEWAY_CORE), (directory / "florin.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=inherited | settings, stdout=log, stderr=subprocess.STDOUT
        )
    contestant = Contestant("florin", port, "support", process=process)
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {operator}"}, timeout=30
        ) as http:
            wait_for(lambda: http.get("/admin/v1/engines").status_code == 200, process)
            contestant.key = _register(http, upstream, directory)
            body = {"model": "support", "messages": [{"role": "user", "content": "Hello?"}]}
            headers = {"authorization": f"Bearer {contestant.key}"}
            _ok(http.post("/v1/chat/completions", json=body, headers=headers))
    except BaseException as problem:
        contestant.stop()
        problem.add_note((directory / "florin.log").read_text(errors="replace")[-3000:])
        raise
    groups: dict[str, list[int]] = {"gateway": [], "valkey": []}
    for pid in cpu.tree(process.pid):
        groups["valkey" if "valkey" in cpu.name(pid) or "redis" in cpu.name(pid) else "gateway"].append(pid)
    contestant.pids = groups
    return contestant


def _register(http: httpx.Client, upstream: str, directory: Path) -> str:
    config = adapter_files.write_base_config(directory / "base")
    adapter = adapter_files.write_adapter(directory / "support")
    engine = {
        "name": "mock",
        "url": upstream,
        "base": adapter_files.BASE,
        "gpu_type": "mock",
        "gpu_count": 1,
        "slots": 2,
        "cpu_slots": 8,
        "max_rank": 8,
        "verify": True,
        "base_config": str(config),
    }
    _ok(http.post("/admin/v1/engines", json=engine))
    _ok(http.post("/admin/v1/tenants", json={"name": "acme"}))
    _ok(http.post("/admin/v1/adapters", json={"adapter": "acme/support", "source": str(adapter)}))
    key: str = _ok(http.post("/admin/v1/keys", json={"tenant": "acme", "role": "tenant"}))["key"]
    return key


def _ok(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise RuntimeError(f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text[:1000]}")
    body: dict[str, Any] = answer.json()
    return body


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for(true: Callable[[], bool], process: subprocess.Popen[bytes], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"it exited with {process.returncode} before responding")
        try:
            if true():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"it did not respond within {timeout} s")
