"""Runs at the start of every Python process of the demo: gateway, and an engine's API server, core, worker.

Each asks the kernel to kill it when its parent dies. Without that, a `kill -9` of an engine's API server (or
of whoever started it) leaves vLLM's engine core and worker behind for ever, with their memory.

With FLORIN_ENGINE_CPU set, the core and the worker, which spin while they work, keep to that processor.
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
