"""Certificates: read, checked, put into an SSL context, and renewed there without a restart.

A context lives as long as its process. A renewed certificate is loaded into it, so new handshakes present the
new one and open connections stay as they are. Certificate and key are read once, checked together, and loaded
from those very bytes: files that are replaced one after the other never meet half-way in a live context.
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
"""Between looks at the files."""
_CA_BYTES = 4 * 1024 * 1024

Stamp = tuple[tuple[int, ...] | None, ...]
"""Of each file: inode, time of change, size, mode; None: it is not there."""


class TlsError(Exception):
    """A certificate, key or CA cannot be used; the message says why, without the setting's name."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain with its key, checked: they fit, and a context takes them."""

    chain: bytes
    """PEM, the key after the certificates."""
    not_before: float
    not_after: float
    """Unix seconds."""
    subject: str

    def expired(self, now: float) -> bool:
        return now >= self.not_after


def read_pair(certificate: Path, key: Path) -> Pair:
    """Raises TlsError."""
    from cryptography import x509  # noqa: PLC0415  # a gateway without TLS need not load it
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
            f"{key} is protected by a passphrase, which nobody can type at a restart: decrypt it with "
            "`openssl pkey`."
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
    except ssl.SSLError as error:  # a key too small for today, a chain in the wrong order
        raise TlsError(f"{certificate} and {key} cannot be used ({error.reason or error}).") from error
    return pair


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Present this pair in all handshakes from now on. OpenSSL wants a file: it gets one that nobody else
    sees."""
    with _hidden_file(pair.chain) as path:
        context.load_cert_chain(path)


def server_context(pair: Pair, client_ca: Path | None) -> ssl.SSLContext:
    """TLS 1.2 at least. With `client_ca`, clients must show a certificate that it has signed. Raises
    TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load(context, pair)
    if client_ca:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path | None, pair: Pair | None = None) -> ssl.SSLContext:
    """TLS 1.2 at least, names checked. Trusts `ca` alone; without one, what the system trusts
    (SSL_CERT_FILE). Raises TlsError."""
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
    """A certificate in use, and its files. `look` takes a renewed pair into every context that has it.

    Mutable state: the pair in use, the stamp of the files that were last tried, and why they were refused.
    """

    def __init__(self, name: str, certificate: Path, key: Path) -> None:
        """`name`: for logs and metrics. Raises TlsError."""
        self.name = name
        self.files = certificate, key
        self._tried = self._stamp()
        self.pair = read_pair(certificate, key)
        self.trouble = ""
        """Why what the files hold now is not in use; empty: it is."""
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
        """A new pair, if the files have changed since they were last tried and are good. Blocking."""
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
            log.error("The new %s certificate is not used, and the old one stays: %s", self.name, error)
            return None
        self.trouble = ""
        return pair if pair != self.pair else None

    def use(self, pair: Pair) -> None:
        """On the thread that makes connections: a context is not changed while a handshake begins."""
        for context in self._contexts:
            load(context, pair)
        self.pair = pair
        log.info("The %s certificate was renewed: %s, until %s", self.name, pair.subject, day(pair.not_after))

    def _keep(self, context: ssl.SSLContext) -> ssl.SSLContext:
        self._contexts.append(context)
        return context

    def _stamp(self) -> Stamp:
        return stamp(*self.files)


class Renewable(Protocol):
    """What may change on disk while it is in use."""

    def read_changed(self, now: float) -> Any | None:
        """What is new, read and checked; None: nothing, or nothing good. `now`: Unix seconds. Blocking."""
        ...

    def use(self, new: Any) -> None: ...


async def watch(
    renewables: Sequence[Renewable], looked: Callable[[], None] = lambda: None, seconds: float = WATCH_SECONDS
) -> None:
    """For ever; cancel to stop. `looked` is called after each look."""
    import asyncio  # noqa: PLC0415  # the command line, which renews nothing, runs no event loop

    while True:
        for one in renewables:
            new = await asyncio.to_thread(one.read_changed, time.time())
            if new is not None:
                one.use(new)
        looked()
        await asyncio.sleep(seconds)


def stamp(*files: Path) -> Stamp:
    """Follows links: mounted secrets are replaced by turning one."""

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
    """At start. An expired certificate does not keep a process from starting: some clients would still be
    served, and a restart must not turn a forgotten renewal into an outage."""
    pair, now = identity.pair, clock()
    if pair.expired(now):
        log.error(
            "The %s certificate %s EXPIRED on %s: clients will refuse it. Renew it; a restart is not needed.",
            *(identity.name, identity.files[0], day(pair.not_after)),
        )
    elif now < pair.not_before:
        log.error(
            "The %s certificate %s is not valid before %s: clients will refuse it. Is the clock right?",
            *(identity.name, identity.files[0], day(pair.not_before)),
        )


def explain(error: BaseException, url: str = "") -> str:
    """What a failed handshake means, in words; empty: `error` is not about TLS. `url`: what was called."""
    found = _tls_error(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {found.verify_message.rstrip('.')}"
    if found is None:
        # In TLS 1.3 the client's certificate is looked at after the handshake, and the alert is easily lost.
        if url.startswith("https://") and (_is_reset(error) or _is_disconnected(error)):
            return "it broke the connection off, as those do that ask for a client certificate and see none"
        return ""
    reason = found.reason or ""
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "it does not speak TLS: the URL must begin with http://"
    if "CERTIFICATE_REQUIRED" in reason:
        return "it wants a client certificate, and none was shown"
    if "ALERT" in reason or "CERTIFICATE" in reason:
        return f"it does not accept the client's certificate ({reason.replace('_', ' ').lower()})"
    return f"TLS failed ({(reason or str(found)).replace('_', ' ').lower()})"


def _is_reset(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ECONNRESET, errno.EPIPE}


def _is_disconnected(error: BaseException) -> bool:
    import aiohttp  # noqa: PLC0415  # the command line speaks to the gateway without it

    return isinstance(error, aiohttp.ServerDisconnectedError)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # HTTP clients have errors that only inherit from OpenSSL's, and say nothing: theirs lies below.
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
        raise TlsError(f"{ca} holds no CA certificate in PEM format.") from error


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
