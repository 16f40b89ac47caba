"""The mock's engine core, separate from its HTTP server so that it can be stopped, like vLLM's EngineCore by
SIGSTOP.

Observed behaviour of vLLM 0.32 with a stopped core: /health, /v1/models, /version and /metrics answer 200
within milliseconds; all `vllm:` counters and gauges freeze and do not include new requests; generations,
loads and unloads hang; invalid requests are refused as usual. When the core resumes, waiting work is done,
and abandoned work costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class Core:
    """Mutable: whether it is stopped, its last metrics, and the waiting work."""

    def __init__(self) -> None:
        self.stopped = False
        self.metrics = b""
        """The /metrics response while stopped."""
        self._waiting: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Core {'stopped' if self.stopped else 'working'}, {len(self._waiting)} waiting>"

    def do(self, work: Callable[[], None]) -> None:
        """Do the work now, or when the core resumes."""
        if self.stopped:
            self._waiting.append(work)
        else:
            work()

    def stop(self, metrics: bytes) -> None:
        if not self.stopped:
            self.stopped, self.metrics = True, metrics

    def reset(self) -> None:
        self.stopped, self.metrics, self._waiting = False, b"", []

    def resume(self) -> None:
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self.do(work)
