"""Files of exports: where they lie, how many and how large they may be, and that none outlives its reader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from pathlib import Path

import pytest

from gateway.costs.export.spool import FILES_OF_TENANT, PREFIX, Spool
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway
from tests.support.waiting import PATIENCE_S, until
from tests.unit.gateway.costs.export.month import MONTH, fill
from tests.unit.gateway.costs.rolled import row, write

PATH = f"/finance/v1/export?month={MONTH}&format=focus-1.2"
NONE = "<Spool 0 files, 0 bytes>"
ROWS = 500
"""Enough that a file does not fit into the buffers of two sockets, which are small here."""


def open_files(folder: Path) -> list[str]:
    """Files under the folder that this process has open, without a name too."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of this very look
            found.append(str(link.readlink()))
    return [target for target in found if target.startswith(str(folder))]


class ExportingGateway:
    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder

    @property
    def spool(self) -> str:
        return repr(self.gateway.state.spool)

    async def settled(self) -> None:
        """Nothing is left, neither counted, nor open, nor named."""
        queues = self.gateway.app.gate.queues.values()
        await until(lambda: self.spool == NONE and open_files(self.folder) == [])
        assert list(self.folder.iterdir()) == []
        await until(lambda: all(q.open_requests.total() == 0 for q in queues))

    async def unread(self, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that has asked, and reads nothing."""
        host, port = self.gateway.url.removeprefix("http://").split(":")
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=made, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode())
        return reader, writer


@pytest.fixture
async def house(tmp_path: Path, valkey_url: str, prefix: str):
    folder = tmp_path / "exports"
    folder.mkdir()
    settings = {"export_dir": folder, "issuer": "x" * 100}
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        await gateway.add_tenant("acme", since=0)
        await asyncio.to_thread(fill, gateway.state.ledger)
        rows = (row(hour=0, adapter=f"acme/{n:060}") for n in range(ROWS))
        where = {"posted": MONTH, "region": "eu", "hour": 494_520 * 3_600_000_000}
        where["piece"] = where["hour"]
        await asyncio.to_thread(write, gateway.state.ledger, *({**r, **where} for r in rows))
        gateway.app.gate.idle = PATIENCE_S
        for listener in gateway.server.servers[0].sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of each connection, too
        yield ExportingGateway(gateway, folder)


async def test_stalled_reader_is_dropped_and_its_file_deleted(house: ExportingGateway):
    house.gateway.app.gate.idle = 0.5
    _, writer = await house.unread(house.gateway.keys["acme"])
    await until(lambda: "1 files" in house.spool and " 0 bytes" not in house.spool)
    assert list(house.folder.iterdir()) == []  # it has no name any more
    assert open_files(house.gateway.state.settings.state_dir / PREFIX) == []
    await house.settled()
    writer.close()


async def test_unread_exports_are_limited_per_tenant_but_not_for_operators(house: ExportingGateway):
    key = house.gateway.keys["acme"]
    unread = [await house.unread(key) for _ in range(FILES_OF_TENANT)]
    for reader, _ in unread:  # both are written: no export waits for its turn to be
        assert b" 200 " in await reader.readline()
    assert f"{FILES_OF_TENANT} files" in house.spool
    async with house.gateway.http(key) as http:
        refused = await http.get(PATH)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_reports")
        assert refused.headers["retry-after"] == "5"
        assert (await http.get("/finance/v1/costs")).status_code == 200
    async with house.gateway.http() as http:
        answer = await http.get(PATH)
    assert (answer.status_code, len(answer.content)) == (200, int(answer.headers["content-length"]))
    for _, writer in unread:
        writer.close()  # hung up in the middle
    await house.settled()


async def test_gateway_stops_while_an_export_is_unread(house: ExportingGateway):
    _, writer = await house.unread(OPERATOR_KEY)
    await until(lambda: "1 files" in house.spool and " 0 bytes" not in house.spool)
    spool = house.gateway.state.spool
    house.gateway.server.config.timeout_graceful_shutdown = 1
    house.gateway.server.stop()
    await until(lambda: repr(spool) == NONE and open_files(house.folder) == [])
    writer.close()


async def test_a_file_is_no_larger_than_what_is_left(tmp_path, valkey_url, prefix):
    folder = tmp_path / "exports"
    folder.mkdir()
    settings = {"export_dir": folder, "export_max_bytes": 4096}
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        await asyncio.to_thread(fill, gateway.state.ledger)
        async with gateway.http() as http:
            for kind in ("focus-1.2", "csv", "parquet"):
                answer = await http.get("/finance/v1/export", params={"month": MONTH, "format": kind})
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "export_failed")
                assert "2,048 bytes" in answer.json()["error"]["message"]
        assert repr(gateway.state.spool) == NONE
        assert list(folder.iterdir()) == []


async def test_missing_export_directory_is_reported(tmp_path, valkey_url, prefix):
    settings = {"export_dir": tmp_path / "nowhere"}
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        await asyncio.to_thread(fill, gateway.state.ledger)
        async with gateway.http() as http:
            answer = await http.get(PATH)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "export_failed")
        assert "No such file or directory" in answer.json()["error"]["message"]
        assert repr(gateway.state.spool) == NONE


def test_only_files_of_killed_workers_are_swept(tmp_path):
    old, new, other = (tmp_path / name for name in (f"{PREFIX}old", f"{PREFIX}new", "other"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, time.time() - 24 * 3600))
    Spool(tmp_path, 1000).sweep()
    assert sorted(tmp_path.iterdir()) == sorted([new, other])
    Spool(tmp_path / "nowhere", 1000).sweep()
