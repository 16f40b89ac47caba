"""Plain LoRA from any adapter, against the base model's weights. Blocking, one module at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adapters.checks.findings import Findings, shown
from adapters.checks.shapes import base_shapes
from adapters.conversion.adapter_files import SourceAdapter, finite
from adapters.conversion.base_weights import BaseWeights
from adapters.conversion.changes import Change, Matrix, leading, plain
from adapters.conversion.factors import Factors, distance, spectrum
from adapters.conversion.refusals import Refusals
from adapters.conversion.result import HIGHEST_RANK, Plain, PlainModule
from adapters.conversion.steps import INTO_BASE, Step, steps_of
from adapters.progress import Progress, ProgressMeter, silent

CONVERTING = "convert"
_WIDTH = 128
"""Singular values that are computed at least, for the choice of a rank."""
_NUMERICAL_ZERO = 1e-6
"""Singular values below this share of the largest are rounding errors of float32."""


@dataclass(frozen=True, slots=True)
class Ranks:
    exact: int
    """The highest rank that is kept as it is."""
    svd: int
    """To which everything else is approximated."""


def convert(
    source: SourceAdapter,
    base: BaseWeights,
    *,
    rank: int | None = None,
    initial: SourceAdapter | None = None,
    progress: Progress = silent,
) -> Plain:
    """Modules that have a low rank already keep it, unless it is above `rank` (default: 512, the engines'
    limit); others get `rank` (default: the adapter's own). Raises RejectedError, OSError."""
    refusals = Refusals(source.directory)
    steps = steps_of(source, base, initial, refusals)
    for step in steps:
        if len(step.base.shape) != 2:
            _refuse_whole(step, refusals)
    refusals.raise_if_any()
    ranks = Ranks(rank or HIGHEST_RANK, rank or min(source.rank, HIGHEST_RANK))
    meter = ProgressMeter(CONVERTING, progress, sum(step.base.elements for step in steps))
    modules = []
    for step in steps:
        if len(step.base.shape) == 2 and (module := _converted(step, source, ranks, refusals)) is not None:
            modules.append(module)
        meter.add(step.base.elements)
    refusals.raise_if_any()
    if not modules:
        refusals.add(
            "no_effect",
            "The adapter changes nothing.",
            found=f"{len(steps)} modules, all as in the base model",
            expected="a change",
            remedy="Name the base model that the adapter was trained on with --base.",
        )
        refusals.raise_if_any()
    meter.tell()
    return Plain(tuple(_renamed(modules, base)), source.dtype)


def _renamed(modules: list[PlainModule], base: BaseWeights) -> list[PlainModule]:
    """Under names that engines know: an adapter of the language model alone has others than a multimodal
    model around it."""
    shapes = base_shapes("", base.config, Findings())
    if shapes is None:
        return modules
    return [replace(module, path=shapes.around(module.path) or module.path) for module in modules]


def _refuse_whole(step: Step, refusals: Refusals) -> None:
    """A vector (of a norm, or a bias) is harmless if it is what the base has."""
    change = step.make()
    assert not isinstance(change, Factors)
    if len(step.base.shape) == 1 and not change.block(0, step.base.shape[0])[1].any():
        return
    refusals.add(
        "not_linear",
        f"{shown(step.path)} was trained in full, and LoRA cannot express its change.",
        found=f"shape {list(step.base.shape)}",
        expected="linear layers and embeddings",
        remedy=INTO_BASE,
    )


def _converted(step: Step, source: SourceAdapter, ranks: Ranks, refusals: Refusals) -> PlainModule | None:
    """None if the module is as in the base model, or with a refusal."""
    update = step.make()
    if isinstance(update, Factors):
        if not finite(update.a, update.b):
            _refuse_infinite(step, refusals)
            return None
        return _from_factors(step, update, source.dtype, ranks)
    matrix = Matrix(update)
    if not np.isfinite(matrix.squared):
        _refuse_infinite(step, refusals)
        return None
    return _approximated(step, matrix, source.dtype, ranks) if matrix.squared else None


def _refuse_infinite(step: Step, refusals: Refusals) -> None:
    refusals.add(
        "weights_not_finite",
        f"The change of {shown(step.path)} is not finite.",
        found="NaN or an infinity",
        expected="finite weights, and no output whose weights are all zero under DoRA",
        remedy="Train it again; the run diverged.",
    )


def _from_factors(step: Step, factors: Factors, dtype: str, ranks: Ranks) -> PlainModule:
    singular = spectrum(factors)
    squared = float((singular.values**2).sum())
    kept = factors if factors.rank <= ranks.exact else singular.truncated(ranks.exact)
    stored = kept.rounded(dtype)
    same = kept is factors and np.array_equal(stored.a, factors.a) and np.array_equal(stored.b, factors.b)
    method = "svd" if kept is not factors else "unchanged" if same else "exact"
    lost = 0.0 if same else distance(factors, stored) ** 2
    changed = None if same else Matrix(_as_change(step, factors)).changed_squared
    return PlainModule(step.path, step.embedding, stored, method, squared, lost, changed, singular.values)


def _as_change(step: Step, factors: Factors) -> Change:
    return plain(step.base, factors, transposed=step.transposed)


def _approximated(step: Step, matrix: Matrix, dtype: str, ranks: Ranks) -> PlainModule:
    singular = leading(matrix, max(ranks.svd, _WIDTH))
    effective = int((singular.values > _NUMERICAL_ZERO * singular.values[0]).sum())
    kept = singular.truncated(min(ranks.svd, effective)).rounded(dtype)
    lost = matrix.residual_squared(kept.b, kept.a)
    if step.transposed:
        kept = Factors(kept.b.T, kept.a.T)
    method = "exact" if effective <= ranks.svd else "svd"
    complete = len(singular.values) == min(matrix.shape)
    beyond = 0.0 if complete else max(matrix.squared - float((singular.values**2).sum()), 0.0)
    changed = matrix.changed_squared
    return PlainModule(
        step.path, step.embedding, kept, method, matrix.squared, lost, changed, singular.values, beyond
    )
