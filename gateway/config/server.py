"""Settings of the server: listener, TLS, workers, keys, shutdown, logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from adapters.security.secret_files import KeyFileError, read_key
from gateway.config.field_types import RELOAD, AbsolutePath, Port, listed
from gateway.config.trusted_proxies import TrustedProxies
from gateway.fields.media import HOST

_ORIGIN = re.compile(rf"https?://{HOST}(:[0-9]{{1,5}})?", re.ASCII)


class ServerSettings(BaseModel):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8080, description="Port to listen on; 0 picks a free one and prints it.")
    uds: AbsolutePath | None = Field(
        None,
        description="Unix socket to listen on instead of host and port, for a proxy on this host. Only "
        "Florin's user and the socket's group may connect.",
    )
    admin_host: str = Field("127.0.0.1", description="Address to listen on for `FLORIN_ADMIN_PORT`.")
    admin_port: Port | None = Field(
        None,
        description="A separate port for the admin and finance API, `/metrics` and `/docs`, with the same "
        "TLS settings; 0 picks a free one and prints it. The other port then serves only `/v1/` and the "
        "health checks. Commands and engines' hosts need the admin port in `FLORIN_URL`. Default: one port "
        "for all.",
    )
    cors_origins: str = Field(
        "",
        description="Comma-separated origins, such as `https://app.example.com`, whose pages may call `/v1/` "
        "from browsers; `*`: all. A page has to hold an API key for that.",
    )
    cors_admin: bool = Field(
        False, description="Whether `FLORIN_CORS_ORIGINS` also applies to the admin and finance API."
    )
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
    trusted_proxies: str = Field(
        "",
        description="Comma-separated addresses and networks of the proxies in front, such as `10.0.0.0/8`, "
        "and `unix` for the one on `FLORIN_UDS`. They say who the client is and whether it came by HTTPS, in "
        "`FLORIN_FORWARDED_HEADER`: for the access log, engines that register, and the console. From "
        "others, that header is ignored.",
        json_schema_extra=RELOAD,
    )
    forwarded_header: Literal["x-forwarded-for", "forwarded"] = Field(
        "x-forwarded-for",
        description="The header in which these proxies name the client: `x-forwarded-for`, with "
        "`x-forwarded-proto`, or `forwarded` (RFC 7239). The other one is ignored: proxies pass it on as a "
        "client wrote it.",
        json_schema_extra=RELOAD,
    )
    console: bool = Field(
        True,
        description="Serve the console for browsers at `/console`. It is part of the admin and finance API.",
    )
    console_session: PositiveFloat = Field(
        43_200, description="Seconds after which a browser must sign in to the console again."
    )
    api_docs: bool = Field(False, description="Serve `/docs` and `/openapi.json`, without authentication.")
    workers: PositiveInt = Field(1, le=64, description="Worker processes that share the port.")
    operator_key: SecretStr = Field(
        SecretStr(""), description="Bootstrap operator key, valid in addition to the keys in the registry."
    )
    operator_key_file: Path | None = Field(
        None,
        description="File that contains that key instead; no other user may read it (mode 0600). A changed "
        "one is read again: the old key is invalid within five seconds.",
    )
    max_connections: PositiveInt = Field(
        20_000,
        description="Maximum client connections of a worker. Further ones are answered with 503 and closed.",
        json_schema_extra=RELOAD,
    )
    max_connections_per_address: PositiveInt = Field(
        5_000,
        description="Maximum client connections of a worker from one address. Behind a proxy, all come from "
        "its address.",
        json_schema_extra=RELOAD,
    )
    failed_keys_per_address: NonNegativeInt = Field(
        100,
        description="Unknown keys that a client's address may send to a worker within "
        "`FLORIN_FAILED_KEYS_WINDOW`. Further ones are answered with 429; valid keys always work. 0: any "
        "number.",
        json_schema_extra=RELOAD,
    )
    failed_keys_window: PositiveFloat = Field(
        60.0, description="Seconds over which unknown keys are counted.", json_schema_extra=RELOAD
    )
    max_headers: PositiveInt = Field(
        100, description="Maximum number of headers of a request.", json_schema_extra=RELOAD
    )
    max_header_bytes: PositiveInt = Field(
        64 * 1024, description="Maximum size in bytes of a request's headers.", json_schema_extra=RELOAD
    )
    header_timeout: PositiveFloat = Field(
        10.0,
        description="Seconds in which a request's headers must arrive, and a new connection's first request.",
        json_schema_extra=RELOAD,
    )
    body_timeout: PositiveFloat = Field(
        10.0,
        description="Seconds over which a request's body must arrive at `FLORIN_MIN_CLIENT_RATE` or faster.",
        json_schema_extra=RELOAD,
    )
    write_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds over which a client that has something to read must read at "
        "`FLORIN_MIN_CLIENT_RATE` or faster. Otherwise its request is ended and its engine is freed.",
        json_schema_extra=RELOAD,
    )
    min_client_rate: PositiveFloat = Field(
        500.0,
        description="Bytes per second that a client must send or read on average.",
        json_schema_extra=RELOAD,
    )
    keep_alive: PositiveFloat = Field(
        75.0,
        description="Seconds that a connection may be idle between two requests. Choose more than the proxy "
        "or load balancer in front, so that it closes first.",
        json_schema_extra=RELOAD,
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
    usage_grace: NonNegativeFloat = Field(
        3.0,
        description="Seconds that a worker may then try to bring the rest of its usage log into the ledger. "
        "What remains is in FLORIN_STATE_DIR, for the next gateway: choose more if that directory goes with "
        "the gateway.",
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

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, entries: str) -> str:
        for entry in listed(entries):
            if entry != "*" and _ORIGIN.fullmatch(entry) is None:
                msg = f"{entry!r} must be `*`, or `https://host` or `https://host:port` in lower case"
                raise ValueError(msg)
        return entries

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, entries: str) -> str:
        TrustedProxies.parse(listed(entries))
        return entries

    @property
    def proxies(self) -> TrustedProxies | None:
        """None: no proxy is trusted."""
        entries = listed(self.trusted_proxies)
        return TrustedProxies.parse(entries, self.forwarded_header) if entries else None

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        return listed(self.cors_origins)

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
