"""Protects an agent's key from processes of the same user, especially its engine.

There are two leaks. `/proc/PID/environ` shows the environment that a process was *started* with, even if
variables are deleted later, so an agent that finds a secret there re-executes itself and passes the secret
through a pipe. `/proc/PID/mem` and ptrace expose its memory, so it makes itself non-dumpable, which makes
these files accessible to root only. Neither protects against root or CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence

HANDED = "FLORIN_HANDED_OVER"
"""Environment variable with the pipe's descriptor: `<fd>`."""

_PR_SET_DUMPABLE, _PR_GET_DUMPABLE = 4, 3


def conceal_memory() -> bool:
    """Forbid core dumps, ptrace, and reading of memory and environment by processes of the same user. False
    if the system does not support it."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 and libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0
    )


def re_execute(command: Sequence[str], environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Replace this process by `command` with that environment, keeping the pid. `secrets` are passed through
    a pipe to `handed_over`. Does not return."""
    reading, writing = os.pipe()
    os.write(writing, json.dumps(dict(secrets)).encode())  # fits into a pipe's buffer
    os.close(writing)
    os.set_inheritable(reading, True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**environ, HANDED: str(reading)})  # noqa: S606 - this very command


def handed_over() -> dict[str, str]:
    """The secrets passed by the previous process; empty the second time."""
    descriptor = os.environ.pop(HANDED, "")
    if not descriptor.isascii() or not descriptor.isdigit():
        return {}
    try:
        with os.fdopen(int(descriptor), "rb") as pipe:
            passed = json.loads(pipe.read(65536))
    except (OSError, ValueError):
        return {}
    return {str(n): str(v) for n, v in passed.items()} if isinstance(passed, dict) else {}
