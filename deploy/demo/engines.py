"""Runs real vLLM engines as child processes: starts them concurrently, kills and restarts them, orphans none.

    with Fleet(env, model, logs=directory) as fleet:
        fleet.start()
        fleet.engines[0].url, fleet.engines[0].pid
        fleet.engines[0].kill()
        fleet.restart(0)

Each engine is its own process group. All of its processes end with this process, however it ends (see
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

import httpx2

from adapters.model import MAX_STOP_STRINGS
from deploy.demo.engine_env import EngineEnv, engine_environ
from deploy.demo.model import DemoModel

START_TIMEOUT_S = 240.0
"""In which an engine that starts does nothing."""
START_CPU_SECONDS = 900.0
"""Ten times what the processes of an engine take until they are up."""
STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 60.0
"""What SIGKILL takes is up to the kernel, and to how busy the machine is."""
KEEP_ALIVE_S = 75
"""The engines' keep-alive in seconds; with vLLM's default of 5 s, pooled connections fail under sparse
traffic."""

NICE = 5


class EngineStartError(Exception):
    """An engine did not start; the message contains the end of its log."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    slots: int = 2
    cpu_slots: int = 8
    max_model_len: int = 1024
    max_num_seqs: int = 32
    kv_bytes: int = 128 * 1024 * 1024
    """Set explicitly; otherwise the first engine claims most of the memory and the second fails."""
    extra: tuple[str, ...] = ()
    """Additional vLLM flags."""


@dataclass(slots=True)
class Progress:
    """An engine that starts may take as long as the machine needs, if it computes."""

    cpu_seconds: float = 0.0
    at: float = 0.0

    def made(self, cpu_seconds: float, now: float) -> bool:
        """False after START_TIMEOUT_S in which it used less than a second of the processor, and once it used
        START_CPU_SECONDS, which no start takes."""
        if cpu_seconds >= self.cpu_seconds + 1:
            self.cpu_seconds, self.at = cpu_seconds, now
        return now - self.at <= START_TIMEOUT_S and cpu_seconds <= START_CPU_SECONDS


