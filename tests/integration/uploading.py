"""What the tests of uploads share: archives of tiny adapters, requests written byte by byte."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import socket
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from tests.support.harness import OPERATOR_KEY
from tests.support.lora import lora_config, write_adapter


def adapter_files(tmp_path: Path, *, fill: int = 0) -> dict[str, bytes]:
    """A sound adapter of LLAMA, trained on `base`; each `fill` has weights of its own."""
    directory = write_adapter(
        tmp_path / f"made-{fill}", config=lora_config(base_model_name_or_path="base"), fill=fill
    )
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]  # the mode is a literal there
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def path_of(adapter: str = "acme/support", **more: str) -> str:
    return f"/admin/v1/adapters/upload?{urlencode({'adapter': adapter} | more)}"


@dataclass
class Wire:
    """One connection to a gateway on which a test writes what it likes. A bare socket: when a write fails,
    asyncio's streams throw away the answer that has already come."""

    socket: socket.socket
    _read: bytes = b""

    @classmethod
    async def to(cls, url: str) -> Wire:
        parts = urlsplit(url)
        connected = socket.create_connection((parts.hostname, parts.port))
        connected.setblocking(False)
        return cls(connected)

    async def begin(self, length: int | None, *, path: str | None = None, **headers: str) -> None:
        """The head of an upload; `length` None: chunked."""
        fields = {
            "host": "gateway",
            "authorization": f"Bearer {OPERATOR_KEY}",
            "content-type": "application/octet-stream",
            **({"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await self.send(f"POST {path or path_of()} HTTP/1.1\r\n{head}\r\n".encode())

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    @property
    def answered(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    async def _more(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, 65536)

    async def until(self, mark: bytes) -> None:
        """Until `mark` has come."""
        while mark not in self._read:
            data = await self._more()
            assert data, "the gateway hung up"
            self._read += data

    async def rest(self) -> bytes:
        """Until the gateway closes."""
        while data := await self._more():
            self._read += data
        rest, self._read = self._read, b""
        return rest

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body: until the gateway closes, or the announced length is there."""
        while b"\r\n\r\n" not in self._read:
            data = await self._more()
            assert data, "the gateway hung up without an answer"
            self._read += data
        first, _, self._read = self._read.partition(b"\r\n\r\n")
        head = first.decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        if "content-length" not in headers:
            return int(head[0].split()[1]), headers, await self.rest()
        length = int(headers["content-length"])
        while len(self._read) < length:
            data = await self._more()
            assert data, "the gateway hung up in the middle of its answer"
            self._read += data
        body, self._read = self._read[:length], self._read[length:]
        return int(head[0].split()[1]), headers, body

    async def refusal(self) -> tuple[int, str]:
        """Status and code."""
        status, _, body = await self.answer()
        return status, json.loads(body)["error"]["code"]

    async def close(self) -> None:
        self.socket.close()


def staged(artifacts: Path) -> list[Path]:
    """What lies in staging: empty when nothing is under way."""
    return [Path(at, name) for at, _, names in os.walk(artifacts / ".staging") for name in names]
