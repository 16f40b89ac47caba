"""Runs at the start of every Python process of the demo: the gateway and each engine's API server, core,
worker.

Each process asks the kernel to kill it when its parent dies. Otherwise a `kill -9` of an engine's API server
(or its parent) would leave vLLM's engine core and worker running, holding their memory.

With FLORIN_ENGINE_CPU set, the core and the worker, which busy-wait, are pinned to that CPU. They are forked,
where vLLM's CPU build spawns them: nine tenths of an engine's start are imports, which three processes would
go through one after the other.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from multiprocessing.context import BaseContext

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def fork_instead(cpu: str) -> None:
    """What this process would spawn is forked, ends with it, and runs on `cpu`."""
    context_of = multiprocessing.get_context

    def forking(method: str | None = None) -> BaseContext:
        return context_of("fork" if method == "spawn" else method)

    multiprocessing.get_context = forking  # type: ignore[assignment]  # it is overloaded

    def settle() -> None:
        end_with_parent()
        os.sched_setaffinity(0, {int(cpu)})

    os.register_at_fork(after_in_child=settle)


if sys.platform == "linux":
    end_with_parent()
    if cpu := os.environ.get("FLORIN_ENGINE_CPU"):
        fork_instead(cpu)
