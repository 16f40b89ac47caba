"""Loads TLS certificates into SSL contexts.

Certificate and key are read once, checked together, and loaded from the same bytes, so a certificate and a
key from different renewals never mix.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.security.secret_files import NotPrivateError, read_secret

_CA_BYTES = 4 * 1024 * 1024


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
