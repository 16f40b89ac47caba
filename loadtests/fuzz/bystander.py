"""How long does a customer wait while somebody attacks? `python -m loadtests.fuzz.bystander`

For one worker and for two, and for each attack of `attacks`: a process attacks `florin serve` while a
bystander, another customer, calls its adapter and asks /healthz twenty times a second, each time on a new
connection. Afterwards, every attempt that reached an engine must have one usage record, and nothing may be in
flight. Everything runs on one machine: beside the slowest answers stands how late a thread of the bystander's
was that only sleeps, which is the machine's own share.

Exits with 1 if an answer failed, if the ledger does not add up, or if one took longer than `--seconds` beyond
the machine's own lateness.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console
from rich.table import Table

from loadtests.fuzz.attacks import ATTACKS, CHAT, Attack, Target
from loadtests.fuzz.judge import BrokenPromiseError
from loadtests.fuzz.world import HELLO, TENANTS, FuzzTarget

EVERY: Final = 0.05
NAP: Final = 0.01
MOST: Final = 0.5
_SPAWN: Final = multiprocessing.get_context("spawn")
_BODY: Final = json.dumps(HELLO).encode()


@dataclass
class Waits:
    """Mutable: what the bystander has seen during one attack."""

    answers: int = 0
    failed: int = 0
    chat: float = 0.0
    """Slowest answer, in seconds."""
    health: float = 0.0
    late: float = 0.0
    """The latest that a thread woke."""
    workers_mib: float = 0.0
    """Most memory of the gateway's processes, shared pages counted once for each."""
    error: str = ""

    def problem(self, most: float) -> str:
        if self.failed or self.error:
            return self.error or f"{self.failed} of the bystander's requests failed"
        slowest = max(self.chat, self.health)
        return f"{slowest:.2f} s" if slowest > most + self.late else ""


class Bystander:
    """Two threads, while the context lasts."""

    def __init__(self, world: FuzzTarget, key: str, waits: Waits) -> None:
        self._world, self._key, self._waits = world, key, waits
        self._process = psutil.Process(world.gateway.pid)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._call, self._nap)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _nap(self) -> None:
        due = time.monotonic() + NAP
        while not self._stop.wait(NAP):
            self._waits.late = max(self._waits.late, time.monotonic() - due)
            due = time.monotonic() + NAP

    def _call(self) -> None:
        waits = self._waits
        while not self._stop.wait(EVERY):
            waits.chat = max(waits.chat, self._seconds("POST", CHAT, _BODY))
            waits.health = max(waits.health, self._seconds("GET", "/healthz"))
            with contextlib.suppress(psutil.Error):
                family = [self._process, *self._process.children(recursive=True)]
                size = sum(process.memory_info().rss for process in family) / 2**20
                waits.workers_mib = max(waits.workers_mib, size)

    def _seconds(self, method: str, path: str, body: bytes | None = None) -> float:
        began = time.monotonic()
        connection = http.client.HTTPConnection(self._world.host, self._world.port, timeout=60)
        self._waits.answers += 1
        try:
            connection.request(method, path, body, {"authorization": f"Bearer {self._key}"})
            response = connection.getresponse()
            response.read()
            self._waits.failed += response.status != http.client.OK
        except (OSError, http.client.HTTPException):
            self._waits.failed += 1
        finally:
            connection.close()
        return time.monotonic() - began


@contextlib.contextmanager
def installation(workers: int, settings: dict[str, str]) -> Iterator[FuzzTarget]:
    with tempfile.TemporaryDirectory(prefix="florin-bystander-") as directory:
        ordinary = {"workers": str(workers), "probe_interval": "1", "probe_timeout": "5"}
        with FuzzTarget(Path(directory), **ordinary, **settings) as world:
            yield world


def attacked(world: FuzzTarget, attack: Attack, seconds: float) -> Waits:
    """The bystander's waits during the attack."""
    key = world.gateway.call("POST", "/admin/v1/keys", {"role": "tenant", "tenant": TENANTS[1]})["key"]
    few = {"role": "tenant", "tenant": TENANTS[2], "limits": {"requests_per_minute": 60}}
    limited = world.gateway.call("POST", "/admin/v1/keys", few)["key"]
    target = Target(
        world.host, world.port, world.keys["tenant"], world.keys["tenant-admin"], limited, TENANTS[0]
    )
    waits = Waits()
    process = _SPAWN.Process(target=attack.run, args=(target,))
    process.start()
    try:
        with Bystander(world, key, waits):
            time.sleep(seconds)
    finally:
        process.terminate()
        process.join()
    try:
        world.settle()
        world.log.check()
    except BrokenPromiseError as error:
        waits.error = str(error)
    return waits


def _measure(attacks: Sequence[Attack], workers: int, seconds: float, show: Callable[..., None]) -> None:
    """Attacks that need settings of their own get an installation of their own."""
    for settings in [dict(pairs) for pairs in dict.fromkeys(tuple(a.settings.items()) for a in attacks)]:
        with installation(workers, settings) as world:
            for attack in attacks:
                if attack.settings == settings:
                    show(attack, workers, attacked(world, attack, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.fuzz.bystander", description=__doc__)
    names = [attack.name for attack in ATTACKS]
    parser.add_argument("--attack", action="append", choices=names, help="only this one; repeatable")
    parser.add_argument("--workers", type=int, action="append", help="default: 1 and 2")
    parser.add_argument("--for", type=float, default=15.0, dest="length", help="seconds of each attack")
    parser.add_argument("--seconds", type=float, default=MOST, help="most that the bystander may wait")
    options = parser.parse_args()
    table = Table(
        "attack", "workers", "requests", "failed", "slowest chat", "/healthz", "machine late", "memory"
    )
    problems = []

    def show(attack: Attack, workers: int, waits: Waits) -> None:
        row = [attack.name, str(workers), str(waits.answers), str(waits.failed)]
        row += [f"{value * 1000:,.0f} ms" for value in (waits.chat, waits.health, waits.late)]
        table.add_row(*row, f"{waits.workers_mib:,.0f} MiB")
        Console(stderr=True).print(*row, waits.error)
        if problem := waits.problem(options.seconds):
            problems.append(f"{attack.name}, {workers} workers: {problem}")

    chosen = [attack for attack in ATTACKS if attack.name in (options.attack or names)]
    for workers in options.workers or (1, 2):
        _measure(chosen, workers, options.length, show)
    console = Console(width=120)
    console.print(table)
    for problem in problems:
        console.print(f"[red]✗[/] {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
