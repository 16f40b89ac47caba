"""Settings of the server: listener, TLS, workers, keys, shutdown, logs."""

from __future__ import annotations

from pathlib import Path

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from adapters.security.secret_files import KeyFileError, read_key
from gateway.config.field_types import RELOAD, AbsolutePath, Port


class ServerSettings(BaseModel):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8080, description="Port to listen on; 0 picks a free one and prints it.")
    tls_cert: AbsolutePath | None = Field(
        None, description="Certificate chain (PEM) for HTTPS. Renewed files are picked up automatically."
    )
    tls_key: AbsolutePath | None = Field(
        None, description="Private key (PEM) of `FLORIN_TLS_CERT`; only Florin's user may be able to read it."
    )
    tls_client_ca: AbsolutePath | None = Field(
        None, description="CA certificates (PEM). If set, clients must present a certificate signed by one."
    )
    behind_proxy: bool = Field(
        False,
        description="A proxy in front terminates TLS, so do not warn about plain HTTP on a public address.",
    )
    api_docs: bool = Field(
        False, description="Serve `/docs`, `/redoc` and `/openapi.json`, without authentication."
    )
    workers: PositiveInt = Field(1, le=64, description="Worker processes that share the port.")
    operator_key: SecretStr = Field(
        SecretStr(""), description="Bootstrap operator key, valid in addition to the keys in the registry."
    )
    operator_key_file: Path | None = Field(
        None, description="File that contains that key instead; no other user may read it (mode 0600)."
    )
    lame_duck: NonNegativeFloat = Field(
        2.0,
        description="Seconds after SIGTERM during which `/readyz` returns 503 while requests are still "
        "served, so that load balancers stop sending requests before the port closes. Choose a little more "
        "than their check interval. Skipped if `/readyz` was not queried in the last minute.",
        json_schema_extra=RELOAD,
    )
    shutdown_grace: PositiveFloat = Field(
        30.0,
        description="Seconds that running requests may then take to finish.",
        json_schema_extra=RELOAD,
    )
    log_format: str = Field(
        "text",
        pattern="^(text|json)$",
        description="Log format on stderr: `text`, or `json` with one object per line. Also applies to "
        "`florin engine run`.",
    )
    log_level: str = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="Minimum log level: `debug`, `info`, `warning` or `error`. Also applies to `florin "
        "engine run`.",
        json_schema_extra=RELOAD,
    )
    access_log: bool = Field(
        False,
        description="Log one line per request, without prompts and keys.",
        json_schema_extra=RELOAD,
    )

    @field_validator("operator_key_file")
    @classmethod
    def _private(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None:
            return None
        if info.data.get("operator_key", SecretStr("")).get_secret_value():
            raise ValueError("FLORIN_OPERATOR_KEY is also set; set only one of them")
        path = path.expanduser().absolute()
        try:
            read_key(path)
        except KeyFileError as error:
            raise ValueError(str(error)) from error
        return path

    @property
    def bootstrap_key(self) -> str:
        """The bootstrap key, read from its file each time. Raises KeyFileError."""
        if self.operator_key_file is not None:
            return read_key(self.operator_key_file)
        return self.operator_key.get_secret_value()
