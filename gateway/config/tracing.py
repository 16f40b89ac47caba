"""Settings of traces."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

_PATH = "/v1/traces"


class TracingSettings(BaseModel):
    traces_to: str = Field(
        "",
        description="OpenTelemetry collector that gets the spans of requests, attempts and adapter loads by "
        "OTLP over HTTP: `http://collector:4318`, or with a path if that is not `/v1/traces`. Needs `pip "
        "install 'florin-gateway[otel]'`. Empty: no spans, and nothing of OpenTelemetry is imported.",
    )
    trace_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Part of the requests whose spans are exported. Requests that continue a client's trace "
        "follow its decision instead.",
    )
    trace_clients: bool = Field(
        False,
        description="Whether spans continue the clients' traces (`traceparent`), which lets clients choose "
        "trace ids and which requests are exported. Otherwise, each request begins a trace of its own, which "
        "links to the client's.",
    )

    @field_validator("traces_to")
    @classmethod
    def _collector(cls, text: str) -> str:
        if not text:
            return ""
        url = urlsplit(text)
        if url.scheme not in {"http", "https"} or not url.hostname or "@" in url.netloc or url.fragment:
            msg = "must be http://HOST:PORT or https://HOST:PORT, without credentials; for these, see "
            msg += "OTEL_EXPORTER_OTLP_HEADERS"
            raise ValueError(msg)
        if any(find_spec(part) is None for part in ("opentelemetry", "opentelemetry.sdk")):
            raise ValueError("needs a library that is not installed: pip install 'florin-gateway[otel]'")
        return text if url.path.strip("/") else text.rstrip("/") + _PATH
