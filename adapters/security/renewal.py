"""Reloads renewed certificates and tokens from their files without a restart.

An SSL context lives as long as its process. A renewed certificate is loaded into the context, so new
handshakes use it while open connections are unaffected.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from adapters.security.tls import Pair, TlsError, client_context, load, read_pair, server_context

log = logging.getLogger(__name__)

WATCH_SECONDS = 2.0
"""Seconds between checks of the files."""

Stamp = tuple[tuple[int, ...] | None, ...]
"""Inode, mtime, size and mode of each file; None if it is missing."""


class Renewable(Protocol):
    """Something loaded from files that may change on disk while it is in use."""

    def read_changed(self, now: float) -> Any | None:
        """The new contents, checked; None if unchanged or invalid. `now`: Unix seconds. Blocking."""
        ...

    def use(self, new: Any) -> None: ...


class Identity:
    """A certificate in use, and its files. `use` loads a renewed pair into every context that has it.

    Mutable state: the pair in use, the stamp of the files last tried, and why they were refused.
    """

    def __init__(self, name: str, certificate: Path, key: Path) -> None:
        """`name`: for logs and metrics. Raises TlsError."""
        self.name = name
        self.files = certificate, key
        self._tried = self._stamp()
        self.pair = read_pair(certificate, key)
        self.trouble = ""
        """Why the current files are not in use; empty if they are."""
        self._contexts: list[ssl.SSLContext] = []

    def __repr__(self) -> str:
        return f"<Identity {self.name} {self.pair.subject}>"

    def server_context(self, client_ca: Path | None) -> ssl.SSLContext:
        """Raises TlsError."""
        return self._keep(server_context(self.pair, client_ca))

    def client_context(self, ca: Path | None) -> ssl.SSLContext:
        """Raises TlsError."""
        return self._keep(client_context(ca, self.pair))

    def read_changed(self, now: float) -> Pair | None:
        """A new pair, if the files have changed since the last try and are valid. Blocking."""
        stamp = self._stamp()
        if stamp == self._tried:
            return None
        self._tried = stamp
        try:
            pair = read_pair(*self.files)
            if pair.expired(now):
                raise TlsError(f"{self.files[0]} expired on {day(pair.not_after)}.")
        except TlsError as error:
            self.trouble = str(error)
            log.error("Certificate %s not reloaded; the old one stays in use: %s", self.name, error)
            return None
        self.trouble = ""
        return pair if pair != self.pair else None

    def use(self, pair: Pair) -> None:
        """Call on the thread that makes connections, so that no context changes while a handshake begins."""
        for context in self._contexts:
            load(context, pair)
        self.pair = pair
        log.info("Certificate %s reloaded: %s, until %s", self.name, pair.subject, day(pair.not_after))

    def _keep(self, context: ssl.SSLContext) -> ssl.SSLContext:
        self._contexts.append(context)
        return context

    def _stamp(self) -> Stamp:
        return stamp(*self.files)


async def watch(
    renewables: Sequence[Renewable], looked: Callable[[], None] = lambda: None, seconds: float = WATCH_SECONDS
) -> None:
    """Reload changed files until cancelled. `looked` is called after each check."""
    import asyncio  # noqa: PLC0415  # the CLI, which reloads nothing, has no event loop

    while True:
        for renewable in renewables:
            new = await asyncio.to_thread(renewable.read_changed, time.time())
            if new is not None:
                renewable.use(new)
        looked()
        await asyncio.sleep(seconds)


def stamp(*files: Path) -> Stamp:
    """Follows links, because mounted secrets are replaced by switching one."""

    def one(path: Path) -> tuple[int, ...] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns, status.st_size, status.st_mode

    return tuple(one(path) for path in files)


def day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def warn_if_not_valid(identity: Identity, clock: Callable[[], float] = time.time) -> None:
    """Log a warning at start. An expired certificate does not prevent a start: some clients would still work,
    and a restart must not turn a forgotten renewal into an outage."""
    pair, now = identity.pair, clock()
    if pair.expired(now):
        log.error(
            "Certificate %s (%s) EXPIRED on %s; clients will refuse it. Renew it; no restart is needed.",
            *(identity.name, identity.files[0], day(pair.not_after)),
        )
    elif now < pair.not_before:
        log.error(
            "Certificate %s (%s) is not valid before %s; clients will refuse it. Check the system clock.",
            *(identity.name, identity.files[0], day(pair.not_before)),
        )
