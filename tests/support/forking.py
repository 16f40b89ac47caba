"""Florin's processes and mock engines that tests start are forked from a server that has imported them once
(fork_server.py): a start costs a hundredth of a second of a processor instead of a fifth, or two for a gateway.

xdist's workers are forked from one, too: else each would import Florin, and its server once more.

It takes the place of the one function through which `subprocess`, `asyncio` and `multiprocessing` execute
programs. All that they offer works as ever, since what is forked is a child of this process. Whatever the server
does not know how to start is executed; `executed` has everything executed, for tests of the start itself.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import functools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import ANSWER, ENTRY, SUPPORTED, XDIST_WORKER, Job, pair

ROOT = Path(__file__).parents[2]
_MODULES = {ENTRY, "loadtests.mock_engine", "loadtests.mock_engine.vllm"}
_FLORIN = Path(sys.executable).with_name("florin")
_SPAWNED = ("from multiprocessing.spawn ", "from multiprocessing.resource_tracker ")
"""How the programs begin that `multiprocessing` starts."""
FORKED = "# What this imports has been imported.\n"
"""The first line of a program for `python -c` that is to be forked."""
Words = Callable[[list[str], dict[bytes, bytes]], tuple[str, ...] | None]
"""A command and its environment → the words after `python`, if it is one that is forked."""
_fork_exec = _posixsubprocess.fork_exec


class Forking:
    """The client of a server. It serves only the process that made it: a forked child executes."""

    def __init__(self, connection: Callable[[], socket.socket], words: Words | None = None) -> None:
        self._connection = functools.cache(connection)
        self._words = words or _words
        self._owner = os.getpid()
        self._otherwise = _posixsubprocess.fork_exec

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subprocess, "_fork_exec", self.fork_exec)
            patch.setattr(_posixsubprocess, "fork_exec", self.fork_exec)
            yield

    def install(self) -> None:
        subprocess._fork_exec = _posixsubprocess.fork_exec = self.fork_exec  # type: ignore[attr-defined, assignment]

    def fork_exec(self, args: Sequence[Any], *rest: Any) -> int:
        """In place of `_posixsubprocess.fork_exec`, whose arguments these are."""
        job = None if os.getpid() != self._owner else _job(args, rest, self._words)
        if job is None:
            return self._otherwise(args, *rest)
        fds = [fd if fd >= 0 else number for number, fd in enumerate(_streams(rest))] + list(job.fds[3:])
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._connection(), [pickle.dumps(job)], [theirs.fileno(), *fds])
            theirs.close()
            pid: int = ANSWER.unpack(ours.recv(ANSWER.size))[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        if job.group >= 0:
            os.setpgid(pid, job.group)  # as it does itself: whoever is first
        return pid


def _streams(rest: Sequence[Any]) -> tuple[int, int, int]:
    """What becomes the standard streams; negative: this process's."""
    return rest[5], rest[8], rest[10]


def _job(args: Sequence[Any], rest: Sequence[Any], words_of: Words) -> Job | None:
    """What the server is to run; None if it cannot."""
    close_fds, kept, folder, variables = rest[1:5]
    error_pipe, _, new_session, group, gid, gids, uid, umask, preparation = rest[12:21]
    if any([gid, gids, uid, preparation, not close_fds]):
        return None
    pairs = (
        [variable.split(b"=", 1) for variable in variables] if variables is not None else os.environb.items()
    )
    environ = {bytes(name): bytes(value) for name, value in pairs}
    words = words_of([os.fsdecode(word) for word in args], environ)
    if words is None:
        return None
    return Job(
        words=words,
        environ=environ,
        folder=os.fsdecode(folder) if folder is not None else os.getcwd(),  # noqa: PTH109  # as `exec` would
        umask=umask if umask >= 0 else _umask(),
        new_session=bool(new_session),
        group=group,
        fds=(0, 1, 2, *(fd for fd in kept if fd > 2 and fd != error_pipe)),
    )


def _words(command: list[str], environ: dict[bytes, bytes]) -> tuple[str, ...] | None:
    if _of_the_interpreter(environ) != _of_the_interpreter(dict(os.environb)):
        return None
    if command[0] == str(_FLORIN):
        return "-m", ENTRY, *command[1:]
    if command[0] != sys.executable:
        return None
    match words := [word for word in command[1:] if word != "-B"]:
        case ["-m", module, *_] if module in _MODULES:
            return tuple(words)
        case ["-c", program, *_] if program.startswith((*_SPAWNED, FORKED)):
            return tuple(words)
        case ["-u", *program] if tuple(program) == XDIST_WORKER:
            return XDIST_WORKER
    return None


def _of_the_interpreter(environ: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Variables that are read before the first import."""
    prefixes = (b"PYTHON", b"LD_", b"MALLOC_", b"GLIBC_")
    return {k: v for k, v in environ.items() if k.startswith(prefixes) and k != b"PYTHONWARNINGS"}


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def start(
    stack: contextlib.ExitStack,
    program: str,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
) -> socket.socket:
    """A connection to a server that runs until the end of the stack."""
    ours, theirs = pair()
    words = [python, "-c", program.format(fd=theirs.fileno())]
    environ = {**environ, "OPENBLAS_NUM_THREADS": "1"}  # it would start threads, which no fork could copy
    with theirs:
        server = subprocess.Popen(words, cwd=ROOT, env=environ, pass_fds=[theirs.fileno()])
    stack.enter_context(server)
    return stack.enter_context(ours)


@contextlib.contextmanager
def forking(libraries: Sequence[str] = ()) -> Iterator[None]:
    """Have a server fork what this process starts, which has imported these besides. It starts when it is needed."""
    if not SUPPORTED:
        yield
        return
    program = f"from tests.support.fork_server import main; main({{fd}}, {libraries!r})"
    with contextlib.ExitStack() as stack, Forking(lambda: start(stack, program)).installed():
        yield


@pytest.fixture(scope="session", autouse=True)
def florin_is_forked() -> Iterator[None]:
    if _posixsubprocess.fork_exec is not _fork_exec:  # a worker that was forked itself
        yield
        return
    with forking():
        yield


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the start itself: programs start as in production."""
    monkeypatch.setattr(subprocess, "_fork_exec", _fork_exec)
    monkeypatch.setattr(_posixsubprocess, "fork_exec", _fork_exec)
