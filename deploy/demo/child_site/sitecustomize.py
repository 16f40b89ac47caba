"""Runs at the start of every Python process of the demo: the gateway and each engine's API server, core,
worker.

Each process asks the kernel to kill it when its parent dies. Otherwise a `kill -9` of an engine's API server
(or its parent) would leave vLLM's engine core and worker running, holding their memory.

With FLORIN_ENGINE_CPU set, the core and the worker are pinned to that CPU. They are forked, where vLLM's CPU
build spawns them: nine tenths of an engine's start are imports, which three processes would go through one
after the other. A fourth would inspect the model's class, lest that touches a GPU, unless the user's cache
has the result; here the class is inspected where it is needed anyway. And where the core and the worker wait
for each other, they would look for a message without a pause, for a second after the last one: here they do
so for a hundredth, since others need the processor.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.context import BaseContext
from types import ModuleType

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


def inspect_here(registry: ModuleType) -> None:
    registry.__dict__["_run_in_subprocess"] = lambda inspect: inspect()


def spin_briefly(shm_broadcast: ModuleType) -> None:
    """Not at all would be too short: of two messages within a millisecond, ZeroMQ may announce one."""
    shm_broadcast.__dict__["SpinCondition"] = partial(shm_broadcast.SpinCondition, busy_loop_s=0.01)
    shm_broadcast.__dict__["SHM_READER_RECHECK_INTERVAL_MS"] = 100


class Patches(MetaPathFinder):
    """Changes modules of vLLM when they have been imported."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        patch = self._patches.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(fullname)
        assert spec
        assert spec.loader
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


PATCHES = {
    "vllm.model_executor.models.registry": inspect_here,
    "vllm.distributed.device_communicators.shm_broadcast": spin_briefly,
}
if sys.platform == "linux":
    end_with_parent()
    if cpu := os.environ.get("FLORIN_ENGINE_CPU"):
        fork_instead(cpu)
        sys.meta_path.insert(0, Patches(PATCHES))
