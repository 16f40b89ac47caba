"""Runs at the start of every Python process of the demo: the gateway and each engine's API server, core,
worker.

Each process asks the kernel to kill it when its parent dies. Otherwise a `kill -9` of an engine's API server
(or its parent) would leave vLLM's engine core and worker running, holding their memory.

With FLORIN_ENGINE_CPU set, the core and the worker, which busy-wait, are pinned to that CPU.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    spawned = any("multiprocessing.spawn" in word for word in sys.orig_argv)
    if spawned and (cpu := os.environ.get("FLORIN_ENGINE_CPU")):
        os.sched_setaffinity(0, {int(cpu)})
