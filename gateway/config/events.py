"""Settings of the events that Florin sends to other systems."""

from __future__ import annotations

import re
from typing import Final

from pydantic import BaseModel, Field, ValidationInfo, field_validator
from yarl import URL

from gateway.config.alerts import check_secret
from gateway.config.field_types import RELOAD

_TOKEN: Final = re.compile(r"[\x21-\x7e]+( [\x21-\x7e]+)*")


class EventSettings(BaseModel):
    events_secret: str = Field(
        "",
        description="Signs the posts of events (Standard Webhooks, HMAC-SHA256): `whsec_` and base64 of at "
        "least 24 random bytes; make one with `echo whsec_$(openssl rand -base64 32)`. While a secret is "
        "replaced: the new and the old one, separated by a space.",
        json_schema_extra=RELOAD,
    )
    audit_events_token: str = Field(
        "",
        description="Sent with audit events as `Authorization: Bearer …`, if the receiver wants one.",
        json_schema_extra=RELOAD,
    )
    audit_events_to: str = Field(
        "",
        description="http(s) URL to which Florin posts each entry of the audit log as a CloudEvent, in "
        "batches. Needs `FLORIN_EVENTS_SECRET` or `FLORIN_AUDIT_EVENTS_TOKEN`.",
        json_schema_extra=RELOAD,
    )
    usage_events_token: str = Field(
        "", description="The same for usage events: OpenMeter's API token.", json_schema_extra=RELOAD
    )
    usage_events_to: str = Field(
        "",
        description="http(s) URL to which Florin posts the usage of each billable attempt as a CloudEvent, "
        "in batches, such as OpenMeter's `https://openmeter.example/api/v1/events`. Needs "
        "`FLORIN_EVENTS_SECRET` or `FLORIN_USAGE_EVENTS_TOKEN`.",
        json_schema_extra=RELOAD,
    )

    @field_validator("events_secret")
    @classmethod
    def _events_secret(cls, text: str) -> str:
        for secret in text.split():
            check_secret(secret)
        return text

    @field_validator("audit_events_token", "usage_events_token")
    @classmethod
    def _events_token(cls, text: str) -> str:
        if text and not _TOKEN.fullmatch(text):
            raise ValueError("must be printable ASCII")
        return text

    @field_validator("audit_events_to", "usage_events_to")
    @classmethod
    def _events_to(cls, text: str, info: ValidationInfo) -> str:
        if not text:
            return text
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.raw_host or url.user is not None:
            raise ValueError("must be an http:// or https:// URL, without credentials")
        token = f"{str(info.field_name).removesuffix('_to')}_token"
        if not info.data.get("events_secret") and not info.data.get(token):
            raise ValueError(
                f"needs FLORIN_EVENTS_SECRET or FLORIN_{token.upper()}: without one, the receiver cannot "
                "tell who posts"
            )
        return text
