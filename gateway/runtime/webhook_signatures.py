"""Signatures of webhooks. What Florin posts is signed as Standard Webhooks (www.standardwebhooks.com) defines
it; what it receives is signed so, or by one of the vendors' schemes. Pure.

All are HMAC-SHA256 over the time of sending and the body, so that neither can be changed, and a copy is of no
use once `TOLERANCE` has passed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.alerts import SECRET_PREFIX
from gateway.config.top_ups import Scheme

TOLERANCE: Final = 300
"""Seconds between the clocks of sender and receiver, the time on the way included."""
_STANDARD = ("webhook-id", "webhook-timestamp", "webhook-signature")
_VERSION = "v1,"


class SignatureError(Exception):
    """The message is not from who knows the secret, or is too old."""


@dataclass(frozen=True, slots=True)
class _OneHeader:
    """A scheme with time and signatures (hexadecimal) in one header: `t=…,v1=…`. The secret is the key as it
    is written."""

    header: str
    separator: str
    time: str
    signature: str
    joint: str
    """Between the time and the body."""


_VENDORS: Final[Mapping[Scheme, _OneHeader]] = {
    "stripe": _OneHeader("stripe-signature", ",", "t", "v1", "."),
    "paddle": _OneHeader("paddle-signature", ";", "ts", "h1", ":"),
}


def signature(message_id: str, sent_at: int, body: bytes, secrets: str) -> dict[str, str]:
    """The headers of a post. `sent_at`: Unix seconds. `secrets`: as in the settings, separated by spaces.
    During a rotation there are several, and the receiver accepts any of the signatures."""
    content = _standard_content(message_id, str(sent_at), body)
    signatures = " ".join(_VERSION + _base64(content, secret) for secret in secrets.split())
    return dict(zip(_STANDARD, (message_id, str(sent_at), signatures), strict=True))


def verify(scheme: Scheme, headers: Mapping[str, str], body: bytes, secrets: str, now: int) -> None:
    """`headers`: by their names in small letters. `secrets`: as for `signature`; any of them may have signed.
    `now`: Unix seconds. Raises SignatureError."""
    vendor = _VENDORS.get(scheme)
    if vendor is None:
        message_id, sent_at, text = (headers.get(name, "") for name in _STANDARD)
        signatures = [part.removeprefix(_VERSION) for part in text.split() if part.startswith(_VERSION)]
        content = _standard_content(message_id, sent_at, body)
        expected = [_base64(content, secret) for secret in secrets.split()]
    else:
        pairs = [
            part.strip().partition("=") for part in headers.get(vendor.header, "").split(vendor.separator)
        ]
        sent_at = next((value for name, _, value in pairs if name == vendor.time), "")
        signatures = [value for name, _, value in pairs if name == vendor.signature]
        content = f"{sent_at}{vendor.joint}".encode() + body
        expected = [_hmac(secret.encode(), content).hex() for secret in secrets.split()]
    if not signatures:
        name = _STANDARD[-1] if vendor is None else vendor.header
        raise SignatureError(f"The header {name} has no signature.")
    if not _any_equal(signatures, expected):
        raise SignatureError("The signature is not that of this body and the secret.")
    if not (sent_at.isascii() and sent_at.isdigit() and abs(now - int(sent_at[:18])) <= TOLERANCE):
        raise SignatureError(f"It was sent more than {TOLERANCE} seconds ago, or the clocks differ.")


def _any_equal(signatures: Iterable[str], expected: Iterable[str]) -> bool:
    """In a time that does not tell how much of a signature is right."""
    pairs = ((given.encode(), own.encode()) for own in expected for given in signatures)
    return any(hmac.compare_digest(given, own) for given, own in pairs)


def _standard_content(message_id: str, sent_at: str, body: bytes) -> bytes:
    return b".".join((message_id.encode(), sent_at.encode(), body))


def _base64(content: bytes, secret: str) -> str:
    return base64.b64encode(_hmac(base64.b64decode(secret.removeprefix(SECRET_PREFIX)), content)).decode()


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()
