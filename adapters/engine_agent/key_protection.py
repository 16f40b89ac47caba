"""Keeping an agent's key from processes that run as the same user, its engine above all.

Two things would show it. `/proc/PID/environ` shows the environment that a process was *started* with, however
much of it is deleted later: so an agent that finds a secret there starts itself anew, with the secret handed
over in a pipe. And `/proc/PID/mem` and ptrace show its memory: so it declares itself not dumpable, upon which
the kernel gives these files to root. Neither helps against root, or a process with CAP_SYS_PTRACE.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence

HANDED = "FLORIN_HANDED_OVER"
"""Variable that names the descriptor of the pipe: `<fd>`."""

_PR_SET_DUMPABLE, _PR_GET_DUMPABLE = 4, 3


def conceal_memory() -> bool:
    """No core dumps, no ptrace, no reading of memory and environment by others of the same user. False: the
    system has no such thing."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 and libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0
    )


def start_anew(command: Sequence[str], environ: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Replace this process by `command` (its pid stays) with that environment. `secrets` go through a pipe,
    for `handed_over`. Does not return."""
    reading, writing = os.pipe()
    os.write(writing, json.dumps(dict(secrets)).encode())  # far less than what a pipe holds
    os.close(writing)
    os.set_inheritable(reading, True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), {**environ, HANDED: str(reading)})  # noqa: S606 - this very command


def handed_over() -> dict[str, str]:
    """What the process before this one handed over; nothing the second time."""
    said = os.environ.pop(HANDED, "")
    if not said.isascii() or not said.isdigit():
        return {}
    try:
        with os.fdopen(int(said), "rb") as pipe:
            found = json.loads(pipe.read(65536))
    except (OSError, ValueError):
        return {}
    return {str(n): str(v) for n, v in found.items()} if isinstance(found, dict) else {}
