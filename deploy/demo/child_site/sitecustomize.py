"""Runs at the start of every Python process of the demo: the gateway and each engine's API server, core,
worker.

Each process asks the kernel to kill it when its parent dies. Otherwise a `kill -9` of an engine's API server
(or its parent) would leave vLLM's engine core and worker running, holding their memory.

With FLORIN_ENGINE_CPU set, the core and the worker, which busy-wait, are pinned to that CPU. They are forked,
where vLLM's CPU build spawns them: nine tenths of an engine's start are imports, which three processes would
go through one after the other. A fourth would inspect the model's class, lest that touches a GPU, unless the
user's cache has the result; here the class is inspected where it is needed anyway.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import signal
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.context import BaseContext
from types import ModuleType

PR_SET_PDEATHSIG = 1
REGISTRY = "vllm.model_executor.models.registry"


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


class InspectHere(MetaPathFinder):
    """Has vLLM's registry call what it would run in another process. Only for the import of that module."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec
        assert spec.loader
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            module.__dict__["_run_in_subprocess"] = lambda inspect: inspect()

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


if sys.platform == "linux":
    end_with_parent()
    if cpu := os.environ.get("FLORIN_ENGINE_CPU"):
        fork_instead(cpu)
        sys.meta_path.insert(0, InspectHere())
