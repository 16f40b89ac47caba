"""Low-rank matrices as products of factors. Pure; a product is never computed in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adapters.conversion.arrays import Floats, rounded

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Factors:
    """The change `scaling · b @ a` of one module's weight, (out, in) as in PEFT."""

    a: Floats
    """(rank, in): lora_A."""
    b: Floats
    """(out, rank): lora_B."""
    scaling: float = 1.0

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        return self.b.shape[0], self.a.shape[1]

    def rounded(self, dtype: str) -> Factors:
        """As a file of this type holds it."""
        return Factors(rounded(self.a, dtype), rounded(self.b, dtype), self.scaling)

    def dense(self) -> Floats:
        return np.asarray(self.scaling * (self.b @ self.a), np.float32)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """A thin singular value decomposition u · diag(values) · vt, largest value first."""

    u: Floats
    values: Doubles
    vt: Floats

    def truncated(self, rank: int) -> Factors:
        """The best approximation of this rank in the Frobenius norm (Eckart and Young, 1936). Both factors
        get the root of each value, so that neither leaves the range of float16 first."""
        root = np.sqrt(self.values[:rank]).astype(np.float32)
        return Factors(root[:, None] * self.vt[:rank], self.u[:, :rank] * root)


def spectrum(factors: Factors) -> Spectrum:
    """Exact, by QR decompositions of both factors: costs (in + out) · rank², not in · out · rank."""
    qb, rb = np.linalg.qr(factors.b.astype(np.float64))
    qa, ra = np.linalg.qr(factors.a.T.astype(np.float64))
    u, values, vt = np.linalg.svd(factors.scaling * (rb @ ra.T), full_matrices=False)
    return Spectrum((qb @ u).astype(np.float32), values, (vt @ qa.T).astype(np.float32))


def norm(factors: Factors) -> float:
    """Frobenius norm of the product, without computing it."""
    rb = np.linalg.qr(factors.b.astype(np.float64))[1]
    ra = np.linalg.qr(factors.a.T.astype(np.float64))[1]
    return float(abs(factors.scaling) * np.linalg.norm(rb @ ra.T))


def joined(parts: Sequence[tuple[Factors, float]]) -> Factors:
    """The weighted sum, exactly, at the sum of the ranks. The first part's scaling remains the scaling, so
    that equal parts are not rounded."""
    scaling = next((abs(f.scaling * weight) for f, weight in parts if f.scaling * weight), 1.0)
    return Factors(
        np.concatenate([f.a for f, _ in parts]),
        np.concatenate([f.b * np.float32(f.scaling * weight / scaling) for f, weight in parts], axis=1),
        scaling,
    )


def distance(first: Factors, second: Factors) -> float:
    """Frobenius norm of the difference."""
    return norm(joined([(first, 1.0), (second, -1.0)])) if first is not second else 0.0


def rank_keeping(values: Doubles, energy: float) -> int:
    """The smallest rank that keeps this share of the squared singular values; at least 1."""
    kept = np.cumsum(values**2)
    if not len(kept) or kept[-1] == 0:
        return 1
    return min(int(np.searchsorted(kept, energy * kept[-1] * (1 - 1e-12))) + 1, len(values))
