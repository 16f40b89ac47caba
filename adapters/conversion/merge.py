"""Several plain adapters of one base model as one, and an adapter at a lower rank: neither needs the base
model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adapters.checks.findings import shown
from adapters.conversion.adapter_files import SourceAdapter, finite
from adapters.conversion.factors import Factors, distance, joined, rank_keeping, spectrum
from adapters.conversion.refusals import Refusals
from adapters.conversion.result import HIGHEST_RANK, Plain, PlainModule
from adapters.conversion.steps import PLAIN_INITS
from adapters.progress import Progress, ProgressMeter, silent

MERGING, COMPRESSING = "merge", "compress"


def merge(
    parts: Sequence[tuple[SourceAdapter, float]], *, rank: int | None = None, progress: Progress = silent
) -> Plain:
    """The weighted sum: at the sum of the ranks it is exact; above `rank` (default: 512) it is approximated.
    Raises RejectedError, OSError."""
    refusals = Refusals(" + ".join(str(source.directory) for source, _ in parts))
    _check_parts(parts, refusals)
    paths = list(dict.fromkeys(path for source, _ in parts for path in source.modules))
    parts = [(source, weight) for source, weight in parts if weight]
    dtypes = {source.dtype for source, _ in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else "F32"
    meter = ProgressMeter(MERGING, progress, len(paths))
    modules = []
    for path in paths:
        there = [(source.modules[path], weight) for source, weight in parts if path in source.modules]
        meter.add(1)
        if not there:
            continue
        if len({(m.b.shape[0], m.a.shape[1], m.embedding) for m, _ in there}) > 1:
            refusals.add(
                "shape_mismatch",
                f"The adapters' matrices for {shown(path)} have different shapes.",
                found=", ".join(f"{m.b.shape[0]} by {m.a.shape[1]}" for m, _ in there),
                expected="one shape",
                remedy="Merge adapters of one base model.",
            )
            refusals.raise_if_any()
        summed = joined([(module.factors(), weight) for module, weight in there])
        if len(there) == 1 and there[0][1] > 0:
            summed = Factors(summed.a, there[0][0].b.all(), summed.scaling)  # not rounded again
        _check_finite(path, summed, refusals)
        modules.append(_at(path, summed, rank or HIGHEST_RANK, dtype, embedding=there[0][0].embedding))
    return Plain(tuple(modules), dtype)


def compress(
    source: SourceAdapter,
    *,
    rank: int | None = None,
    energy: float | None = None,
    progress: Progress = silent,
) -> Plain:
    """Modules above `rank` at that rank; with `energy`, each at the smallest rank that keeps this share of
    its squared singular values. A module that is low enough stays as it is, so compressing twice changes
    nothing. Raises RejectedError, OSError."""
    refusals = Refusals(source.directory)
    _check_plain(source, refusals)
    refusals.raise_if_any()
    meter = ProgressMeter(COMPRESSING, progress, len(source.modules))
    modules = []
    for path, module in source.modules.items():
        factors = module.factors()
        _check_finite(path, factors, refusals)
        target_rank = rank or factors.rank
        if energy is not None:
            target_rank = min(target_rank, rank_keeping(spectrum(factors).values, energy))
        modules.append(_at(path, factors, target_rank, source.dtype, embedding=module.embedding))
        meter.add(1)
    return Plain(tuple(modules), source.dtype)


def _at(path: str, factors: Factors, rank: int, dtype: str, *, embedding: bool) -> PlainModule:
    singular = spectrum(factors)
    kept = factors if factors.rank <= rank else singular.truncated(rank)
    stored = kept.rounded(dtype)
    same = kept is factors and np.array_equal(stored.a, factors.a) and np.array_equal(stored.b, factors.b)
    method = "svd" if kept is not factors else "unchanged" if same else "exact"
    lost = 0.0 if same else distance(factors, stored) ** 2
    squared = float((singular.values**2).sum())
    return PlainModule(path, embedding, stored, method, squared, lost, None, singular.values)


def _check_parts(parts: Sequence[tuple[SourceAdapter, float]], refusals: Refusals) -> None:
    for source, _ in parts:
        _check_plain(source, refusals)
    bases = {str(source.config.get("base_model_name_or_path")) for source, _ in parts}
    if len(bases) > 1:
        refusals.add(
            "base_mismatch",
            "The adapters name different base models.",
            found=" and ".join(map(shown, sorted(bases))),
            expected="one base model",
            remedy="Merge adapters of one base model; if it only has two names, make "
            "`base_model_name_or_path` in their configs the same.",
        )
    if not any(weight for _, weight in parts):
        refusals.add(
            "no_effect",
            "All weights are 0.",
            found="0",
            expected="a weight other than 0",
            remedy="Give weights as DIR:0.5.",
        )
    refusals.raise_if_any()


def _check_plain(source: SourceAdapter, refusals: Refusals) -> None:
    init = source.config.get("init_lora_weights", True)
    changed_base = isinstance(init, str) and init.lower() not in PLAIN_INITS
    if not source.is_plain or source.config.get("ensure_weight_tying") or changed_base:
        refusals.add(
            "not_plain",
            f"{source.directory} is not plain LoRA.",
            found="DoRA, whole modules, trained tokens, or an initialization that changed the base model",
            expected="lora_A and lora_B alone",
            remedy="Convert it first: `florin adapter convert DIR --base BASE --out OUT`.",
        )
    elif not source.modules:
        refusals.add(
            "no_tensors",
            f"{source.directory} has no LoRA weights.",
            found="no lora_A",
            expected="lora_A and lora_B",
            remedy="Name an adapter's directory.",
        )


def _check_finite(path: str, factors: Factors, refusals: Refusals) -> None:
    if not finite(factors.a, factors.b):
        refusals.add(
            "weights_not_finite",
            f"The weights of {shown(path)} are not finite.",
            found="NaN or an infinity",
            expected="finite weights",
            remedy="Train it again; the run diverged.",
        )
        refusals.raise_if_any()
