"""Processes beside a worker, for work that would hold the interpreter's lock against its event loop."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from multiprocessing import Pipe, get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Protocol, TypeVar, cast

from adapters.progress import Progress

R_co = TypeVar("R_co", covariant=True)

_NICENESS = 10
_LOOK_SECONDS = 0.25
"""Seconds between two looks whether anybody still waits for the result."""


class UnfinishedError(Exception):
    """The function did not return: the message says what it ran into."""


class Work(Protocol[R_co]):
    def __call__(self, *, progress: Progress) -> R_co: ...


def call(work: Work[R_co], step: str, *, seconds: float, memory: int, progress: Progress) -> R_co:
    """Call `work`, which must be picklable, in a process of its own at low priority, with at most so many
    bytes of memory. `progress` is called here with what it reports; while that is nothing, with what it last
    reported, which is the beginning of `step` at first. The process ends with this call, however that ends.
    Raises what `work` or `progress` raise, OSError if no process can start, and UnfinishedError. Blocking."""
    ours, theirs = Pipe(duplex=False)
    with ours:
        with theirs:
            process = get_context("spawn").Process(target=_serve, args=(theirs, work, memory), daemon=True)
            process.start()
        try:
            return cast("R_co", _result(ours, (step, 0, None), seconds, progress))
        finally:
            process.kill()
            process.join()
            process.close()


def _result(
    connection: Connection, latest: tuple[str, int, int | None], seconds: float, progress: Progress
) -> object:
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        if connection.poll(min(left, _LOOK_SECONDS)):
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):
                raise UnfinishedError("a process that died") from None
            match kind:
                case "result":
                    return value
                case "error":
                    raise value
            latest = value
        elif not left:
            raise UnfinishedError(f"more than {seconds:.0f} seconds")
        progress(*latest)


def _serve(connection: Connection, work: Work[object], memory: int) -> None:
    settle()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads' stacks would count as memory
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or memory < most:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    try:
        answer = "result", work(progress=lambda *step: connection.send(("progress", step)))
    except MemoryError:
        answer = "error", UnfinishedError(f"more than {memory >> 20} MiB of memory")
    except Exception as error:  # noqa: BLE001  # whatever it is, the caller gets it
        answer = "error", error
    connection.send(answer)


def settle() -> None:
    """For a process beside a worker: run at low priority, and end with the worker, even if that is killed."""
    # Ctrl-C in a terminal signals the whole group; only the worker decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
