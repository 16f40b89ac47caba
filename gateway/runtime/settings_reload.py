"""Reloads settings from `florin.yaml` on SIGHUP, and secrets when the file that holds one changes. (The
environment of a process cannot change, but the files that it names can.)

Changes to settings marked `RELOAD` in `gateway.config` take effect; for others, a warning says that they need
a restart. An invalid file changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.config import RELOADABLE, SECRET, Settings, SettingsError, load_settings, secret_files

log = logging.getLogger(__name__)

SECRET_SECONDS: Final = 2.0
"""Between two looks at the files of secrets."""


@dataclass(frozen=True, slots=True)
class Reload:
    settings: Settings
    """In effect from now on."""
    changed: tuple[str, ...] = ()
    """Names of settings that take effect."""
    waiting: tuple[str, ...] = ()
    """Names of changed settings that need a restart."""
    refused: str = ""
    """Why nothing was changed."""

    @property
    def message(self) -> dict[str, Any]:
        """The message to workers, as JSON: see `received`."""
        return {"changed": {n: getattr(self.settings, n) for n in self.changed}, "refused": self.refused}


def received(current: Settings, message: dict[str, Any]) -> Reload:
    """The reload in a message from the parent process."""
    changed = dict(message["changed"])
    return Reload(current.model_copy(update=changed), tuple(changed), refused=message["refused"])


class SecretWatch:
    """Notices when a file that holds a secret was changed, or replaced as Kubernetes does. Mutable: what was
    seen last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files: tuple[Path, ...] = ()
        self._seen: dict[Path, tuple[int, ...]] = {}
        self._due = 0.0
        self.follow()

    def follow(self) -> None:
        """Watch the files that the settings name now."""
        with contextlib.suppress(Exception):  # the reload reports what is wrong with florin.yaml
            self._files = tuple(secret_files().values())
        self._seen = {path: _stamp(path) for path in self._files}

    def changed(self) -> bool:
        """Whether one has changed since the last call. Looks every few seconds at most."""
        now = self._clock()
        if not self._files or now < self._due:
            return False
        self._due = now + SECRET_SECONDS
        before, self._seen = self._seen, {path: _stamp(path) for path in self._files}
        return self._seen != before


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def reread(current: Settings, *, only: Collection[str] = Settings.model_fields) -> Reload:
    """Read the settings and log what has changed of `only` since `current`. Blocks."""
    try:
        loaded = load_settings()
    except SettingsError as error:
        log.error("Settings not reloaded: %s", error)
        return Reload(current, refused=str(error))
    reload = compare(current, loaded, only)
    for name in reload.changed:
        if name in SECRET:
            log.info("%s changed", variable(name))
        else:
            log.info(
                "%s changed from %r to %r", variable(name), getattr(current, name), getattr(loaded, name)
            )
    if reload.waiting:
        log.warning("Changed settings that need a restart: %s", ", ".join(map(variable, reload.waiting)))
    log.info("Settings reloaded: %d changed", len(reload.changed))
    return reload


def compare(current: Settings, loaded: Settings, only: Collection[str] = Settings.model_fields) -> Reload:
    differ = [name for name in only if getattr(current, name) != getattr(loaded, name)]
    if not loaded.redis_url:  # `current` has the embedded server's URL
        differ = [name for name in differ if name != "redis_url"]
    changed = tuple(name for name in differ if name in RELOADABLE)
    return Reload(
        current.model_copy(update={name: getattr(loaded, name) for name in changed}),
        changed,
        tuple(name for name in differ if name not in RELOADABLE),
    )


def variable(name: str) -> str:
    return f"FLORIN_{name.upper()}"
