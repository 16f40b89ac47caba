"""Settings of tenants' limits and budgets."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator

from gateway.config.field_types import RELOAD, http_url


class LimitSettings(BaseModel):
    limits_when_store_away: str = Field(
        "open",
        pattern="^(open|closed)$",
        description="What to do with requests of tenants that have limits while Redis is unavailable: serve "
        "them (`open`), and count what they used once it is back; or refuse them with 503 (`closed`).",
        json_schema_extra=RELOAD,
    )
    max_tenant_users: int = Field(
        100_000,
        ge=1,
        le=10**7,
        description="End users, tags and sessions of one tenant that limits count at a time; those beyond it "
        "are counted together. Each takes about 300 bytes in Redis, for as long as its requests count.",
        json_schema_extra=RELOAD,
    )
    budget_webhook: str = Field(
        "",
        description="http(s) URL to which Florin posts JSON once per budget and period, when the budget's "
        "soft threshold is passed. Private addresses must be allowed by `FLORIN_SOURCE_PRIVATE`.",
        json_schema_extra=RELOAD,
    )

    @field_validator("budget_webhook")
    @classmethod
    def _webhook(cls, text: str) -> str:
        return http_url(text)
