"""`florin engine run` as a process under test, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from adapters.model import Adapter, Version, dump
from adapters.security.secret_files import write_private
from adapters.store.protocol.registry import Change
from tests.support.harness import Gateway
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


@dataclass
class Agent:
    """One `florin engine run`."""

    process: asyncio.subprocess.Process
    home: Path
    port: int
    lines: list[str] = field(default_factory=list)
    reading: asyncio.Task[None] | None = None
    tls: bool = False
    """Its engine speaks TLS."""

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def engines(self) -> list[psutil.Process]:
        """Every process of its engine: the server, its core."""
        return marked(self.home)

    def leader(self) -> psutil.Process:
        guard = self.guard()
        return next(p for p in self.engines() if p.ppid() == guard.pid)

    def guard(self) -> psutil.Process:
        return next(p for p in self.engines() if any("subreaper.py" in word for word in p.cmdline()[:4]))

    async def read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip())

    async def stop(self, seconds: float = 60.0) -> int:
        """Its exit code, once `log` has its last lines."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(seconds):
            status = await self.process.wait()
            if self.reading:
                await asyncio.wait([self.reading])
            return status

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


def marked(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("FLORIN_ENGINE_HOME") == str(home):
                found.append(process)
    return found


_given: set[int] = set()


def free_port() -> int:
    """A port that this process has not handed out before, below the ephemeral range: the kernel cannot assign it to
    another socket before the server binds to it, or while the server is down."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


async def start_agent(
    gateway: Gateway,
    name: str,
    home: Path,
    port: int,
    options: Sequence[str],
    engine: Sequence[str],
    **env: str,
) -> Agent:
    """`options` are of `florin engine run`; `engine` is the engine's command with its flags. Without a key in
    `env`, or an option that brings one, the host has been enrolled already."""
    florin = (sys.executable, "-m", "gateway.cli", "engine", "run", "--name", name, "--cache-dir", str(home))
    if not {"FLORIN_OPERATOR_KEY", "FLORIN_ENGINE_TOKEN"} & env.keys() and "--token-file" not in options:
        key_file = home.with_name(f"{home.name}.key")
        write_private(key_file, await gateway.engine_key(name))
        env = {"FLORIN_ENGINE_KEY_FILE": str(key_file), **env}
    environ = {**os.environ, "FLORIN_URL": gateway.url, "XDG_STATE_HOME": str(home.parent / "xdg"), **env}
    process = await asyncio.create_subprocess_exec(
        *florin, *options, "--", *engine, cwd=ROOT, env=environ,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,  # no terminal
    )  # fmt: skip
    agent = Agent(process, home, port)
    agent.reading = asyncio.create_task(agent.read())
    return agent


async def end(*agents: Agent) -> None:
    """Kills what still runs, and fails where anything of it survives."""
    for agent in agents:
        if agent.process.returncode is None:
            await agent.kill()
        if agent.reading:
            await agent.reading
    await until(lambda: not any(agent.engines() for agent in agents))


async def registered(gateway: Gateway, agent: Agent, name: str = "h1", seconds: float = PATIENCE_S) -> Any:
    """The engine, once it is known as this agent's, and up."""

    def known() -> Any:
        engine = gateway.state.catalog.engines.get(name)
        seen = gateway.state.pool.state(name)
        return engine if engine and engine.url == agent.url and seen and seen.healthy else None

    return await until(known, seconds, lambda: agent.log)


async def add_version(
    gateway: Gateway, name: str, *, number: int = 1, size: int = 20_000, files: Path | None = None
) -> Version:
    """A version whose files are in the artifact store, written to the registry directly. `files`: a directory
    with them; None: no adapter's."""
    with gateway.state.artifacts.staging() as staged:
        (staged / "adapter_config.json").write_text(json.dumps({"r": 8, "of": secrets.token_hex(4)}))
        (staged / "adapter_model.safetensors").write_bytes(secrets.token_bytes(size))
        if files is not None:
            shutil.copytree(files, staged, dirs_exist_ok=True)
        artifact = gateway.state.artifacts.publish(staged)
    version = Version(
        adapter=name, number=number, digest=artifact.digest, engine_name=f"fl-{secrets.token_hex(10)}",
        path=artifact.location, base_model="base", rank=8, size_bytes=artifact.size_bytes, source="test",
        created=1,
    )  # fmt: skip
    await gateway.commit(
        Change("version", version.id, dump(version)),
        Change("adapter", name, dump(Adapter(name, live=number, latest=number))),
    )
    return version


async def ask(gateway: Gateway, tenant: str = "acme", model: str = "support", **options: Any) -> Any:
    async with gateway.client(tenant) as client:
        return await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], **options
        )


async def slow_down(agent: Agent, seconds: float) -> None:
    """Between two events of its streams."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        (await http.post(f"{agent.url}/_mock/faults", json={"event_delay": seconds})).raise_for_status()


def roots(agent: Agent) -> list[str]:
    cards = httpx2.get(f"{agent.url}/v1/models", trust_env=False).json()["data"]
    return [card["root"] for card in cards if card.get("parent")]
