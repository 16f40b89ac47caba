from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from gateway.serving.runner import ServerStartError
from gateway.serving.server import url_of
from gateway.serving.unix_socket import bound


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


def test_the_owner_and_the_group_may_connect_and_it_is_removed_at_the_end(path: Path):
    before = os.umask(0o077)
    try:
        with bound(path) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert url_of(listener) == f"unix:{path}"
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_socket_that_nobody_listens_on_is_replaced(path: Path):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    with bound(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_in_use_and_other_files_are_left_alone(path: Path):
    with bound(path) as listener:
        listener.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:  # the queue may be full, too
            client.setblocking(False)
            with pytest.raises(ServerStartError, match="another process listens on"), bound(path):
                pass
            client.connect_ex(str(path))
        for client in clients:
            client.close()
    path.write_text("precious")
    with pytest.raises(ServerStartError, match="is not a socket"), bound(path):
        pass
    assert path.read_text() == "precious"


def test_a_successor_keeps_its_socket(path: Path):
    """The predecessor drains for a while after it has closed its listener."""
    predecessor = bound(path)
    with predecessor as listener:
        listener.close()
        successor = bound(path)
        successor.__enter__()
    assert path.exists()
    successor.__exit__(None, None, None)
    assert not path.exists()


@pytest.mark.parametrize("name", ["no/such/folder", "x" * 200])
def test_a_path_that_cannot_be_bound_is_named(tmp_path: Path, name: str):
    with (
        pytest.raises(ServerStartError, match=rf"FLORIN_UDS: cannot listen on .*{name}"),
        bound(tmp_path / name),
    ):
        pass
