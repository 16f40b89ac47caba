"""Settings of alerts about cost."""

from __future__ import annotations

import base64
import binascii

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from gateway.config.field_types import RELOAD, http_url

SECRET_PREFIX = "whsec_"  # noqa: S105  # what every secret begins with
_LEAST = 24
"""Bytes of a secret, as the specification of Standard Webhooks asks."""


class AlertSettings(BaseModel):
    cost_webhook: str = Field(
        "",
        description="http(s) URL to which Florin posts each alert about cost once: budgets and anomalies, as "
        "listed by `florin cost alerts`. Private addresses must be allowed by `FLORIN_SOURCE_PRIVATE`.",
        json_schema_extra=RELOAD,
    )
    cost_webhook_secret: str = Field(
        "",
        validate_default=True,
        description="Signs these posts (Standard Webhooks, HMAC-SHA256): `whsec_` and base64 of at least 24 "
        "random bytes. Required with `FLORIN_COST_WEBHOOK`.",
        json_schema_extra=RELOAD,
    )

    @field_validator("cost_webhook")
    @classmethod
    def _cost_webhook(cls, text: str) -> str:
        return http_url(text)

    @field_validator("cost_webhook_secret")
    @classmethod
    def _cost_webhook_secret(cls, text: str, info: ValidationInfo) -> str:
        if not text:
            if info.data.get("cost_webhook"):
                msg = "is required with FLORIN_COST_WEBHOOK: make one with "
                msg += "`echo whsec_$(openssl rand -base64 32)`"
                raise ValueError(msg)
            return text
        check_secret(text)
        return text


def check_secret(text: str) -> None:
    """Raises ValueError unless it is a secret as Standard Webhooks writes them."""
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not text.startswith(SECRET_PREFIX) or len(secret) < _LEAST:
        raise ValueError("must be whsec_ and base64 of at least 24 bytes")
