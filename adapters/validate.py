"""Checks a LoRA adapter before any engine sees it: the files, adapter_config.json, the safetensors header.

An engine's HTTP 200 proves little (it zero-pads small shapes, passes over names that match nothing and never
compares base models), so everything it would let pass is looked at here. The weights themselves are not
read. Each failed check is a Finding with one of the codes of `adapters.findings.CODES`.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adapters.findings import Findings, shown
from adapters.model import BaseModel
from adapters.peft_config import check_base_name, check_config, read_config
from adapters.safetensors_header import HeaderError, Tensor, read_header
from adapters.shapes import base_shapes
from adapters.tensors import DTYPES, check_tensors

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE)

_PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz"})
_WEIGHTS = frozenset({".safetensors", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx"})


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What is known of an adapter that passed."""

    rank: int
    """The highest of its ranks: what an engine's `--max-lora-rank` must reach."""
    size_bytes: int
    """Of both files together."""
    modules: tuple[str, ...]
    """Kinds of modules that it changes, sorted: `q_proj`."""
    tensors: int
    dtypes: tuple[str, ...]
    """Sorted: `bfloat16`."""
    base_named: str | None
    """The config's own `base_model_name_or_path`."""


def validate(
    directory: Path,
    *,
    base: BaseModel,
    max_rank: int,
    max_bytes: int,
    assume_base: bool = False,
    adapter: str = "",
    fleet_ranks: Sequence[int] = (),
) -> AdapterFacts:
    """The adapter's facts. Raises RejectedError with every finding, under the name `adapter`.

    `assume_base` waives the comparison of names with `base`, never that of shapes. `fleet_ranks`, when
    given, are the ranks that the fleet's engines take: a refusal names them.
    """
    label = adapter or str(directory)
    findings = Findings()
    check_files(directory, max_bytes=max_bytes, findings=findings)
    findings.refuse_if_any(label)
    try:
        config = read_config(directory / CONFIG_FILE, findings)
        tensors = _read_tensors(directory / WEIGHTS_FILE, findings)
        size = sum((directory / name).stat().st_size for name in FILES)
    except OSError as error:
        findings.add(
            "unreadable", "The files cannot be read.", found=shown(str(error)), expected="readable files"
        )
        findings.refuse_if_any(label)
        raise
    shapes = base_shapes(base.name, base.config, findings)
    lora = None
    if config is not None:
        lora = check_config(config, max_rank=max_rank, fleet_ranks=fleet_ranks, findings=findings)
        if not assume_base:
            check_base_name(config, base, findings)
    paths: tuple[str, ...] = ()
    if tensors is not None and lora is not None and shapes is not None:
        paths = check_tensors(tensors, lora=lora, shapes=shapes, findings=findings)
    findings.refuse_if_any(label)
    assert config is not None
    assert tensors is not None
    assert lora is not None
    named = config.get("base_model_name_or_path")
    return AdapterFacts(
        rank=lora.highest_rank,
        size_bytes=size,
        modules=tuple(sorted({path.rpartition(".")[2] for path in paths})),
        tensors=len(tensors),
        dtypes=tuple(sorted({DTYPES[t.dtype] for t in tensors.values() if t.dtype in DTYPES})),
        base_named=named if isinstance(named, str) else None,
    )


def check_files(directory: Path, *, max_bytes: int, findings: Findings) -> None:
    """The checks that need only the directory's listing; nothing is opened."""
    try:
        if not directory.is_dir():
            findings.add(
                "directory_missing",
                "The adapter's directory is not there.",
                found=shown(str(directory)),
                expected=f"a directory that holds {CONFIG_FILE} and {WEIGHTS_FILE}",
            )
            return
        _check_strays(directory, findings)
        sizes = [_check_file(directory, name, findings) for name in FILES]
    except OSError as error:
        findings.add(
            "unreadable", "The directory cannot be read.", found=shown(str(error)), expected="a readable one"
        )
        return
    if sum(sizes) > max_bytes:
        findings.add(
            "too_large",
            "The adapter is too large.",
            found=f"{sum(sizes)} bytes",
            expected=f"at most {max_bytes} bytes",
        )


def _check_strays(directory: Path, findings: Findings) -> None:
    for path in sorted(directory.iterdir()):
        suffix = path.suffix.lower()
        if suffix in _PICKLES:
            findings.add(
                "unsafe_file",
                "Pickled files can run code when they are loaded; remove them, or save the adapter anew.",
                found=shown(path.name),
                expected=f"{CONFIG_FILE} and {WEIGHTS_FILE}, and no files of such kinds",
            )
        elif suffix in _WEIGHTS and path.name != WEIGHTS_FILE:
            findings.add(
                "other_weights",
                "Engines serve one weight file; what stands in another would be lost.",
                found=shown(path.name),
                expected=f"{WEIGHTS_FILE} alone",
            )


def _check_file(directory: Path, name: str, findings: Findings) -> int:
    """Its size in bytes, 0 when there is a finding."""
    path = directory / name
    if not path.exists():
        findings.add(
            "file_missing",
            f"{name} is missing.",
            found="a link to nowhere" if path.is_symlink() else "no such file",
            expected=f"{CONFIG_FILE} and {WEIGHTS_FILE} in the directory",
        )
        return 0
    target = path.resolve()
    if not any(target.is_relative_to(root) for root in _roots(directory)):
        findings.add(
            "symlink_escapes",
            f"{name} is a link that leads out of the directory.",
            found=shown(str(target)),
            expected="a file within the directory",
        )
        return 0
    status = target.stat()
    if not stat.S_ISREG(status.st_mode):
        findings.add(
            "not_regular",
            f"{name} is not a regular file.",
            found=stat.filemode(status.st_mode),
            expected="a regular file",
        )
        return 0
    return status.st_size


def _roots(directory: Path) -> list[Path]:
    """Where links may lead: the directory; and, from a snapshot of a hub's cache, that model's blobs."""
    resolved = directory.resolve()
    repository = resolved.parent.parent
    if resolved.parent.name == "snapshots" and repository.name.startswith("models--"):
        return [resolved, repository / "blobs"]
    return [resolved]


def _read_tensors(path: Path, findings: Findings) -> dict[str, Tensor] | None:
    try:
        return read_header(path)
    except HeaderError as error:
        findings.add(
            "header_invalid",
            "The weight file is not sound safetensors.",
            found=shown(str(error)),
            expected="a complete file as the safetensors library writes it",
        )
        return None
