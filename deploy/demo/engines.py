"""Real vLLM engines as child processes: started side by side, killed, restarted, and never left behind.

    with Fleet(env, model, logs=directory) as fleet:
        fleet.start()
        fleet.engines[0].url, fleet.engines[0].pid
        fleet.engines[0].kill()
        fleet.restart(0)

Each engine is a process group of its own. All of it ends with this process, however that ends (see
child_site/sitecustomize.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.model import DemoModel

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 75
"""The engines' keep-alive; vLLM's own default of 5 s makes pooled connections fail when traffic is thin."""

NICE = 5


class EngineStartError(Exception):
    """An engine did not come up; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    slots: int = 2
    cpu_slots: int = 8
    max_model_len: int = 1024
    max_num_seqs: int = 32
    kv_bytes: int = 128 * 1024 * 1024
    """Set by hand: otherwise the first engine claims most of the memory and the second fails."""
    extra: tuple[str, ...] = ()
    """More flags for vLLM."""


@dataclass(slots=True)
class DemoEngine:
    index: int
    log: Path
    reservation: socket.socket
    """Bound, never listening: nobody else is given this port, and the engine may bind it again and again."""
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def port(self) -> int:
        return int(self.reservation.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the API server, which leads the engine's process group."""
        assert self.process, "not started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def healthy(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=2.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """To the whole process group, if there is one left."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """`kill -9` of the API server, its engine core and its worker, as when a machine dies."""
        self.signal(signal.SIGKILL)
        self._wait(STOP_TIMEOUT_S)

    def yield_to_others(self) -> None:
        """Lower the priority of the engine core and the worker, which spin while they work: on few
        processors they would starve API servers, gateway and clients. Not before they are up."""
        for task in _tasks(self.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, task, NICE)

    def stop(self) -> None:
        """SIGTERM, time to leave, SIGKILL."""
        if self.alive:
            self.signal(signal.SIGTERM)
            self._wait(STOP_TIMEOUT_S)
        self.kill()

    def _wait(self, seconds: float) -> None:
        """Until every process of the group is gone, `seconds` at most."""
        if not self.process:
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.process.poll()  # reaps the leader, which would otherwise keep the group alive
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)


def _tasks(leader: int) -> Iterator[int]:
    """Threads of a process group's members but its leader's. Linux keeps a priority for each thread."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(process.name)
            if pid != leader and os.getpgid(pid) == leader:
                yield from (int(task.name) for task in (process / "task").iterdir())


def log_tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Fleet:
    """`count` engines of the demo's base model. Mutable state: the engines' processes."""

    def __init__(
        self,
        env: EngineEnv,
        model: DemoModel,
        *,
        logs: Path,
        count: int = 2,
        options: EngineOptions | None = None,
    ) -> None:
        self.env = env
        self.model = model
        self.options = options or EngineOptions()
        # Linux ends the engines when the thread that started them ends: this one stays as long as they do.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="engine-starter")
        self._scratch = Path(tempfile.mkdtemp(prefix="florin-"))  # a short path: sockets lie in it
        self.engines = [DemoEngine(i, logs / f"engine-{i}.log", _reserve_port()) for i in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        states = ", ".join(f"{e.url} {'alive' if e.alive else 'dead'}" for e in self.engines)
        return f"<Fleet {states}>"

    def launch(self, index: int) -> None:
        """Start one engine's processes; `wait` says when it answers."""
        engine = self.engines[index]
        assert not engine.alive, f"engine {index} is running"
        engine.log.parent.mkdir(parents=True, exist_ok=True)
        engine.process = self._starter.submit(self._popen, engine).result()

    def _popen(self, engine: DemoEngine) -> subprocess.Popen[bytes]:
        with engine.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - vLLM, with flags made here
                self._command(engine),
                env=self._environment(engine),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self, on_progress: Callable[[float], None] = lambda _: None) -> None:
        """All engines side by side. `on_progress` gets the seconds so far. Raises EngineStartError."""
        for engine in self.engines:
            self.launch(engine.index)
        self.wait(self.engines, on_progress)

    def restart(self, index: int, on_progress: Callable[[float], None] = lambda _: None) -> None:
        """A dead or living engine comes back, empty, under its old URL. Raises EngineStartError."""
        self.engines[index].stop()
        self.launch(index)
        self.wait([self.engines[index]], on_progress)

    def wait(self, engines: list[DemoEngine], on_progress: Callable[[float], None] = lambda _: None) -> None:
        """Until each of `engines` answers its health check. Raises EngineStartError."""
        began = time.monotonic()
        waiting = list(engines)
        while waiting := [e for e in waiting if not e.healthy()]:
            seconds = time.monotonic() - began
            for engine in waiting:
                if not engine.alive:
                    assert engine.process
                    raise EngineStartError(
                        f"Engine {engine.index} ended with status {engine.process.returncode} "
                        f"while starting. The end of {engine.log}:\n{log_tail(engine.log)}"
                    )
                if seconds > START_TIMEOUT_S:
                    raise EngineStartError(
                        f"Engine {engine.index} did not answer within {START_TIMEOUT_S:.0f} s. "
                        f"The end of {engine.log}:\n{log_tail(engine.log)}"
                    )
            on_progress(seconds)
            time.sleep(0.2)
        if not self.env.gpus:
            for engine in engines:
                engine.yield_to_others()

    def stop(self) -> None:
        """All of them, side by side; also those half started."""
        for engine in self.engines:
            engine.signal(signal.SIGTERM)
        for engine in self.engines:
            engine.stop()
            engine.reservation.close()
        self._starter.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _command(self, engine: DemoEngine) -> list[str]:
        o = self.options
        flags: dict[str, object] = {
            "--served-model-name": self.model.served_name,
            "--host": "127.0.0.1",
            "--port": engine.port,
            "--max-loras": o.slots,
            "--max-cpu-loras": o.cpu_slots,
            "--max-lora-rank": self.model.rank,
            "--max-model-len": o.max_model_len,
            "--max-num-seqs": o.max_num_seqs,
            "--max-num-batched-tokens": o.max_model_len,
            "--kv-cache-memory-bytes": o.kv_bytes,
            "--api-server-count": 1,  # runtime LoRA loading is refused with more
        }
        if self.env.gpus:
            flags |= {"--gpu-memory-utilization": 0.3}  # both may have to start on one GPU
        else:
            flags |= {"--dtype": "float32", "--block-size": 32}  # the CPU default, 128, hides cached tokens
        words = [f"{word}" for flag in flags.items() for word in flag]
        switches = ("--enable-lora", "--enforce-eager", "--enable-prompt-tokens-details")
        return [*self.env.command, str(self.model.base), *words, *switches, *o.extra]

    def _environment(self, engine: DemoEngine) -> dict[str, str]:
        common = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            "TMPDIR": str(self._scratch),  # vLLM leaves its sockets behind
        }
        if self.env.gpus:
            return {**engine_environ(), **common, "CUDA_VISIBLE_DEVICES": str(engine.index % self.env.gpus)}
        processors = sorted(os.sched_getaffinity(0))
        cpu = str(processors[engine.index % len(processors)])
        own = {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_OMP_THREADS_BIND": cpu,
            "OMP_NUM_THREADS": "1",
            "FLORIN_ENGINE_CPU": cpu,
            "TORCHDYNAMO_DISABLE": "1",  # else the first request with logprobs compiles for 16 s
        }
        return {**engine_environ(), **common, **own}


def _reserve_port() -> socket.socket:
    """A free port of 127.0.0.1 that stays ours: SO_REUSEADDR lets the engine bind it beside us, since we
    never listen, and the kernel gives it to nobody who asks for any free port."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
