"""The mock's engine core, apart from its HTTP server, so that it can be stopped as SIGSTOP stops vLLM's
EngineCore.

What vLLM 0.32 does then, as it was seen: /health, /v1/models, /version and /metrics answer 200 within
milliseconds; every `vllm:` counter and gauge stands still, and requests that come now are in none of them;
generations, loads and unloads get no answer; requests that cannot be right are refused as always. When it
goes on, what still waits is done, and what was given up meanwhile costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class Core:
    """Mutable: whether it is stopped, what it said of itself last, and what waits for it."""

    def __init__(self) -> None:
        self.stopped = False
        self.metrics = b""
        """What /metrics says while it is stopped."""
        self._waiting: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Core {'stopped' if self.stopped else 'working'}, {len(self._waiting)} waiting>"

    def do(self, work: Callable[[], None]) -> None:
        """At once, or when it goes on."""
        if self.stopped:
            self._waiting.append(work)
        else:
            work()

    def stop(self, metrics: bytes) -> None:
        if not self.stopped:
            self.stopped, self.metrics = True, metrics

    def go_on(self) -> None:
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self.do(work)
