"""The change of one base weight as a matrix that is computed block by block, and its best low-rank
approximation.

A change may be as large as lm_head, 128,256 by 4,096: a small one is kept in memory, a large one is computed
again for each product with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adapters.conversion.arrays import Floats
from adapters.conversion.factors import Factors, Spectrum
from adapters.conversion.weight_files import StoredTensor

_BLOCK_ELEMENTS = 8 * 1024 * 1024
_KEPT_ELEMENTS = 128 * 1024 * 1024
"""512 MiB as float32: more than any layer of an 8B model but its embeddings."""
_EXACT_UP_TO = 512
"""Smaller matrices (by the shorter side) are decomposed exactly."""
_OVERSAMPLING = 16
_ITERATIONS = 2

Block = Callable[[int, int], tuple[Floats, Floats]]
"""`block(start, stop)` → these rows of the base weight as it is stored, and of its change."""


class Change(Protocol):
    @property
    def base(self) -> StoredTensor: ...
    def block(self, start: int, stop: int) -> tuple[Floats, Floats]: ...


@dataclass(frozen=True, slots=True)
class Saved:
    """A module that was trained in full: `saved` replaces `base`."""

    base: StoredTensor
    saved: StoredTensor

    def block(self, start: int, stop: int) -> tuple[Floats, Floats]:
        weight = self.base.rows(start, stop)
        return weight, self.saved.rows(start, stop) - weight


@dataclass(frozen=True, slots=True)
class Rescaled:
    """LoRA, and DoRA (arXiv:2402.09353): rows · (W + left @ right) · columns - W, in the orientation in
    which W is stored. Plain LoRA has ones for both."""

    base: StoredTensor
    left: Floats
    """(stored rows, rank), with the scaling worked in."""
    right: Floats
    """(rank, stored columns)"""
    rows: Floats
    columns: Floats

    def block(self, start: int, stop: int) -> tuple[Floats, Floats]:
        weight = self.base.rows(start, stop)
        factor = self.rows[start:stop, None] * self.columns[None, :]
        # (factor - 1) · W is exact where the factor is 1; W' - W would lose the small change in W's digits.
        return weight, (factor - 1) * weight + factor * (self.left[start:stop] @ self.right)


def plain(base: StoredTensor, factors: Factors, *, transposed: bool) -> Rescaled:
    """`transposed`: W is stored as (in, out), as embeddings and Conv1D layers are."""
    scaled = np.asarray(factors.b * np.float32(factors.scaling))
    left, right = (factors.a.T, scaled.T) if transposed else (scaled, factors.a)
    ones = np.ones(max(base.shape), np.float32)
    return Rescaled(base, left, right, ones[: base.shape[0]], ones[: base.shape[1]])


def dora(base: StoredTensor, factors: Factors, magnitude: Floats, *, transposed: bool) -> Rescaled:
    """DoRA as PEFT computes it: W' = magnitude / ‖W + scaling · BA‖ · (W + scaling · BA), with one norm for
    each output (for embeddings: for each dimension). `magnitude`: (out,)."""
    unscaled = plain(base, factors, transposed=transposed)
    squares = np.zeros(len(magnitude))
    for start, stop in spans(base.shape):
        weight, delta = unscaled.block(start, stop)
        summed = np.square(weight + delta, dtype=np.float64)
        if transposed:
            squares += summed.sum(axis=0)
        else:
            squares[start:stop] = summed.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = (magnitude / np.sqrt(squares)).astype(np.float32)
    rows, columns = (unscaled.rows, factor) if transposed else (factor, unscaled.columns)
    return Rescaled(base, unscaled.left, unscaled.right, rows, columns)


def spans(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Blocks of rows."""
    step = max(1, _BLOCK_ELEMENTS // max(math.prod(shape[1:]), 1))
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


class Matrix:
    """A change as a matrix, (rows, columns) as W is stored."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self.shape = (change.base.shape[0], change.base.shape[1])
        self._kept: Floats | None = None
        keep = math.prod(self.shape) <= _KEPT_ELEMENTS
        kept = np.empty(self.shape, np.float32) if keep else None
        self.squared = 0.0
        """Squared Frobenius norm of the change, and of the changed weight:"""
        self.changed_squared = 0.0
        for start, stop in spans(self.shape):
            weight, delta = change.block(start, stop)
            self.squared += _squared(delta)
            self.changed_squared += _squared(weight + delta)
            if kept is not None:
                kept[start:stop] = delta
        self._kept = kept

    def blocks(self) -> Iterator[tuple[int, int, Floats]]:
        for start, stop in spans(self.shape):
            delta = self._change.block(start, stop)[1] if self._kept is None else self._kept[start:stop]
            yield start, stop, delta

    def times(self, right: Floats) -> Floats:
        return np.concatenate([block @ right for _, _, block in self.blocks()])

    def transposed_times(self, left: Floats) -> Floats:
        total = np.zeros((self.shape[1], left.shape[1]), np.float32)
        for start, stop, block in self.blocks():
            total += block.T @ left[start:stop]
        return total

    def residual_squared(self, left: Floats, right: Floats) -> float:
        """Squared Frobenius norm of the change minus left @ right: computed, not estimated."""
        return math.fsum(_squared(block - left[start:stop] @ right) for start, stop, block in self.blocks())


def leading(matrix: Matrix, rank: int) -> Spectrum:
    """The leading singular values and vectors: exact for small matrices, else by randomised subspace
    iteration (Halko, Martinsson and Tropp, arXiv:0909.4061), seeded, so that the same input gives the same
    output."""
    size = rank + _OVERSAMPLING
    if min(matrix.shape) <= max(_EXACT_UP_TO, size):
        u, values, vt = np.linalg.svd(
            np.concatenate([block for _, _, block in matrix.blocks()]), full_matrices=False
        )
        return Spectrum(u, values.astype(np.float64), vt)
    start = np.random.default_rng(0).standard_normal((matrix.shape[1], size), np.float32)
    samples = matrix.times(start)
    for _ in range(_ITERATIONS):
        other = np.linalg.qr(matrix.transposed_times(np.linalg.qr(samples)[0]))[0]
        samples = matrix.times(other)
    basis = np.linalg.qr(samples)[0]
    u, values, vt = np.linalg.svd(matrix.transposed_times(basis).T, full_matrices=False)
    return Spectrum(basis @ u, values.astype(np.float64), vt)


def _squared(values: Floats) -> float:
    """Rows in float32, their sum in float64: one part in 10⁷, thirty times faster than all in float64."""
    return float(np.einsum("ij,ij->i", values, values).sum(dtype=np.float64))
