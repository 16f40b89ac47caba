"""The salts that keep the prefix caches of tenants and versions apart, and the rotation of their secret.

A new secret makes all cached prompts unreachable. So that they do not go cold all at once, each owner of a
cache takes up its new salt at its own time within a given period, and keeps the previous one until then."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_MOST = 10_000
"""Salts that are remembered; beyond that, all are computed again."""


@dataclass(frozen=True, slots=True)
class _Rotation:
    previous: bytes
    began: float
    seconds: float

    def reached(self, owner: str, now: float) -> bool:
        """Whether this owner has taken up the new secret. The same on every worker."""
        share = int.from_bytes(hashlib.sha256(owner.encode()).digest()[:4]) / (1 << 32)
        return now >= self.began + share * self.seconds


@dataclass(slots=True)
class CacheSalts:
    """Mutable: the secret, and what was computed from it. On the worker's event loop."""

    secret: bytes
    clock: Callable[[], float] = time.monotonic
    _salts: dict[str, str] = field(default_factory=dict)
    _rotation: _Rotation | None = None
    _old: dict[str, str] = field(default_factory=dict)
    """Salts of the previous secret, of owners whose moment has not come."""

    def rotate(self, secret: bytes, seconds: float) -> None:
        """Use another secret, for everybody once `seconds` are over. A second rotation meanwhile ends the
        first."""
        if secret == self.secret:
            return
        self._rotation = _Rotation(self.secret, self.clock(), seconds)
        self.secret, self._salts, self._old = secret, {}, {}

    def of(self, owner: str) -> str:
        rotation = self._rotation
        if rotation is None:  # nearly always, for each request
            salt = self._salts.get(owner)
            if salt is not None:
                return salt
        else:
            now = self.clock()
            if now >= rotation.began + rotation.seconds:
                self._rotation, self._old = None, {}
            elif not rotation.reached(owner, now):
                return _salt(self._old, rotation.previous, owner)
        return _salt(self._salts, self.secret, owner)


def _salt(known: dict[str, str], secret: bytes, owner: str) -> str:
    salt = known.get(owner)
    if salt is None:
        if len(known) >= _MOST:
            known.clear()
        salt = known[owner] = hmac.new(secret, owner.encode(), hashlib.sha256).hexdigest()
    return salt
