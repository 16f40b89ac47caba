"""Mutual authentication between Florin and its engines: a private CA, a client certificate, a bearer token.
Each installation has one set, used by the gateway and the agents.

Certificate and token are renewed from their files without a restart.
"""

from __future__ import annotations

import logging
import ssl
import weakref
from pathlib import Path
from typing import Literal

import aiohttp

from adapters.security.renewal import Identity, Renewable, stamp
from adapters.security.secret_files import NotPrivateError, read_secret
from adapters.security.tls import TlsError, client_context

log = logging.getLogger(__name__)

_TOKEN_BYTES = 4096


class TokenFile:
    """A bearer token in a file of mode 0600, sent with every request of the sessions it is attached to,
    unless a request sets its own authorization.

    Mutable state: the token, the stamp of the file last tried, the sessions.
    """

    def __init__(self, path: Path) -> None:
        """Raises TlsError."""
        self.path = path
        self._tried = stamp(path)
        self._token = read_token(path)
        self._sessions: weakref.WeakSet[aiohttp.ClientSession] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<TokenFile {self.path}>"

    @property
    def authorization(self) -> str:
        return f"Bearer {self._token}"

    def attach(self, session: aiohttp.ClientSession) -> None:
        self._sessions.add(session)
        session.headers["authorization"] = self.authorization

    def read_changed(self, now: float) -> str | None:
        """See `renewal.Renewable`."""
        del now
        file_stamp = stamp(self.path)
        if file_stamp == self._tried:
            return None
        self._tried = file_stamp
        try:
            token = read_token(self.path)
        except TlsError as error:
            log.error("Engine token not reloaded; the old one stays in use: %s", error)
            return None
        return token if token != self._token else None

    def use(self, new: str) -> None:
        self._token = new
        for session in self._sessions:
            self.attach(session)
        log.info("Engine token reloaded from %s", self.path)


def read_token(path: Path) -> str:
    """Raises TlsError."""
    try:
        token = read_secret(path, limit=_TOKEN_BYTES).decode("ascii", errors="replace").strip()
    except NotPrivateError as error:
        raise TlsError(f"{error}.") from error
    except OSError as error:
        raise TlsError(f"the token file {path} cannot be read: {error.strerror}.") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise TlsError(
            f"{path} contains no token: it must be one line of printable characters without spaces."
        )
    return token


class EngineAccess:
    """TLS and authentication for connections to engines and agents."""

    def __init__(
        self,
        *,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        token: Path | None = None,
    ) -> None:
        """`certificate`: the certificate and key files. Raises TlsError."""
        self.identity = Identity("engine client", *certificate) if certificate else None
        self.token = TokenFile(token) if token else None
        self.ssl: ssl.SSLContext | Literal[True] = True
        if self.identity:
            self.ssl = self.identity.client_context(ca)
        elif ca:
            self.ssl = client_context(ca)

    @property
    def renewables(self) -> tuple[Renewable, ...]:
        return tuple(renewable for renewable in (self.identity, self.token) if renewable)

    def authorization(self) -> str:
        """The `authorization` header of every request; empty: none."""
        return self.token.authorization if self.token else ""

    def authorize(self, session: aiohttp.ClientSession) -> aiohttp.ClientSession:
        if self.token:
            self.token.attach(session)
        return session
