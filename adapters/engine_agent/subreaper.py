"""A process between the agent and its engine that ensures that no engine process is ever orphaned.

A standalone script, run by path: `python -I -S subreaper.py STATUS_FD COMMAND…`. It starts the command as the
leader of a new session and waits. Every process that the engine starts stays a descendant of this one, even
if it loses its parent (the kernel reparents such processes to a subreaper) or leaves the group.

    stdin   lines from the agent: `term`, `kill`. EOF means that the agent is dead: kill everything
    status  lines to the agent: `started PID` or `failed REASON`; `exit CODE` when the leader has exited
            (negative: by that signal), whereupon everything else is killed; `clean` when nothing is left

If this process itself is killed, the kernel kills the leader, and the agent, which sees EOF on `status`,
kills every process with the engine's mark.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.02
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
"""Signals ignored here: when the whole control group is signalled, the agent handles it by draining first."""


def main() -> None:
    status, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(status, False)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        leader = _start(command, libc)
    except OSError as error:
        _report(status, f"failed {error.strerror}: {command[0]}")
        return
    _report(status, f"started {leader}")
    code = _watch(leader, wake)
    _report(status, f"exit {code}")
    _end_all(leader)
    _report(status, "clean")


def _start(command: list[str], libc: ctypes.CDLL | None) -> int:
    """Start the command; return the leader's pid. Raises OSError if the command cannot be executed."""
    errors, child_errors = os.pipe2(os.O_CLOEXEC)
    subreaper, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            os.setsid()
            if libc:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != subreaper:
                os._exit(1)
            for number in (*_IGNORED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(command[0], command)  # noqa: S606 - the operator's own command
        except OSError as error:
            os.write(child_errors, str(error.errno).encode())
        os._exit(127)
    os.close(child_errors)
    failure = os.read(errors, 16)
    os.close(errors)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def _watch(leader: int, wake: int) -> int:
    """Wait for the leader and return its exit code. Reaps reparented processes meanwhile."""
    inputs = [0, wake]
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, state = os.waitpid(-1, os.WNOHANG)
                if pid == leader:
                    return os.waitstatus_to_exitcode(state)
                if pid == 0:
                    break
        ready, _, _ = select.select(inputs, [], [])
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        if 0 in ready:
            commands = os.read(0, 4096)
            if not commands or b"kill" in commands:
                _end_all(leader, reap=False)
            elif b"term" in commands:
                _signal_group(leader, signal.SIGTERM)
            if not commands:  # the agent is dead; `wake` reports the leader's exit
                inputs = [wake]


def _end_all(leader: int, *, reap: bool = True) -> None:
    """SIGKILL the group and every descendant; with `reap`, until none is left."""
    while True:
        _signal_group(leader, signal.SIGKILL)
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not reap:
            return
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_LOOK_SECONDS)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _descendants(root: int) -> Iterator[int]:
    """Parents before their children, so that no survivor can start more processes."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208 - imports little
        if entry.isdigit():
            stat = f"/proc/{entry}/stat"
            with contextlib.suppress(OSError), open(stat, "rb") as file:  # noqa: PTH123 - imports little
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    pids = [root]
    for pid in pids:
        pids += children.get(pid, ())
    yield from pids[1:]


def _report(status: int, line: str) -> None:
    with contextlib.suppress(OSError):  # the agent is dead
        os.write(status, f"{line}\n".encode())


if __name__ == "__main__":
    main()
