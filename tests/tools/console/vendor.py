"""The vendored files: where each comes from, and whether it is what was recorded.

They are in the repository so that installing Florin needs no npm and no build, and the console no network.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
VENDOR: Final = ROOT / "gateway/console/static/vendor"
MANIFEST: Final = VENDOR / "manifest.json"
LICENCES: Final = VENDOR / "LICENSES.txt"
_STATIC = "gateway/console/static/vendor"
_DOCS = "gateway/api/docs_page"


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    licence: str
    files: dict[str, str]
    """Path in the package → in this repository. Files that end in `.gz` are compressed here."""
    notices: tuple[str, ...] = ("LICENSE",)


PACKAGES: Final = (
    Package("htmx.org", "2.0.11", "0BSD", {"dist/htmx.min.js": f"{_STATIC}/htmx.js"}),
    Package("htmx-ext-sse", "2.2.4", "0BSD", {"dist/sse.js": f"{_STATIC}/htmx-sse.js"}),
    Package("idiomorph", "0.8.0", "0BSD", {"dist/idiomorph-ext.min.js": f"{_STATIC}/idiomorph.js"}),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        {"dist/uPlot.iife.min.js": f"{_STATIC}/uplot.js", "dist/uPlot.min.css": f"{_STATIC}/uplot.css"},
    ),
    Package(
        "swagger-ui-dist",
        "5.35.0",
        "Apache-2.0",
        {
            "swagger-ui-bundle.js": f"{_DOCS}/swagger-ui-bundle.js.gz",
            "swagger-ui.css": f"{_DOCS}/swagger-ui.css.gz",
        },
        ("LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"),
    ),
)


def fetch() -> None:
    """Raises CalledProcessError if npm fails; it verifies each package against the registry's checksum."""
    manifest: list[dict[str, Any]] = []
    licences: list[str] = []
    for package in PACKAGES:
        contents = _packed(package)
        for source, target in package.files.items():
            _write(ROOT / target, contents[source])
            manifest.append(_entry(package, source, target, contents[source]))
        texts = "\n\n".join(contents[name].decode().strip() for name in package.notices)
        licences.append(f"{package.name} {package.version} ({package.licence})\n\n{texts}\n")
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")
    LICENCES.write_text(("\n" + "=" * 80 + "\n").join(licences))


def _packed(package: Package) -> dict[str, bytes]:
    """The files that are wanted of the package."""
    names = {*package.files, *package.notices}
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # fixed words
        [packed] = Path(folder).glob("*.tgz")
        with tarfile.open(packed) as archive:
            return {name: _member(archive, f"package/{name}") for name in names}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(content, 9, mtime=0) if target.suffix == ".gz" else content)


def _entry(package: Package, source: str, target: str, content: bytes) -> dict[str, Any]:
    return {
        "file": target,
        "package": package.name,
        "version": package.version,
        "path": source,
        "licence": package.licence,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def check() -> list[str]:
    """Files that are not what the manifest says, or that it does not know, or should and does not."""
    recorded = {entry["file"]: entry["sha256"] for entry in json.loads(MANIFEST.read_text())}
    expected = {target for package in PACKAGES for target in package.files.values()}
    there = {f"{_STATIC}/{path.name}" for path in VENDOR.iterdir() if path.suffix in {".js", ".css"}}
    wrong = (expected | there) ^ recorded.keys()
    return sorted(wrong | {name for name, digest in recorded.items() if _digest(ROOT / name) != digest})


def _digest(path: Path) -> str:
    """Digest of the uncompressed content; empty if there is none."""
    try:
        content = path.read_bytes()
        return hashlib.sha256(gzip.decompress(content) if path.suffix == ".gz" else content).hexdigest()
    except OSError:
        return ""
