"""Checks a LoRA adapter before it reaches an engine: files, config, tensors, weights, tokenizer.

An engine's HTTP 200 proves little: it zero-pads small shapes, ignores names that match nothing and never
compares base models. Everything that it would let through is checked here. Each failed check is a Finding
with one of the codes in `adapters.checks.finding_codes`. No gateway or GPU is needed:

    from adapters.checks.base_models import read_base
    from adapters.checks.validate import RejectedError, validate

    base = read_base("Qwen/Qwen3-8B", "/models/Qwen3-8B")
    try:
        facts = validate(Path("out/checkpoint-300"), base=base, max_rank=64, max_bytes=2**30)
    except RejectedError as refusal:
        for finding in refusal.findings:
            print(finding.severity, finding.code, finding.message, finding.remedy)
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapters.checks.adapter_folder import adapter_folder, listed
from adapters.checks.base_name import check_base_name
from adapters.checks.file_kinds import CONFIG_FILE, FILES, KNOWN, WEIGHTS_FILE
from adapters.checks.findings import Findings, shown
from adapters.checks.pairs import check_pairs, vocabulary_of
from adapters.checks.peft_config import check_config, read_config
from adapters.checks.safetensors_header import HeaderError, Tensor, read_header
from adapters.checks.shapes import TEXT_NAMES_SINCE, BaseShapes, base_shapes
from adapters.checks.tensors import DTYPES, check_dtypes, check_tensors
from adapters.checks.tokenizer_files import check_tokenizer_files
from adapters.checks.weights import check_weights, magnitudes
from adapters.errors import Finding, RejectedError
from adapters.model import BaseModel
from adapters.progress import Progress, silent

__all__ = ["CONFIG_FILE", "FILES", "WEIGHTS_FILE", "AdapterFacts", "RejectedError", "check_files", "validate"]


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """Facts about an adapter that passed the checks."""

    rank: int
    """Its highest rank; engines need at least this `--max-lora-rank`."""
    size_bytes: int
    """Size of both files together."""
    modules: tuple[str, ...]
    """Kinds of modules that it changes, sorted: `q_proj`."""
    tensors: int
    dtypes: tuple[str, ...]
    """Sorted: `bfloat16`."""
    base_named: str | None
    """The config's own `base_model_name_or_path`."""
    warnings: tuple[Finding, ...] = ()
    """Findings that do not reject it."""
    unverified_shapes: bool = False
    """Its base model's architecture is unknown, so its shapes were not compared with it."""
    min_vllm: str = ""
    """Release of vLLM from which on engines apply all of its weights; empty: all do."""


def validate(
    directory: Path,
    *,
    base: BaseModel,
    max_rank: int,
    max_bytes: int,
    assume_base: bool = False,
    unverified_shapes: bool = False,
    adapter: str = "",
    fleet_ranks: Sequence[int] = (),
    text_rank: int | None = None,
    progress: Progress = silent,
) -> AdapterFacts:
    """Check the adapter and return its facts and warnings. Raises RejectedError with every finding, for the
    name `adapter`. Blocking: reads all weights once and reports to `progress`.

    `assume_base` skips the comparison of names with `base`, never that of shapes. `unverified_shapes` skips
    that of shapes where the architecture of `base` is unknown, and only there. `max_rank` is the highest
    rank that an engine accepts (`--max-lora-rank`); `fleet_ranks`, if given, lists those of all engines in
    the fleet, for the refusal. `text_rank` is the highest rank that an engine accepts whose vLLM finds an
    adapter of the language model alone in a multimodal model; 0: the fleet has none, None: it is unknown.
    `max_bytes` limits both files together.
    """
    label = adapter or str(directory)
    findings = Findings()
    check_files(directory, max_bytes=max_bytes, findings=findings)
    findings.refuse_if_any(label)
    try:
        facts = _check(
            directory,
            base,
            max_rank,
            fleet_ranks,
            findings,
            progress,
            text_rank=text_rank,
            assume_base=assume_base,
            unverified_shapes=unverified_shapes,
        )
    except OSError as error:
        findings.add(
            "unreadable", "The files cannot be read.", found=shown(str(error)), expected="readable files"
        )
        findings.refuse_if_any(label)
        raise
    findings.refuse_if_any(label)
    assert facts is not None
    return replace(facts, warnings=findings.warnings)


