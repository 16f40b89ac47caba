"""Signatures of posts, as Standard Webhooks (www.standardwebhooks.com) defines them. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac

from gateway.config.alerts import SECRET_PREFIX


def signature(message_id: str, sent_at: int, body: bytes, secrets: str) -> dict[str, str]:
    """The headers of a post. `sent_at`: Unix seconds. `secrets`: as in the settings, separated by spaces.
    During a rotation there are several, and the receiver accepts any of the signatures."""
    content = b".".join((message_id.encode(), str(sent_at).encode(), body))
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": " ".join(_signed(content, secret) for secret in secrets.split()),
    }


def _signed(content: bytes, secret: str) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
