"""Settings of what clients may send: body size, requests in flight, fields."""

from __future__ import annotations

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveInt, field_validator

from gateway.config.field_types import RELOAD, listed
from gateway.fields.media import media_hosts
from gateway.fields.tables import check_passed


class RequestSettings(BaseModel):
    max_body_bytes: PositiveInt = Field(
        16 * 1024 * 1024,
        description="Maximum size in bytes of a request body on the data plane, decoded if it is compressed. "
        "Two photos of a phone have 8 to 14 MB in base64.",
        json_schema_extra=RELOAD,
    )
    max_body_values: PositiveInt = Field(
        400_000,
        description="Maximum number of JSON values, member names included, in a request body on the data "
        "plane. A prompt of 200,000 token ids has 200,000; a string counts as one, whatever its length.",
        json_schema_extra=RELOAD,
    )
    max_body_containers: PositiveInt = Field(
        20_000,
        description="Maximum number of JSON objects and arrays among these; each takes far more memory than "
        "its two bytes of text.",
        json_schema_extra=RELOAD,
    )
    max_key_requests: PositiveInt = Field(
        1024,
        description="Maximum requests in flight per API key and worker.",
        json_schema_extra=RELOAD,
    )
    max_key_bytes: PositiveInt = Field(
        64 * 1024 * 1024,
        description="Maximum bytes of request bodies in memory per API key and worker. One body of the "
        "maximum size always fits.",
        json_schema_extra=RELOAD,
    )
    max_tenant_requests: PositiveInt = Field(
        2048,
        description="Maximum requests in flight per tenant and worker.",
        json_schema_extra=RELOAD,
    )
    max_tenant_bytes: PositiveInt = Field(
        128 * 1024 * 1024,
        description="Maximum bytes of request bodies in memory per tenant and worker.",
        json_schema_extra=RELOAD,
    )
    max_worker_requests: PositiveInt = Field(
        10_000,
        description="Maximum requests in flight per worker; further requests get a 503.",
        json_schema_extra=RELOAD,
    )
    max_worker_bytes: PositiveInt = Field(
        512 * 1024 * 1024,
        description="Maximum bytes of request bodies in memory per worker.",
        json_schema_extra=RELOAD,
    )
    keep_alive_interval: NonNegativeFloat = Field(
        15.0,
        description="Seconds with nothing to send after which a stream gets a comment (`: keep-alive`; on "
        "`/v1/messages`, a `ping`), so that no load balancer closes its connection. The first one begins the "
        "response with status 200: errors that follow are events. 0: never.",
        json_schema_extra=RELOAD,
    )
    max_n: PositiveInt = Field(
        16, description="Maximum `n` and `best_of` of a request.", json_schema_extra=RELOAD
    )
    media_hosts: str = Field(
        "",
        description="Comma-separated hosts from which engines may fetch images, audio and video for clients: "
        "`cdn.example.com,media.internal:8443`. Empty: only `data:` URLs are accepted. Like the next three "
        "settings, a tenant's own request policy can replace it.",
        json_schema_extra=RELOAD,
    )
    chat_templates: bool = Field(
        False,
        description="Whether requests may bring their own `chat_template`, a program that the engine runs. "
        "vLLM also needs `--trust-request-chat-template`.",
        json_schema_extra=RELOAD,
    )
    structured_outputs: bool = Field(
        True,
        description="Whether requests may constrain answers (`response_format`, `structured_outputs`, "
        "required or strict tool calls), for which the engine compiles a grammar.",
        json_schema_extra=RELOAD,
    )
    pass_fields: str = Field(
        "",
        description="Comma-separated request fields unknown to Florin that are passed on to engines; also "
        "`structured_outputs.grammar`, `structured_outputs.structural_tag` and "
        "`response_format.structural_tag`.",
        json_schema_extra=RELOAD,
    )

    max_scored_tokens: PositiveInt = Field(
        4096,
        description="Maximum prompt tokens, as estimated, of a request that asks for their scores "
        "(`prompt_logprobs`, `echo` with `logprobs`): the engine computes them all at once, each with the "
        "whole vocabulary.",
        json_schema_extra=RELOAD,
    )

    @field_validator("media_hosts")
    @classmethod
    def _media_hosts(cls, entries: str) -> str:
        media_hosts(listed(entries))
        return entries

    @field_validator("pass_fields")
    @classmethod
    def _pass_fields(cls, entries: str) -> str:
        check_passed(listed(entries))
        return entries

    @property
    def allowed_media_hosts(self) -> tuple[str, ...]:
        return listed(self.media_hosts)

    @property
    def passed_fields(self) -> tuple[str, ...]:
        return listed(self.pass_fields)
