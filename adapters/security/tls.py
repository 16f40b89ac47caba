"""Loads TLS certificates into SSL contexts and reloads renewed ones without a restart.

A context lives as long as its process. A renewed certificate is loaded into the context, so new handshakes
use it while open connections are unaffected. Certificate and key are read once, checked together, and loaded
from the same bytes, so a certificate and a key from different renewals never mix in a live context.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from adapters.security.secret_files import NotPrivateError, read_secret

log = logging.getLogger(__name__)

WATCH_SECONDS = 2.0
"""Seconds between checks of the files."""
_CA_BYTES = 4 * 1024 * 1024

Stamp = tuple[tuple[int, ...] | None, ...]
"""Inode, mtime, size and mode of each file; None if it is missing."""


class TlsError(Exception):
    """A certificate, key or CA cannot be used; the message says why, without the setting's name."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain with its matching key, both checked to load into a context."""

    chain: bytes
    """PEM: the certificates, then the key."""
    not_before: float
    not_after: float
    """Unix seconds."""
    subject: str

    def expired(self, now: float) -> bool:
        return now >= self.not_after


def read_pair(certificate: Path, key: Path) -> Pair:
    """Raises TlsError."""
    from cryptography import x509  # noqa: PLC0415  # not needed without TLS
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # likewise

    chain = _read(certificate, "certificate")
    try:
        leaf = x509.load_pem_x509_certificate(chain)
    except ValueError as error:
        raise TlsError(f"{certificate} is not a certificate in PEM format.") from error
    try:
        secret = read_secret(key)
    except NotPrivateError as error:
        raise TlsError(f"{error}.") from error
    except OSError as error:
        raise TlsError(f"the key {key} cannot be read: {error.strerror}.") from error
    try:
        private = serialization.load_pem_private_key(secret, password=None)
    except TypeError as error:
        raise TlsError(
            f"{key} is encrypted, and Florin cannot ask for the passphrase: decrypt it with `openssl pkey`."
        ) from error
    except ValueError as error:
        raise TlsError(f"{key} is not a private key in PEM format.") from error
    if _spki(private.public_key()) != _spki(leaf.public_key()):
        raise TlsError(f"the key {key} does not belong to the certificate {certificate}.")
    pair = Pair(
        chain=chain.rstrip() + b"\n" + secret,
        not_before=leaf.not_valid_before_utc.timestamp(),
        not_after=leaf.not_valid_after_utc.timestamp(),
        subject=leaf.subject.rfc4514_string(),
    )
    try:
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except ssl.SSLError as error:  # such as a key that is too short, or a chain in the wrong order
        raise TlsError(f"{certificate} and {key} cannot be used ({error.reason or error}).") from error
    return pair


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Use this pair in all future handshakes. OpenSSL needs a file, so it gets a private temporary one."""
    with _hidden_file(pair.chain) as path:
        context.load_cert_chain(path)


def server_context(pair: Pair, client_ca: Path | None) -> ssl.SSLContext:
    """A server context for TLS 1.2 and later. With `client_ca`, clients must present a certificate that it
    signed. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load(context, pair)
    if client_ca:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path | None, pair: Pair | None = None) -> ssl.SSLContext:
    """A client context for TLS 1.2 and later that verifies host names. Trusts only `ca`, or without one the
    system's CAs (SSL_CERT_FILE). Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        _trust(context, ca)
    else:
        context.load_default_certs()
    if pair:
        load(context, pair)
    return context


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


class Renewable(Protocol):
    """Something loaded from files that may change on disk while it is in use."""

    def read_changed(self, now: float) -> Any | None:
        """The new contents, checked; None if unchanged or invalid. `now`: Unix seconds. Blocking."""
        ...

    def use(self, new: Any) -> None: ...


async def watch(
    renewables: Sequence[Renewable], looked: Callable[[], None] = lambda: None, seconds: float = WATCH_SECONDS
) -> None:
    """Reload changed files until cancelled. `looked` is called after each check."""
    import asyncio  # noqa: PLC0415  # the CLI, which reloads nothing, has no event loop

    while True:
        for one in renewables:
            new = await asyncio.to_thread(one.read_changed, time.time())
            if new is not None:
                one.use(new)
        looked()
        await asyncio.sleep(seconds)


def stamp(*files: Path) -> Stamp:
    """Follows links, because mounted secrets are replaced by switching one."""

    def one(path: Path) -> tuple[int, ...] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns, found.st_size, found.st_mode

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


def explain(error: BaseException, url: str = "") -> str:
    """Explain a failed handshake; empty if `error` is not a TLS error. `url`: the URL called."""
    found = _tls_error(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {found.verify_message.rstrip('.')}"
    if found is None:
        # In TLS 1.3 the client's certificate is verified after the handshake, and the alert is easily lost.
        if url.startswith("https://") and (_is_reset(error) or _is_disconnected(error)):
            return "it closed the connection; it may require a client certificate"
        return ""
    reason = found.reason or ""
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "it does not speak TLS; use http:// in the URL"
    if "CERTIFICATE_REQUIRED" in reason:
        return "it requires a client certificate"
    if "ALERT" in reason or "CERTIFICATE" in reason:
        return f"it rejected the client certificate ({reason.replace('_', ' ').lower()})"
    return f"TLS failed ({(reason or str(found)).replace('_', ' ').lower()})"


def _is_reset(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ECONNRESET, errno.EPIPE}


def _is_disconnected(error: BaseException) -> bool:
    import aiohttp  # noqa: PLC0415  # the CLI does not use it

    return isinstance(error, aiohttp.ServerDisconnectedError)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # HTTP clients wrap OpenSSL's error in subclasses without details; the original is the cause.
        if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_CA_BYTES)
    except OSError as error:
        raise TlsError(f"the {what} {path} cannot be read: {error.strerror}.") from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(cadata=_read(ca, "CA").decode("ascii", errors="replace"))
    except ssl.SSLError as error:
        raise TlsError(f"{ca} contains no CA certificate in PEM format.") from error


def _spki(key: object) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # see above

    return key.public_bytes(  # type: ignore[attr-defined,no-any-return]  # every public key has it; the union is long
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@contextmanager
def _hidden_file(content: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("florin-certificate", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile(prefix="florin-") as file:  # mode 0600
            file.write(content)
            file.flush()
            yield file.name