def _check(
    directory: Path,
    base: BaseModel,
    max_rank: int,
    fleet_ranks: Sequence[int],
    findings: Findings,
    progress: Progress,
    *,
    text_rank: int | None,
    assume_base: bool,
    unverified_shapes: bool,
) -> AdapterFacts | None:
    """None if there are errors in `findings`. Raises OSError."""
    config = read_config(directory / CONFIG_FILE, findings)
    tensors = _read_tensors(directory / WEIGHTS_FILE, findings)
    shapes = _shapes(base, findings, unverified=unverified_shapes)
    unverified = "shapes_unverified" in findings
    lora = None
    if config is not None:
        lora = check_config(config, max_rank=max_rank, fleet_ranks=fleet_ranks, findings=findings)
        if not assume_base:
            check_base_name(config, base, findings)
    vocabulary = shapes.vocabulary if shapes else vocabulary_of(base.config)
    check_tokenizer_files(directory, base=base, vocabulary=vocabulary, findings=findings)
    if tensors is None:
        return None
    check_dtypes(tensors, findings)
    paths: tuple[str, ...] = ()
    if lora is not None and shapes is not None:
        paths = check_tensors(tensors, lora=lora, shapes=shapes, text_rank=text_rank, findings=findings)
    elif lora is not None and unverified:
        paths = check_pairs(tensors, lora=lora, vocabulary=vocabulary, findings=findings)
    weights = magnitudes(directory / WEIGHTS_FILE, tensors, progress)
    check_weights(weights, lora=lora, paths=paths, base_config=base.config, findings=findings)
    if config is None or lora is None:
        return None
    named = config.get("base_model_name_or_path")
    return AdapterFacts(
        rank=lora.highest_rank,
        size_bytes=sum((directory / name).stat().st_size for name in FILES),
        modules=tuple(sorted({path.rpartition(".")[2] for path in paths})),
        tensors=len(tensors),
        dtypes=tuple(sorted({DTYPES[t.dtype] for t in tensors.values() if t.dtype in DTYPES})),
        base_named=named if isinstance(named, str) else None,
        unverified_shapes=unverified,
        min_vllm=TEXT_NAMES_SINCE if "text_names" in findings else "",
    )


def _shapes(base: BaseModel, findings: Findings, *, unverified: bool) -> BaseShapes | None:
    """None with a finding: a warning if the architecture is unknown and the caller takes that on himself."""
    trial = Findings()
    shapes = base_shapes(base.name, base.config, trial)
    if shapes is not None or not (unverified and "unknown_architecture" in trial):
        return base_shapes(base.name, base.config, findings)
    (finding,) = trial.all()
    findings.add(
        "shapes_unverified",
        f"Florin does not know the architecture of base model {base.name}, so the adapter's shapes were not "
        "compared with it.",
        found=finding.found,
        expected="a base model of a known architecture",
    )
    return None


def check_files(directory: Path, *, max_bytes: int, findings: Findings) -> None:
    """The checks that need only the directory listing; no file is opened."""
    try:
        if not directory.is_dir():
            findings.add(
                "directory_missing",
                "The adapter's directory does not exist.",
                found=shown(str(directory)),
                expected=f"a directory that holds {CONFIG_FILE} and {WEIGHTS_FILE}",
            )
            return
        adapter_folder(listed(directory)).check("in the directory", findings)
        sizes = {
            name: _check_file(directory, name, findings)
            for name in KNOWN
            if os.path.lexists(directory / name)
        }
    except OSError as error:
        findings.add(
            "unreadable", "The directory cannot be read.", found=shown(str(error)), expected="a readable one"
        )
        return
    if (size := sum(sizes.get(name, 0) for name in FILES)) > max_bytes:
        findings.add(
            "too_large",
            "The adapter is too large.",
            found=f"{size} bytes",
            expected=f"at most {max_bytes} bytes",
        )


def _check_file(directory: Path, name: str, findings: Findings) -> int:
    """Its size in bytes; 0 if there is a finding."""
    path = directory / name
    if not path.exists():
        findings.add(
            "file_missing",
            f"{name} is missing.",
            found="a broken link",
            expected=f"{CONFIG_FILE} and {WEIGHTS_FILE} in the directory",
        )
        return 0
    target = path.resolve()
    if not any(target.is_relative_to(root) for root in _roots(directory)):
        findings.add(
            "symlink_escapes",
            f"{name} is a link to outside the directory.",
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
    """Where links may point: the directory and, for a snapshot in the Hub's cache, the repository's blobs."""
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
            error.code,
            "The weight file is not a safetensors file that Florin accepts.",
            found=shown(str(error)),
            expected=error.expected,
        )
        return None
