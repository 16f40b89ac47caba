"""Cuts the bundle into pieces small enough to be sent one by one, and joins them again. Standard library
only: it runs before anything is installed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "manifest.json"
_CHUNK = 1 << 20


class BundleError(Exception):
    """The pieces are not what the manifest lists; the message names them."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the bundle, or a piece of it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    files: tuple[Part, ...]
    """In the order in which their bytes follow each other; names are relative paths."""
    pieces: tuple[Part, ...]


def split(root: Path, files: Sequence[Path], target: Path, size: int) -> Manifest:
    """Write the bytes of `files`, all below `root`, to `target` in pieces of at most `size` bytes, and the
    manifest."""
    target.mkdir(parents=True, exist_ok=True)
    pieces: list[Part] = []
    piece = bytearray()

    def write() -> None:
        name = f"piece-{len(pieces) + 1:02}"
        (target / name).write_bytes(piece)
        pieces.append(Part(name, len(piece), hashlib.sha256(piece).hexdigest()))
        piece.clear()

    for file in files:
        for chunk in _chunks(file):
            rest = memoryview(chunk)
            while rest:
                room = size - len(piece)
                piece += rest[:room]
                rest = rest[room:]
                if len(piece) == size:
                    write()
    if piece:
        write()
    parts = tuple(Part(str(f.relative_to(root)), f.stat().st_size, digest(f)) for f in files)
    manifest = Manifest(parts, tuple(pieces))
    (target / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1))
    return manifest


def read(folder: Path) -> Manifest:
    document = json.loads((folder / MANIFEST).read_text())
    return Manifest(*(tuple(Part(**part) for part in document[key]) for key in ("files", "pieces")))


def missing(folder: Path, manifest: Manifest) -> list[str]:
    """Pieces that are not there yet. Raises BundleError if one is damaged."""
    present = {p.name: folder / p.name for p in manifest.pieces if (folder / p.name).exists()}
    if damaged := [
        p.name for p in manifest.pieces if p.name in present and digest(present[p.name]) != p.sha256
    ]:
        raise BundleError(f"Damaged: {', '.join(damaged)}. Send them again.")
    return [p.name for p in manifest.pieces if p.name not in present]


def join(folder: Path, manifest: Manifest, target: Path) -> None:
    """Write the bundle's files below `target`. All pieces must be there. Raises BundleError."""
    stream = (chunk for piece in manifest.pieces for chunk in _chunks(folder / piece.name))
    rest = b""
    for part in manifest.files:
        path = target / part.name
        path.parent.mkdir(parents=True, exist_ok=True)
        left = part.size
        with path.open("wb") as file:
            while left:
                rest = rest or next(stream, b"")
                if not rest:
                    raise BundleError(f"The pieces end within {part.name}.")
                file.write(rest[:left])
                left, rest = left - min(left, len(rest)), rest[left:]
        if digest(path) != part.sha256:
            raise BundleError(f"{part.name} is not what was bundled.")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
