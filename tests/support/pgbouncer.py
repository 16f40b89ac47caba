"""Runs PgBouncer in transaction mode before a PostgreSQL server of the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.engine_hosts import free_port
from tests.support.waiting import until_now

_SERVER_CONNECTIONS = 3
"""Fewer than clients, so that each of their transactions runs on whichever is free."""


def find_pgbouncer() -> str | None:
    """Debian has it where only root's PATH leads."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(binary: str, server: int) -> Iterator[int]:
    """The port of a PgBouncer before the PostgreSQL server at that port."""
    with tempfile.TemporaryDirectory() as made:
        directory, port = Path(made), free_port()
        directory.chmod(0o755)
        (directory / "users").write_text('"florin" ""\n')
        (directory / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {directory / 'users'}\n"
            f"pool_mode = transaction\ndefault_pool_size = {_SERVER_CONNECTIONS}\n"
        )
        command = [binary, str(directory / "ini")]
        if os.geteuid() == 0:  # which it refuses to run as
            command[1:1] = ["-u", "nobody"]
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until_now(lambda: _listens(port), what=(directory / "log").read_text)
            yield port
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
