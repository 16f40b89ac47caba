"""Writes what was computed: into a new directory, which appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.checks.file_kinds import CONFIG_FILE, KNOWN, WEIGHTS_FILE
from adapters.checks.safetensors_header import HeaderError, read_header
from adapters.conversion.adapter_files import SourceAdapter
from adapters.conversion.arrays import encode
from adapters.conversion.base_weights import INDEX, BaseWeights
from adapters.conversion.changes import Saved, plain, spans
from adapters.conversion.factors import Factors
from adapters.conversion.refusals import Refusals
from adapters.conversion.result import Plain, config_of, padded
from adapters.conversion.steps import Step, steps_of
from adapters.conversion.weight_files import write_tensors
from adapters.progress import Progress, ProgressMeter, silent

WRITING = "write"


@contextmanager
def new_directory(out: Path, *, replace: bool) -> Iterator[Path]:
    """A directory beside `out`, which becomes `out` at the end and vanishes after an exception. Raises
    OSError (FileExistsError without `replace`)."""
    if out.exists() and not replace:
        raise FileExistsError(f"{out} exists")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        if out.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
            out.rename(old / "replaced")
            unfinished.rename(out)
            shutil.rmtree(old, ignore_errors=True)
        else:
            unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_adapter(
    out: Path, result: Plain, source: SourceAdapter, record: Mapping[str, Any], *, replace: bool
) -> None:
    """An adapter's directory as PEFT writes it. `record` says how it came about: it is kept in the weight
    file's metadata, which is part of what identifies a version, and in README.md. Raises OSError."""
    config, ranks = config_of(result.modules, source.config)
    tensors = {}
    for module in result.modules:
        factors = padded(module.factors, ranks[module.path])
        a, b = ("embedding_A", "embedding_B") if module.embedding else ("A.weight", "B.weight")
        for half, values in ((a, factors.a), (b, factors.b)):
            tensors[f"base_model.model.{module.path}.lora_{half}"] = encode(values, result.dtype)
    metadata = {"format": "pt", "florin_conversion": json.dumps(record)}
    with new_directory(out, replace=replace) as directory:
        for name in KNOWN:
            if name not in (CONFIG_FILE, WEIGHTS_FILE) and (source.directory / name).is_file():
                shutil.copyfile(source.directory / name, directory / name)
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        (directory / "README.md").write_text(_readme(record))
        write_tensors(directory / WEIGHTS_FILE, tensors, result.dtype, metadata)


def _readme(record: Mapping[str, Any]) -> str:
    lines = [f"Made by `florin adapter {record['command']}`. Errors are relative Frobenius norms.", ""]
    lines += [f"- {key}: {json.dumps(value)}" for key, value in record.items() if key != "command"]
    return "\n".join(lines) + "\n"


def write_merged_model(
    out: Path, source: SourceAdapter, base: BaseWeights, initial: SourceAdapter | None, *, replace: bool,
    progress: Progress = silent,
) -> list[str]:  # fmt: skip
    """The base model with the adapter worked into its weights, in the base's own files and types. Returns
    the names of the parameters that changed. Raises RejectedError, OSError."""
    refusals = Refusals(source.directory)
    steps = [step for step in steps_of(source, base, initial, refusals) if not step.tied]
    _check_tying(source, base, steps, refusals)
    refusals.raise_if_any()
    files = [path for path in sorted(base.directory.iterdir()) if path.is_file() and _belongs(path, base)]
    total = sum(path.stat().st_size for path in files) + sum(4 * step.base.elements for step in steps)
    meter = ProgressMeter(WRITING, progress, total)
    with new_directory(out, replace=replace) as directory:
        for path in files:
            shutil.copyfile(path, directory / path.name)
            meter.add(path.stat().st_size)
        for step in steps:
            _work_in(step, directory / step.base.path.name)
            meter.add(4 * step.base.elements)
        for path in directory.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    meter.tell()
    return sorted(step.path for step in steps)


def _work_in(step: Step, path: Path) -> None:
    change = step.make()
    if isinstance(change, Factors):
        change = plain(step.base, change, transposed=step.transposed)
    for start, stop in spans(step.base.shape):
        if isinstance(change, Saved):
            values = change.saved.rows(start, stop)
        else:
            weight, delta = change.block(start, stop)
            values = weight + delta
        step.base.overwrite(path, start, values)


def _belongs(path: Path, base: BaseWeights) -> bool:
    """Weights that the model is loaded from, and texts; not the same weights in another format."""
    shards = {tensor.path.name for tensor in base.tensors.values()}
    return (
        path.name in shards
        or path.name == INDEX
        or path.suffix in {".json", ".jinja", ".model", ".txt", ".md"}
    )


def _check_tying(source: SourceAdapter, base: BaseWeights, steps: list[Step], refusals: Refusals) -> None:
    if not base.tied:
        return
    for step in steps:
        follows = step.path in source.tokens or source.config.get("ensure_weight_tying") is True
        if step.path == "lm_head" or (base.embeds(step.path) and not follows):
            refusals.add(
                "tied_weights",
                f"The base model uses one matrix for its embeddings and lm_head; the adapter changes "
                f"{step.path} alone.",
                found=step.path,
                expected="both, or neither",
                remedy="Convert the adapter instead, or untie the base model's weights first.",
            )


def is_adapter(directory: Path) -> bool:
    """Whether replacing it loses an adapter and nothing else of value."""
    return (directory / CONFIG_FILE).is_file() and (directory / WEIGHTS_FILE).is_file()


def is_model(directory: Path) -> bool:
    try:
        return (directory / "config.json").is_file() and any(
            read_header(p) for p in directory.glob("*.safetensors")
        )
    except (OSError, HeaderError):
        return False
