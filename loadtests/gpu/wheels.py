"""The wheels that are bundled: vLLM with what it imports, and Florin's dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).parent / "requirements" / "engine.txt"
LOCK = ROOT / "requirements.lock"
PYTHON = "3.12"
GLIBC: Final = (5, 12, 17, 24, 27, 28, 31, 34)
"""Minor versions in the platform tags of wheels, which pip compares for equality."""
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": (
        "vllm/vllm_flash_attn/_vllm_fa2_C.*",  # Hopper uses FlashAttention 3
        "vllm/_moe_C_stable_libtorch.*",  # a Llama has no experts
        "vllm/_qutlass_C.*",  # Blackwell's
        "vllm/third_party/fmha_sm100/*",  # Blackwell's
        "vllm/third_party/deep_gemm/*",  # for FP8
        "vllm/vllm-rs",  # the Rust frontend
    ),
    "xgrammar": ("xgrammar/lib/*",),  # to link against
    "botocore": ("botocore/data/*",),  # the API of every service; Florin asks it for credentials only
}
"""Files of the wheels that no stage needs."""
_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==", re.MULTILINE)


def florin_dependencies() -> set[str]:
    """Canonical names of what Florin needs at run time, from the installed distributions' metadata."""
    environment = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.3"}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement("florin-gateway")]
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        for needed in map(Requirement, distribution(requirement.name).requires or ()):
            asked_for = [environment | {"extra": extra} for extra in requirement.extras or {""}]
            if needed.marker is None or any(map(needed.marker.evaluate, asked_for)):
                waiting.append(needed)
    return {name for name, _ in seen} - {"florin-gateway"}


def entries(lock: str, names: Iterable[str]) -> str:
    """The lines of a lock file that pin these packages, with their hashes."""
    starts = [match.start() for match in _ENTRY.finditer(lock)]
    blocks = [lock[start:end] for start, end in zip(starts, [*starts[1:], len(lock)], strict=True)]
    pinned: dict[str, str] = {canonicalize_name(block.partition("==")[0]): block for block in blocks}
    return "".join(pinned[name] for name in sorted(names))


def download(requirements: Path, target: Path) -> None:
    """Fetch the wheels of a lock file, each by its hash. Raises CalledProcessError."""
    tags = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", PYTHON]
    command += [word for tag in tags for word in ("--platform", tag)]
    subprocess.run([*command, "--dest", str(target), "-r", str(requirements)], check=True)


def lighten(wheel: Path) -> None:
    """Rewrite a wheel in place, without its part of LEFT_OUT, and better compressed."""
    left_out = LEFT_OUT.get(wheel.name.partition("-")[0], ())
    lighter = wheel.with_suffix(".lighter")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(lighter, "w", zipfile.ZIP_LZMA) as new:
        for entry in old.infolist():
            if _matches(entry.filename, left_out):
                continue
            content = old.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                content = "".join(_kept_rows(content.decode(), left_out)).encode()
            new.writestr(entry.filename, content, zipfile.ZIP_LZMA)
            new.getinfo(entry.filename).external_attr = entry.external_attr
    lighter.replace(wheel)


def _kept_rows(record: str, left_out: Sequence[str]) -> Iterator[str]:
    for row in record.splitlines(keepends=True):
        if not _matches(row.rpartition(",")[0].rpartition(",")[0].strip('"'), left_out):
            yield row


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
