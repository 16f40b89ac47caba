"""`florin serve` as it comes, with the embedded Valkey, over a state directory that was filled before."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from adapters.store.embedded import EmbeddedValkey
from loadtests.overhead import cpu
from loadtests.overhead.contestants import GATEWAY_CORE, ROOT, free_port
from loadtests.scale.steady import request

BENCH_CORE = 1
PATIENCE = 600.0


class ScaledGateway:
    """`with ScaledGateway(state, customer) as gateway:`. `customer`: adapter and key of the first request.

    It starts on all cores. Then its processes share one unless they are not `pinned`, but for Valkey: writers
    pay for it, not followers.
    """

    pinned = True

    def __init__(
        self,
        state: Path,
        customer: tuple[str, str],
        command: Sequence[str | Path] = (Path(sys.executable).with_name("florin"), "serve"),
        **settings: str,
    ) -> None:
        self.port = free_port()
        self.seconds = 0.0
        """From the start of the process to the first answer of an engine."""
        self.store_url = EmbeddedValkey(state).url
        self._state = state
        self._request = request(self.port, *customer)
        self._command = command
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = {
            "FLORIN_STATE_DIR": str(self._state),
            "FLORIN_PORT": str(self.port),
            **self._settings,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLORIN_")}
        log = self._state.parent / "florin.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            begun = time.perf_counter()
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=inherited | settings,
                stdout=output,
                stderr=output,
            )
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() > begun + PATIENCE:
                self.__exit__()
                raise RuntimeError(f"The gateway did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.002)
        self.seconds = time.perf_counter() - begun
        if self.pinned:
            cpu.move(self.pids, GATEWAY_CORE)
            cpu.move(set(cpu.tree(self.pid)) - set(self.pids), BENCH_CORE)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as connection, suppress(OSError):
            connection.settimeout(10)
            connection.connect(("127.0.0.1", self.port))
            connection.sendall(self._request)
            return connection.recv(4096).startswith(b"HTTP/1.1 200")
        return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Its processes, without Valkey's."""
        return [pid for pid in cpu.tree(self.pid) if "valkey" not in cpu.name(pid)]

    @property
    def resident(self) -> int:
        """Bytes of memory that its largest process, a worker, has now."""
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        return max(int(status.partition("VmRSS:")[2].split()[0]) for status in statuses) * 1024