@dataclass(slots=True)
class DemoEngine:
    index: int
    log: Path
    reservation: socket.socket
    """Bound but never listening: reserves the port, while the engine can bind it repeatedly."""
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def port(self) -> int:
        return int(self.reservation.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Pid of the API server, the leader of the engine's process group."""
        assert self.process, "not started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def healthy(self) -> bool:
        try:
            return (
                httpx2.get(f"{self.url}/health", timeout=2.0, trust_env=False).status_code == httpx2.codes.OK
            )
        except httpx2.HTTPError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole process group, if any is left."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """`kill -9` the API server, the engine core and the worker, as when a machine dies."""
        self.signal(signal.SIGKILL)
        self._wait(KILL_TIMEOUT_S)

    def yield_to_others(self) -> None:
        """Lower the priority of the engine core and the worker, which busy-wait: with few CPUs they would
        starve the API servers, the gateway and the clients. Call it once they are up."""
        for task in _tasks(self.pid):
            with contextlib.suppress(OSError):  # already gone
                os.setpriority(os.PRIO_PROCESS, task, NICE)

    def cpu_seconds(self) -> float:
        """Used by all processes of its group that run."""
        ticks = 0
        for process in _group(self.pid):
            with contextlib.suppress(OSError):  # already gone
                user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                ticks += int(user) + int(system)
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """SIGTERM, a grace period, SIGKILL."""
        if self.alive:
            self.signal(signal.SIGTERM)
            self._wait(STOP_TIMEOUT_S)
        self.kill()

    def _wait(self, seconds: float) -> None:
        """Wait until every process of the group is gone, for up to `seconds`."""
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
    """Threads of a process group's members except the leader's. Linux has a priority per thread."""
    for process in _group(leader):
        with contextlib.suppress(OSError):  # already gone
            if process.name != str(leader):
                yield from (int(task.name) for task in (process / "task").iterdir())


def _group(leader: int) -> Iterator[Path]:
    """The folders in /proc of a process group's members."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # already gone
            if os.getpgid(int(process.name)) == leader:
                yield process


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
        own_sessions: bool = False,
    ) -> None:
        """`own_sessions`: for measurements. Linux shares processors among sessions first (autogroups). In the
        starter's session, engines get what is left by processes without NICE, and serve half as many requests
        under load; in sessions of their own, an engine that starts beside a busy one has waited for
        minutes."""
        self.env = env
        self.model = model
        self.options = options or EngineOptions()
        self._own_sessions = own_sessions
        # Linux kills the engines when the thread that started them ends, so this one stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="engine-starter")
        self._scratch = Path(tempfile.mkdtemp(prefix="florin-"))  # a short path, because it contains sockets
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
        """Start one engine's processes; `wait` returns once it is healthy."""
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
                start_new_session=self._own_sessions,
                process_group=None if self._own_sessions else 0,
            )

    def start(self, on_progress: Callable[[float], None] = lambda _: None) -> None:
        """Start all engines concurrently. `on_progress` receives the elapsed seconds. Raises
        EngineStartError."""
        for engine in self.engines:
            self.launch(engine.index)
        self.wait(self.engines, on_progress)

    def restart(self, index: int, on_progress: Callable[[float], None] = lambda _: None) -> None:
        """Restart an engine, dead or alive, empty and with the same URL. Raises EngineStartError."""
        self.engines[index].stop()
        self.launch(index)
        self.wait([self.engines[index]], on_progress)

    def wait(self, engines: list[DemoEngine], on_progress: Callable[[float], None] = lambda _: None) -> None:
        """Wait until all of `engines` are healthy. Raises EngineStartError."""
        began = time.monotonic()
        waiting, progress = list(engines), {engine.index: Progress() for engine in engines}
        while waiting := [e for e in waiting if not e.healthy()]:
            seconds = time.monotonic() - began
            for engine in waiting:
                if not engine.alive:
                    assert engine.process
                    raise EngineStartError(
                        f"Engine {engine.index} exited with status {engine.process.returncode} "
                        f"while starting. The end of {engine.log}:\n{log_tail(engine.log)}"
                    )
                if not progress[engine.index].made(engine.cpu_seconds(), seconds):
                    raise EngineStartError(
                        f"Engine {engine.index} does not become healthy ({seconds:.0f} s). "
                        f"The end of {engine.log}:\n{log_tail(engine.log)}"
                    )
            on_progress(seconds)
            time.sleep(0.2)
        if not self.env.gpus:
            for engine in engines:
                engine.yield_to_others()

    def stop(self) -> None:
        """Stop all engines concurrently, including those still starting."""
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
            "--api-server-count": 1,  # with more, vLLM refuses runtime LoRA loading
        }
        if self.env.gpus:
            flags |= {"--gpu-memory-utilization": 0.2}  # four engines of tests may share one GPU
        else:
            flags |= {"--dtype": "float32", "--block-size": 32}  # the CPU default, 128, hides cached tokens
        words = [f"{word}" for flag in flags.items() for word in flag]
        switches = ("--enable-lora", "--enforce-eager", "--enable-prompt-tokens-details")
        return [*self.env.command, str(self.model.base), *words, *switches, *o.extra]

    def _environment(self, engine: DemoEngine) -> dict[str, str]:
        common = {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
            "VLLM_MAX_STOP_STRINGS": str(MAX_STOP_STRINGS),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            "TMPDIR": str(self._scratch),  # vLLM does not delete its sockets
        }
        if self.env.gpus:
            return {**engine_environ(), **common, "CUDA_VISIBLE_DEVICES": str(engine.index % self.env.gpus)}
        processors = sorted(os.sched_getaffinity(0))
        # A lone engine takes the last processor: another fleet beside it has the first for its first engine.
        cpu = str(processors[(engine.index - len(self.engines)) % len(processors)])
        own = {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_OMP_THREADS_BIND": cpu,
            "OMP_NUM_THREADS": "1",
            "FLORIN_ENGINE_CPU": cpu,
            "TORCHDYNAMO_DISABLE": "1",  # otherwise the first request with logprobs compiles for 16 s
        }
        return {**engine_environ(), **common, **own}


def _reserve_port() -> socket.socket:
    """Reserve a free port on 127.0.0.1. SO_REUSEADDR lets the engine bind it too, because we never listen,
    and the kernel does not hand it out as a free port."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
