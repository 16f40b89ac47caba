"""The measured gateways, started as a user would, on one core."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2

from loadtests.mock_engine import MockProcess
from loadtests.overhead import adapter_files, cpu, peers
from loadtests.overhead.loads import ANSWER_TOKENS

ROOT = Path(__file__).resolve().parents[2]
GATEWAY_CORE = 0


class ThinMockProcess(MockProcess):
    module = "loadtests.overhead.thin_mock"

    def __init__(self, **options: Any) -> None:
        known = {"base": adapter_files.BASE, "answer_tokens": ANSWER_TOKENS, "log": 0, "check_paths": "no"}
        super().__init__(**known | options)


@dataclass(slots=True)
class Contestant:
    name: str
    port: int
    model: str
    """What its clients ask for."""
    speaker: str = ""
    """The engine-side name of the model that must answer."""
    key: str = ""
    operator: str = ""
    """Florin's operator key."""
    version: str = ""
    slow: bool = False
    """It gets fewer rounds and streams."""
    process: subprocess.Popen[bytes] | None = None
    """None for the engine itself."""
    pids: dict[str, list[int]] = field(default_factory=dict)
    """Group → processes; `gateway` is the measured group."""

    def find_processes(self) -> None:
        """Group the processes that run now: Florin starts one for usage records under load."""
        if self.process is None:
            return
        self.pids = {"gateway": []}
        for pid in cpu.tree(self.process.pid):
            store = any(word in cpu.name(pid) for word in ("valkey", "redis"))
            self.pids.setdefault("valkey" if store else "gateway", []).append(pid)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def relay(name: str, upstream: str, speaker: str, directory: Path) -> Contestant:
    """One of the ASGI apps here, on uvicorn."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"loadtests.overhead.{name}_relay:app", "--port", str(port)]
    command += ["--loop", "uvloop", "--http", "httptools", "--log-level", "warning", "--no-access-log"]
    contestant = Contestant(name, port, speaker, speaker)
    return _launched(contestant, command, {"UPSTREAM": upstream}, directory)


def peer(name: str, upstream: str, speaker: str, directory: Path) -> Contestant:
    """Raises PeerUnavailableError."""
    known = peers.PEERS[name]
    place = peers.environment(name)
    key = f"sk-{secrets.token_hex(16)}"
    start = peers.Start(free_port(), free_port(), upstream, speaker, key, directory)
    program, *arguments = known.command(start)
    says = adapter_files.BASE if known.base_only else speaker
    contestant = Contestant(
        name, start.port, known.model or speaker, says, key, peers.version(name), slow=known.slow
    )
    try:
        return _launched(
            contestant, [str(place / "bin" / program), *arguments], known.environ(start), directory
        )
    except (RuntimeError, TimeoutError) as problem:
        notes = "\n".join(getattr(problem, "__notes__", ()))
        raise peers.PeerUnavailableError(f"{name} does not work here: {problem}\n{notes}") from problem


def _launched(
    contestant: Contestant, command: list[str], environ: dict[str, str], directory: Path
) -> Contestant:
    """Start it on its core and wait until it answers. Raises RuntimeError and TimeoutError."""
    log = directory / f"{contestant.name}.log"
    with cpu.on_core(GATEWAY_CORE), log.open("wb") as file:
        contestant.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environ, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        wait_for(lambda: _answers(contestant), contestant.process)
    except BaseException as problem:
        contestant.stop()
        problem.add_note(log.read_text(errors="replace")[-3000:])
        raise
    contestant.find_processes()
    return contestant


def _answers(contestant: Contestant) -> bool:
    answer = httpx2.post(
        f"http://127.0.0.1:{contestant.port}/v1/chat/completions",
        json={
            "model": contestant.model,
            "messages": [{"role": "user", "content": "Hello?"}],
            "max_tokens": 2,
        },
        headers={"authorization": f"Bearer {contestant.key}"} if contestant.key else {},
        timeout=30,
    )
    return answer.status_code == 200


def florin(
    upstream: str,
    directory: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
    *,
    slots: int = 2,
    program: Sequence[str] = (),
) -> Contestant:
    """`florin serve` with its defaults (embedded Valkey, SQLite ledger, one worker), except `settings`. A
    tenant, its key and its adapter are registered by the admin API; one request has loaded the adapter.
    `program`: what starts `florin`; this Python's, if empty."""
    port, operator = free_port(), secrets.token_hex(16)
    chosen = {
        "FLORIN_STATE_DIR": str(directory / "state"),
        "FLORIN_PORT": str(port),
        "FLORIN_WORKERS": "1",
        "FLORIN_OPERATOR_KEY": operator,
        **settings,
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLORIN_")}
    command = [*(program or (str(Path(sys.executable).with_name("florin")),)), "serve"]
    with cpu.on_core(GATEWAY_CORE), (directory / "florin.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=inherited | chosen, stdout=log, stderr=subprocess.STDOUT
        )
    contestant = Contestant("florin", port, "support", operator=operator, process=process)
    try:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {operator}"}, timeout=30
        ) as http:
            wait_for(lambda: http.get("/admin/v1/engines").status_code == 200, process)
            contestant.key = _register(http, upstream, directory, slots)
            body = {"model": "support", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 2}
            headers = {"authorization": f"Bearer {contestant.key}"}
            _ok(http.post("/v1/chat/completions", json=body, headers=headers))
    except BaseException as problem:
        contestant.stop()
        problem.add_note((directory / "florin.log").read_text(errors="replace")[-3000:])
        raise
    contestant.find_processes()
    return contestant


def _register(http: httpx2.Client, upstream: str, directory: Path, slots: int) -> str:
    config = adapter_files.write_base_config(directory / "base")
    adapter = adapter_files.write_adapter(directory / "support")
    engine = {
        "name": "mock",
        "url": upstream,
        "base": adapter_files.BASE,
        "gpu_type": "mock",
        "gpu_count": 1,
        "slots": slots,
        "cpu_slots": max(8, slots),
        "max_rank": 8,
        "verify": True,
        "base_config": str(config),
    }
    _ok(http.post("/admin/v1/engines", json=engine))
    _ok(http.post("/admin/v1/tenants", json={"name": "acme"}))
    _ok(http.post("/admin/v1/adapters", json={"adapter": "acme/support", "source": str(adapter)}))
    key: str = _ok(http.post("/admin/v1/keys", json={"tenant": "acme", "role": "tenant"}))["key"]
    return key


def _ok(answer: httpx2.Response) -> dict[str, Any]:
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
        except httpx2.TransportError:
            pass
        time.sleep(0.05)
    raise TimeoutError(f"it did not respond within {timeout} s")
