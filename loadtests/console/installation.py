"""`florin serve` in processes of its own, over the crowd's registry and ledger, and its engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2

from adapters.store.embedded import EmbeddedValkey
from adapters.store.redis import RedisStore
from gateway.costs.sample_month import month as sample_month
from loadtests.console import crowd
from loadtests.mock_engine import MockProcess
from loadtests.overhead import cpu
from loadtests.overhead.contestants import ROOT, free_port, wait_for

_BATCH = 50


@dataclass(frozen=True, slots=True)
class Installation:
    url: str
    operator: str
    """Key."""
    pid: int

    def processor(self) -> float:
        """Seconds that its processes have used, without Valkey's."""
        return cpu.total(pid for pid in cpu.tree(self.pid) if "valkey" not in cpu.name(pid))


@contextlib.contextmanager
def installation(directory: Path) -> Iterator[Installation]:
    state = directory / "state"
    sample_month.write(state)
    crowd.use(state / "ledger.db")
    with MockProcess(base=crowd.BASE, count=crowd.ENGINES, check_paths="no") as engines:
        urls = [f"http://127.0.0.1:{port}" for port in engines.ports]
        with EmbeddedValkey(state, fsync="everysec") as valkey:
            asyncio.run(_fill(valkey.url, urls))
        with _gateway(state, directory / "florin.log") as running:
            yield running


async def _fill(store_url: str, urls: list[str]) -> None:
    store = RedisStore(store_url)
    changes = crowd.changes(urls, time.time_ns() // 1000)
    for start in range(0, len(changes), _BATCH):
        await store.commit(changes[start : start + _BATCH])
    await store.close()


@contextlib.contextmanager
def _gateway(state: Path, log: Path) -> Iterator[Installation]:
    """With its defaults: one worker, embedded Valkey, SQLite."""
    port, operator = free_port(), secrets.token_hex(16)
    settings = {
        "FLORIN_STATE_DIR": str(state),
        "FLORIN_PORT": str(port),
        "FLORIN_WORKERS": "1",
        "FLORIN_OPERATOR_KEY": operator,
        "FLORIN_LOG_LEVEL": "warning",  # not of 64 engines that come up
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLORIN_")}
    command = [str(Path(sys.executable).with_name("florin")), "serve"]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=inherited | settings, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(lambda: _sees_all(url, operator), process)
        yield Installation(url, operator, process.pid)
    except BaseException as problem:
        problem.add_note(log.read_text(errors="replace")[-3000:])
        raise
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _sees_all(url: str, operator: str) -> bool:
    headers = {"authorization": f"Bearer {operator}"}
    answer = httpx2.get(f"{url}/admin/v1/engines", headers=headers, timeout=30)
    return answer.is_success and all(engine["health"] == "up" for engine in answer.json()["data"])
