"""Monitors the latency of /healthz and the gateway's memory in the background."""

from __future__ import annotations

import http.client
import os
import threading
import time
from types import TracebackType
from typing import Self

import psutil

EVERY = 0.05
"""Seconds between two samples."""
OWN_LAG = 0.02
"""Seconds that this thread may wake late; beyond that, the machine is busy."""
OWN_WORK = 0.5
"""Minimum share of a slow response that the gateway was on the CPU; below it, the machine was busy."""


class Watch:
    """A background thread. Mutable: the samples so far."""

    def __init__(self, host: str, port: int, pid: int) -> None:
        self._address = host, port
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self.looks = 0
        self.discounted = 0
        """Discarded samples: the machine was busy, and this thread or the gateway had to wait for a CPU."""
        self.slowest = 0.0
        """Slowest /healthz in seconds, over valid samples."""
        self.slowest_of_all = 0.0
        self.failed = ""
        """Error of a failed sample."""
        self.memory_at_first = self.memory_at_most = self._process.memory_info().rss

    @property
    def growth(self) -> int:
        """Bytes."""
        return self.memory_at_most - self.memory_at_first

    def begin_again(self) -> None:
        """Reset the baseline of memory after the warm-up."""
        self.memory_at_first = self.memory_at_most = self._process.memory_info().rss

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic() + EVERY
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            late = time.monotonic() - due
            began, worked = time.monotonic(), self._worked()
            try:
                self._look()
            except (OSError, http.client.HTTPException, psutil.Error) as error:
                self.failed = self.failed or f"/healthz: {error!r}"
                return
            took, worked = time.monotonic() - began, self._worked() - worked
            self.looks += 1
            self.slowest_of_all = max(self.slowest_of_all, took)
            crowded = os.getloadavg()[0] > (os.cpu_count() or 1)
            if late > OWN_LAG or (crowded and worked < took * OWN_WORK):
                self.discounted += 1
            else:
                self.slowest = max(self.slowest, took)
            due = time.monotonic() + EVERY

    def _worked(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _look(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=60)
        try:
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.client.OK:
                self.failed = self.failed or f"/healthz: {answer.status}"
        finally:
            connection.close()
        self.memory_at_most = max(self.memory_at_most, self._process.memory_info().rss)
