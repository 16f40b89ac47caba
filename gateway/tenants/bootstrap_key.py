"""The bootstrap operator key, read from its file again when that changes: a leaked one can be replaced."""

from __future__ import annotations

import logging
from pathlib import Path

from adapters.security.renewal import Stamp, stamp
from adapters.security.secret_files import KeyFileError, read_key
from gateway.tenants.directory import Directory

log = logging.getLogger(__name__)


class BootstrapKeyFile:
    """A `Renewable` from which a directory gets its bootstrap key.

    Mutable: the stamp of the file last tried, and why it could not be used."""

    def __init__(self, path: Path, directory: Directory) -> None:
        self._path = path
        self._directory = directory
        self._tried: Stamp = ()
        self.trouble = ""
        """Why the file as it is now is not in use; empty if it is."""
        key = self.read_changed()
        if key is not None:
            directory.set_operator_key(key)

    def __repr__(self) -> str:
        return f"<BootstrapKeyFile {self._path}>"

    def read_again(self) -> None:
        """Try the file at the next check, even if it looks unchanged."""
        self._tried = ()

    def read_changed(self, now: float = 0.0) -> str | None:
        """See `Renewable`."""
        del now
        current = stamp(self._path)
        if current == self._tried:
            return None
        self._tried = current
        try:
            key = read_key(self._path)
        except KeyFileError as error:
            self.trouble = str(error)
            log.error(
                "FLORIN_OPERATOR_KEY_FILE not read; the key that was read before stays valid: %s", error
            )
            return None
        self.trouble = ""
        return None if self._directory.is_operator_key(key) else key

    def use(self, new: str) -> None:
        """Use this key from now on; the previous one, and sessions that began with it, are refused."""
        self._directory.set_operator_key(new)
        log.info("Bootstrap operator key reloaded from %s; the one before is no longer valid", self._path)
