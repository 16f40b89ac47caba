"""What is measured: a gateway, and one engine under `florin engine run`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from deploy.demo.engine_env import SITE
from deploy.demo.engines import log_tail
from deploy.demo.gateway import Gateway
from loadtests.chaos.proxy import free_port
from loadtests.gpu.engine_calls import EngineCalls
from loadtests.gpu.scale import Mode, Scale
from loadtests.gpu.shapes import SERVED_NAME, write_adapter, write_base

ROOT = Path(__file__).parents[2]
PLUGIN = Path(__file__).parent / "plugin"
ENGINE = "measured"
TENANTS = ("acme", "bolt", "corgi")
MODULE = "vllm.entrypoints.openai.api_server"
STOP_SECONDS = 30.0
RESTARTS = b": restarting in "
"""What the agent logs when the engine ended by itself."""


class SiteError(Exception):
    """The gateway or the engine did not start, or refused something; the message says why."""


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """How vLLM is started here."""

    python: Path
    site: Path | None
    """A folder of packages besides the interpreter's own."""
    gpu_type: str
    environment: Mapping[str, str]


class Site:
    """`async with Site(…) as site`. Mutable: all that runs."""

    def __init__(self, directory: Path, logs: Path, scale: Scale, program: EngineProgram, demo: Path) -> None:
        """`logs`: where both logs go, since all else is temporary. `demo`: the demo's base model."""
        self.scale, self._program = scale, program
        self._directory, self._demo = directory, demo
        self._engine_log = logs / "engine.log"
        self.gateway = Gateway(directory / "state", logs / "gateway.log", settings={"FLORIN_WORKERS": "1"})
        self.engine = EngineCalls(f"http://127.0.0.1:{free_port()}", SERVED_NAME)
        self.keys: dict[str, str] = {}
        self._agent: subprocess.Popen[bytes] | None = None
        self._mode: Mode = "compiled"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """The gateway only; the engine is started when it is needed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_base(self._directory / "base", self.scale.shape, self._demo, max_length=self.scale.max_length)
        self._write_plugin()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.engine)
            stack.push_async_callback(asyncio.to_thread, self.gateway.stop)
            stack.push_async_callback(asyncio.to_thread, self.stop_engine)
            self.gateway.launch()  # on this thread, with which the gateway ends
            await asyncio.to_thread(self.gateway.wait)
            for tenant in TENANTS:
                await self.call("POST", "tenants", {"name": tenant})
                self.keys[tenant] = (await self.call("POST", "keys", {"tenant": tenant, "role": "tenant"}))[
                    "key"
                ]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call the admin API. Raises GatewayError."""
        return await asyncio.to_thread(self.gateway.call, method, f"/admin/v1/{path}", body)

    async def chat(self, tenant: str, question: str, tokens: int) -> httpx2.Response:
        """Through Florin, to the tenant's adapter. Raises SiteError."""
        body = {
            "model": "support", "messages": [{"role": "user", "content": question}], "max_tokens": tokens,
            "temperature": 0,
        }  # fmt: skip
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
            response = await client.post(
                f"{self.gateway.url}/v1/chat/completions", json=body, headers=headers
            )
        if response.is_error:
            raise SiteError(f"{tenant}'s chat: {response.status_code} {response.text[:300]}")
        return response

    def adapter(self, rank: int, seed: int = 0, scale: float = 1.0) -> str:
        """The directory of an adapter, written when it is asked for first."""
        directory = self._directory / "adapters" / f"rank-{rank}-seed-{seed}-scale-{scale}"
        if not directory.exists():
            write_adapter(directory, self.scale.shape, rank, seed=seed, scale=scale)
        return str(directory)

    # -- the engine

    async def ensure_engine(self, mode: Mode) -> float:
        """Until it is up in this mode: started if it is not, awaited if its agent restarts it. Returns the
        seconds. Raises SiteError."""
        began = time.perf_counter()
        if self._agent is not None and (mode != self._mode or self._agent.poll() is not None):
            await asyncio.to_thread(self.stop_engine)
        was_up = self._agent is not None
        logged = self._engine_log.stat().st_size if self._engine_log.exists() else 0
        if self._agent is None:
            token = await self.call("POST", "enrolment-tokens", {"engine": ENGINE, "address": "127.0.0.1"})
            self._launch(token["token"], mode)
        while not ((healthy := await self.engine.healthy()) and await self._registered()):
            # Florin tries whether scoring a prompt ends the engine; if so, its agent starts it again.
            was_up |= healthy
            ended = self._agent is None or self._agent.poll() is not None
            if ended or (not was_up and RESTARTS in self._engine_log.read_bytes()[logged:]):
                raise SiteError(
                    f"The engine did not start. The end of its log:\n{log_tail(self._engine_log)}"
                )
            await asyncio.sleep(0.2)
        return time.perf_counter() - began

    async def _registered(self) -> bool:
        listing = await self.call("GET", "engines")
        return any(e["name"] == ENGINE and e["health"] == "up" for e in listing["data"])

    def _launch(self, token: str, mode: Mode) -> None:
        """On the calling thread, with which the agent ends; and with it, the engine."""
        self._mode = mode
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("FLORIN_")}
        own = {
            "FLORIN_URL": self.gateway.url,
            "FLORIN_ENGINE_TOKEN": token,
            "XDG_STATE_HOME": str(self._directory / "agent"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SITE), str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        command = [
            sys.executable,
            "-c",
            "import gateway.cli; gateway.cli.main()",
            *self.engine_command(mode),
        ]
        with self._engine_log.open("ab") as log:
            self._agent = subprocess.Popen(
                command, env=inherited | own, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def engine_command(self, mode: Mode) -> list[str]:
        scale, program = self.scale, self._program
        paths = [self._directory / "plugin", *([program.site] if program.site else []), SITE]
        variables = {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it is not bundled
            **program.environment,
        }
        flags: dict[str, object] = {
            "--model": self._directory / "base",
            "--served-model-name": SERVED_NAME,
            "--load-format": "dummy",
            "--port": self.engine.url.rpartition(":")[2],
            "--max-loras": scale.slots,
            "--max-cpu-loras": scale.cpu_slots,
            "--max-lora-rank": scale.ranks[-1],
            "--max-model-len": scale.max_length,
            "--max-num-seqs": scale.seats,
            "--max-num-batched-tokens": max(2048, scale.max_length),
        }
        words = ["engine", "run", "--name", ENGINE, "--gpu-type", program.gpu_type]
        words += ["--cache-dir", str(self._directory / "cache"), "--drain-timeout", "1", "--", "env"]
        words += [f"{name}={value}" for name, value in variables.items()]
        words += [str(program.python), "-m", MODULE, *(str(word) for flag in flags.items() for word in flag)]
        return [*words, *scale.flags, *scale.modes[mode]]

    def stop_engine(self) -> None:
        if self._agent is None:
            return
        self._agent.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(STOP_SECONDS)
        self._agent.kill()
        self._agent.wait()
        self._agent = None

    def _write_plugin(self) -> None:
        """As an installed distribution, which is how vLLM finds plugins."""
        about = self._directory / "plugin" / "florin_random_weights-1.dist-info"
        shutil.copytree(PLUGIN, self._directory / "plugin", ignore=shutil.ignore_patterns("__pycache__"))
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: florin-random-weights\nVersion: 1\n")
        (about / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nflorin_random_weights = florin_random_weights:register\n"
        )
