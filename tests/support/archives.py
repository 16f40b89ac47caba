"""Archives for tests, sound ones and such as no honest packer writes."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from tests.support.lora import write_adapter

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_files(tmp_path: Path, *, fill: int = 0) -> dict[str, bytes]:
    directory = write_adapter(tmp_path / f"packed-{fill}", fill=fill)
    return {name: (directory / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def tar_bytes(files: dict[str, bytes], *, mode: str = "w:gz", pax: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=pax) as archive:
        for name, content in files.items():
            add(archive, name, content)
    return buffer.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes = b"", **fields) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(content))


def zip_bytes(files: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()
