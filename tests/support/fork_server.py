"""A server that has imported Florin once and forks what tests start.

Python starts a second or more of imports sooner than `exec` would let it. What is forked looks to the test as if
it had been executed: it is a child of the test's process (CLONE_PARENT), with the arguments, environment, folder,
file descriptors and session asked for, and none of the server's. `/proc` alone shows the server's command line.

`florin serve` and a worker of xdist get a server of their own, for the processes that they start.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import os
import pickle
import pkgutil
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

_CLONE_PARENT: Final = 0x8000
_PR_SET_PDEATHSIG: Final = 1
_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220}
SUPPORTED: Final = sys.platform == "linux" and os.uname().machine in _SYS_CLONE
LONGEST: Final = 200_000
"""Bytes of a request, which a socket sends as one message."""
FD_LIMIT: Final = 200
ANSWER: Final = struct.Struct("i")
"""The pid, or a negative errno."""
ENTRY: Final = "gateway.cli"
XDIST_WORKER: Final = ("-c", "import sys;exec(eval(sys.stdin.readline()))")
"""How execnet starts one."""


@dataclass(frozen=True)
class Job:
    """What is to be run: the words after `python`, and everything that `exec` and its preparations would set."""

    words: tuple[str, ...]
    environ: dict[bytes, bytes]
    folder: str
    umask: int
    new_session: bool
    group: int
    """As `Popen` has it; -1: the starter's."""
    fds: tuple[int, ...]
    """The numbers under which the process has the descriptors that come with the request."""


def main(fd: int, libraries: Sequence[str]) -> None:
    def load() -> None:
        for name in (*_preloaded(), *libraries):
            importlib.import_module(name)
        _build_routes()

    run(fd, load)


def run(fd: int, load: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> None:
    """Load, then serve. What is forked calls `prepare` first."""
    # It may be multiprocessing that asks first, which blocks SIGINT and SIGTERM while it starts its tracker: what is
    # forked would never hear them, nor would Valkey hear that its gateway was killed.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and for what they started
    load()
    gc.collect()
    gc.freeze()
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a thread would be missing in what is forked"
    serve(socket.socket(fileno=fd), prepare)


def _preloaded() -> list[str]:
    """All modules that a command, a gateway or a mock engine may need, but for those that are run as scripts."""
    import adapters  # the server's business only
    import gateway
    from loadtests import mock_engine

    packages = (adapters, gateway, mock_engine)
    names = [m.name for p in packages for m in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]
    scripts = {ENTRY, "gateway.metering.ledger.migrations.env", "loadtests.mock_engine.vllm"}
    own = "tests.support.forking"
    return [own, *(name for name in names if name not in scripts and not name.endswith("__main__"))]


def _build_routes() -> None:
    """Of the API: half of what a gateway's start takes, and the same for each."""
    from fastapi import FastAPI

    from gateway import app

    api = FastAPI()
    api.router.routes.extend(app._routes(docs=False))
    app._build_routes(api)


def pair() -> tuple[socket.socket, socket.socket]:
    """For requests, each a message."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def serve(connection: socket.socket, prepare: Callable[[], None] = lambda: None) -> None:
    """Fork what is asked for until the other end closes. Each request brings the socket for its answer, so that
    one whose test has been interrupted does not concern the next."""
    while True:
        request, fds, _, _ = socket.recv_fds(connection, LONGEST, FD_LIMIT)
        if not request:
            return
        job: Job = pickle.loads(request)
        with socket.socket(fileno=fds[0]) as answering:
            pid = _fork_sibling()
            if pid == 0:
                _become(job, fds[1:])
                prepare()
                _run(*job.words[:2])
            with contextlib.suppress(OSError):
                answering.sendall(ANSWER.pack(pid))
        for fd in fds[1:]:
            os.close(fd)


def _fork_sibling() -> int:
    """Like `os.fork`, but the child is one of this process's parent; -errno if that fails."""
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.PyOS_BeforeFork()
    flags = _CLONE_PARENT | signal.SIGCHLD
    pid: int = libc.syscall(_SYS_CLONE[os.uname().machine], flags, 0, 0, 0, 0)
    if pid == 0:
        libc.PyOS_AfterFork_Child()
        return 0
    libc.PyOS_AfterFork_Parent()
    return pid if pid > 0 else -ctypes.get_errno()


def _become(job: Job, fds: list[int]) -> None:
    """Become the process asked for, up to its first line."""
    _place(fds, job.fds)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if job.new_session:
        os.setsid()
    if job.group >= 0:
        os.setpgid(0, job.group)
    os.chdir(job.folder)
    os.umask(job.umask)
    os.environ.clear()
    os.environb.update(job.environ)
    time.tzset()
    _step_clock()
    warnings._processoptions(filter(None, os.environ.get("PYTHONWARNINGS", "").split(",")))  # type: ignore[attr-defined]
    sys.stdin, sys.stdout, sys.stderr = _streams()
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.orig_argv = [sys.executable, *job.words]
    option, program, *arguments = job.words
    sys.argv = ["-c" if option == "-c" else program, *arguments]
    if sys.argv == [ENTRY, "serve"]:
        _serve_what_workers_spawn()
    elif job.words == XDIST_WORKER:
        _serve_what_it_spawns()


def _step_clock() -> None:
    """What is executed finds tests/stepped_clock/ on its PYTHONPATH. A process that is forked by a stepped one is off
    already: what was imported there is not imported again. Parameters whose default is `time.time` keep the true time;
    none of them books any."""
    if "FLORIN_TEST_CLOCK" in os.environ:
        importlib.import_module("tests.stepped_clock.sitecustomize")


def _run(option: str, program: str) -> NoReturn:
    """Run it and end as the interpreter does, without its tidying: that takes longer than most commands."""
    code = 1
    try:
        if option == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        else:
            code = end.code or 0
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        traceback.print_exc()
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _place(fds: list[int], numbers: tuple[int, ...]) -> None:
    """Give the descriptors their numbers, and close all others."""
    clear = max(*numbers, *fds) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, clear) for fd in fds]
    os.closerange(0, clear)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
    os.closerange(clear, os.sysconf("SC_OPEN_MAX"))


def _streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper]:
    return (
        open(0, encoding="utf-8", closefd=False),
        open(1, "w", encoding="utf-8", closefd=False, buffering=1 if os.isatty(1) else -1),
        open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1),
    )


def _serve_what_workers_spawn() -> None:
    """The same for this process and for each worker that it will fork."""
    from gateway.serving import workers

    _serve_what_it_spawns()
    run_child = workers.WorkerGroup._run_child

    def with_server(group: workers.WorkerGroup, name: str, *rest: Any) -> None:
        if name == workers.WORKER:
            _serve_what_it_spawns()
        run_child(group, name, *rest)

    workers.WorkerGroup._run_child = with_server  # type: ignore[method-assign, assignment]


def _serve_what_it_spawns() -> None:
    """Fork a server that is a child of this process, and have what this process spawns forked there."""
    from tests.support.forking import Forking  # imports this module

    parent = os.getpid()
    ours, theirs = pair()
    if os.fork():
        theirs.close()
        Forking(lambda: ours).install()
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    _place([nothing, nothing, nothing, theirs.detach()], (0, 1, 2, 3))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(socket.socket(fileno=3))
    os._exit(0)
