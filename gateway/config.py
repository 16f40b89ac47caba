"""Settings: FLORIN_* environment variables, or `florin.yaml` in the working directory (the environment wins).

Each field's description is a line of docs/reference/settings.md, which `python -m deploy.docs` writes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import (
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from adapters.security.secret_files import KeyFileError, read_key
from adapters.sources.url_policy import Allowed
from gateway.fields.chat import CHAT
from gateway.fields.completions import COMPLETIONS
from gateway.fields.grammars import OPTIONAL
from gateway.fields.media import media_hosts

_SECRET = {"redis_url", "ledger_url", "operator_key"}

Port = Annotated[int, Field(ge=0, le=65535)]


_RELOAD: dict[str, JsonValue] = {"reload": True}
"""Mark of what SIGHUP takes into use, see `gateway.runtime.settings_reload`."""


class SettingsError(Exception):
    """A setting is wrong; the message names it and says what it may be."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="FLORIN_", yaml_file="florin.yaml", extra="forbid", frozen=True, env_ignore_empty=True
    )

    state_dir: Path = Field(
        Path("~/.local/state/florin"),
        description="Where the embedded Valkey, the SQLite ledger, the usage logs and the artifacts live.",
    )
    redis_url: str = Field(
        "",
        description="redis://, rediss:// or unix:// URL. Empty: an embedded Valkey in the state directory.",
    )
    redis_prefix: str = Field(
        "florin",
        pattern="^[a-zA-Z0-9_-]{1,40}$",
        description="Hash tag of every key, so that several installations can share a Redis.",
    )
    ledger_url: str = Field(
        "", description="SQLAlchemy URL of the ledger. Empty: SQLite in the state directory."
    )
    retention_days: NonNegativeInt = Field(
        400,
        description="Days after which the usage records of closed months are removed; reports and closed "
        "periods stay. 0: never.",
    )
    bookkeeping_interval: PositiveFloat = Field(
        60.0, description="Seconds between two roll-ups of the ledger into the metrics, at least."
    )
    tenant_reports: PositiveInt = Field(
        2,
        description="Questions to the finance API that a worker answers at once for one tenant; four more "
        "may wait. Operators and analysts never wait for tenants.",
    )
    export_dir: Path | None = Field(
        None,
        description="Where the files of exports lie while they are sent; best on another disk than the state "
        "directory. Empty: the system's temporary directory.",
    )
    export_max_bytes: PositiveInt = Field(
        1024**3,
        description="Bytes that the files of a worker's exports may take in all: half of them those of "
        "tenants, a quarter those of one tenant.",
    )
    issuer: str = Field(
        "Florin",
        min_length=1,
        max_length=100,
        description="Name of the company that stands on statements and in FOCUS exports.",
        json_schema_extra=_RELOAD,
    )
    artifact_dir: Path | None = Field(
        None,
        description="Where adapter versions are kept, under a path that every engine sees alike. "
        "Empty: `artifacts` in the state directory. Each installation needs its own: where two share one, no "
        "files are ever removed.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8080, description="Port to listen on; 0 takes a free one and prints it.")
    tls_cert: Path | None = Field(
        None, description="Certificate chain (PEM) with which Florin speaks HTTPS. Renewed files are noticed."
    )
    tls_key: Path | None = Field(
        None, description="Its private key (PEM), in a file that only Florin's user can read."
    )
    tls_client_ca: Path | None = Field(
        None, description="CA certificates (PEM): clients must show a certificate that one of them signed."
    )
    behind_proxy: bool = Field(
        False, description="TLS ends at a proxy in front: plain HTTP on a public address is no surprise."
    )
    api_docs: bool = Field(
        False, description="Whether `/docs`, `/redoc` and `/openapi.json` are served; none needs a key."
    )
    engine_ca: Path | None = Field(
        None,
        description="CA certificates (PEM) that engines and agents are verified with, and no others. "
        "Empty: those of the system.",
    )
    engine_cert: Path | None = Field(
        None, description="Certificate chain (PEM) that Florin shows to engines and agents."
    )
    engine_key: Path | None = Field(None, description="Its private key (PEM).")
    engine_token_file: Path | None = Field(
        None, description="File with the bearer token that is sent to every engine (vLLM's `--api-key`)."
    )
    workers: PositiveInt = Field(1, le=64, description="Worker processes that share the port.")
    operator_key: SecretStr = Field(
        SecretStr(""), description="Bootstrap key of role operator, valid beside those in the registry."
    )
    operator_key_file: Path | None = Field(
        None, description="A file with that key instead, which nobody else may read (mode 0600)."
    )
    max_body_bytes: PositiveInt = Field(
        4 * 1024 * 1024,
        description="Largest request body on the data plane.",
        json_schema_extra=_RELOAD,
    )
    max_body_values: PositiveInt = Field(
        400_000,
        description="JSON values, names included, that a body on the data plane may hold. 200,000 token ids "
        "are as many; a string is one, however long.",
        json_schema_extra=_RELOAD,
    )
    max_body_containers: PositiveInt = Field(
        20_000,
        description="Of these, objects and arrays: each takes far more memory than its two bytes.",
        json_schema_extra=_RELOAD,
    )
    max_key_requests: PositiveInt = Field(
        1024,
        description="Requests of one API key that a worker has in flight.",
        json_schema_extra=_RELOAD,
    )
    max_key_bytes: PositiveInt = Field(
        32 * 1024 * 1024,
        description="Bytes of one API key's request bodies that a worker holds. One body always fits.",
        json_schema_extra=_RELOAD,
    )
    max_tenant_requests: PositiveInt = Field(
        2048,
        description="Requests of one tenant that a worker has in flight.",
        json_schema_extra=_RELOAD,
    )
    max_tenant_bytes: PositiveInt = Field(
        64 * 1024 * 1024,
        description="Bytes of one tenant's request bodies that a worker holds.",
        json_schema_extra=_RELOAD,
    )
    max_worker_requests: PositiveInt = Field(
        10_000,
        description="Requests that a worker has in flight in all; above, it answers 503.",
        json_schema_extra=_RELOAD,
    )
    max_worker_bytes: PositiveInt = Field(
        512 * 1024 * 1024,
        description="Bytes of request bodies that a worker holds in all.",
        json_schema_extra=_RELOAD,
    )
    max_n: PositiveInt = Field(
        16, description="Largest `n` and `best_of` that a client may ask for.", json_schema_extra=_RELOAD
    )
    media_hosts: str = Field(
        "",
        description="Hosts from which engines may fetch pictures, sounds and films for clients, separated by "
        "commas: `cdn.example.com,media.internal:8443`. Empty: only `data:` URLs are taken.",
        json_schema_extra=_RELOAD,
    )
    pass_fields: str = Field(
        "",
        description="Fields of requests that are passed on to engines although Florin does not know them, "
        "separated by commas; also `structured_outputs.grammar`, `structured_outputs.structural_tag` and "
        "`response_format.structural_tag`.",
        json_schema_extra=_RELOAD,
    )
    max_adapter_bytes: PositiveInt = Field(
        2 * 1024**3, description="Largest total size of one adapter version's files."
    )
    upload_idle_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds of silence after which an upload is given up.",
        json_schema_extra=_RELOAD,
    )
    source_private: str = Field(
        "",
        description="Hosts and networks to which http(s) sources may lead although they are not public, "
        "separated by commas: `models.internal,10.0.0.0/8`.",
    )
    placement_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds that a request may wait for an engine to begin its answer elsewhere, retries "
        "and cold loads included; afterwards it gets a 503.",
        json_schema_extra=_RELOAD,
    )
    max_queue_seconds: NonNegativeFloat = Field(
        30.0,
        description="Seconds that a request may be expected to wait in an engine's own queue before its "
        "answer begins; above, it is refused at once, with 503 and a `retry-after`. 0: never.",
        json_schema_extra=_RELOAD,
    )
    load_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds that an engine may take to load, unload or list adapters.",
        json_schema_extra=_RELOAD,
    )
    verify_loads: bool = Field(
        True,
        description="Whether each loaded version is asked a few fixed prompts, and held against the base "
        "model and its own first answer, before requests are sent to it.",
    )
    connect_timeout: PositiveFloat = Field(
        2.0, description="Seconds to connect to an engine.", json_schema_extra=_RELOAD
    )
    first_byte_timeout: PositiveFloat = Field(
        120.0,
        description="Seconds that a stream may wait for its first token on an engine that works; then "
        "another engine is tried.",
        json_schema_extra=_RELOAD,
    )
    engine_idle_timeout: PositiveFloat = Field(
        60.0,
        description="Seconds of silence after which a stream that has begun is ended with an error event. "
        "(Dead engines are noticed much sooner, by probes.)",
        json_schema_extra=_RELOAD,
    )
    hang_timeout: PositiveFloat = Field(
        20.0,
        description="Seconds after which an engine hangs for which something waits and which shows no sign "
        "of work: no byte, no counter of its metrics that moves, no answer to a probe of one token, sent "
        "after half of them. Its requests go elsewhere.",
        json_schema_extra=_RELOAD,
    )
    ejection_time: PositiveFloat = Field(
        10.0,
        description="Seconds for which an engine that hangs is ejected, times its ejections of late, 300 at "
        "most; then a probe decides. At most half of a fleet's engines are ejected at once.",
        json_schema_extra=_RELOAD,
    )
    probe_interval: PositiveFloat = Field(
        1.0, description="Seconds between probes of each engine.", json_schema_extra=_RELOAD
    )
    probe_timeout: PositiveFloat = Field(
        2.0,
        description="Seconds that an engine may take to answer a probe.",
        json_schema_extra=_RELOAD,
    )
    retry_budget: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Share of the requests of the last 10 s that a worker may send to another engine because "
        "one failed; 10 a second are free, and what an engine's death takes with it is.",
        json_schema_extra=_RELOAD,
    )
    resume_streams: bool = Field(
        True,
        description="Whether another engine goes on with a stream whose engine fails in the middle, where "
        "that is sound; otherwise, and for the rest, the stream ends with an error.",
    )
    slow_start: NonNegativeFloat = Field(
        10.0,
        description="Seconds over which an engine that is new, came back, or failed several times in a row "
        "is given its full share of the requests. 0: at once.",
        json_schema_extra=_RELOAD,
    )
    reload_interval: NonNegativeFloat = Field(
        0.1,
        description="Seconds between two loads that give a restarted engine its adapters back: each stalls "
        "what the engine decodes.",
        json_schema_extra=_RELOAD,
    )
    artifact_grace: NonNegativeFloat = Field(
        24.0,
        description="Hours for which the files of a removed or retired version stay, however idle the "
        "engines are.",
        json_schema_extra=_RELOAD,
    )
    stopped_engine_hours: NonNegativeFloat = Field(
        1.0,
        description="Hours after which an engine that `florin engine run` has stopped is forgotten. Its key "
        "stays valid. 0: never.",
        json_schema_extra=_RELOAD,
    )
    lame_duck: NonNegativeFloat = Field(
        2.0,
        description="Seconds after SIGTERM for which `/readyz` answers 503 while requests are still served, "
        "so that balancers send none to a closed port: a little more than they take to notice. Skipped when "
        "nobody has asked for a minute.",
        json_schema_extra=_RELOAD,
    )
    shutdown_grace: PositiveFloat = Field(
        30.0,
        description="Seconds that running requests may take to finish after that.",
        json_schema_extra=_RELOAD,
    )
    log_format: str = Field(
        "text",
        pattern="^(text|json)$",
        description="What stderr gets: `text`, or `json`, one object a line. Of `florin engine run`, too.",
    )
    log_level: str = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="The least that is logged: `debug`, `info`, `warning` or `error`. Of `florin engine "
        "run`, too.",
        json_schema_extra=_RELOAD,
    )
    access_log: bool = Field(
        False,
        description="Whether each request is logged in a line. Prompts and keys never are.",
        json_schema_extra=_RELOAD,
    )
    wal_full: str = Field(
        "refuse",
        pattern="^(refuse|serve)$",
        description="When the usage log cannot be written: `refuse` new requests (503), or `serve` them "
        "unmetered, loudly.",
    )

    @field_validator(
        *("state_dir", "artifact_dir", "export_dir", "tls_cert", "tls_key", "tls_client_ca"),
        *("engine_ca", "engine_cert", "engine_key", "engine_token_file"),
    )
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("operator_key_file")
    @classmethod
    def _private(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None:
            return None
        if info.data.get("operator_key", SecretStr("")).get_secret_value():
            raise ValueError("FLORIN_OPERATOR_KEY is set, too: which is meant?")
        path = path.expanduser().absolute()
        try:
            read_key(path)
        except KeyFileError as error:
            raise ValueError(str(error)) from error
        return path

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, url: str) -> str:
        if url and not url.startswith(("redis://", "rediss://", "unix://")):
            msg = "must begin with redis://, rediss:// or unix://"
            raise ValueError(msg)
        return url

    @field_validator("source_private")
    @classmethod
    def _hosts_and_networks(cls, entries: str) -> str:
        Allowed.parse(_listed(entries))
        return entries

    @field_validator("media_hosts")
    @classmethod
    def _media_hosts(cls, entries: str) -> str:
        media_hosts(_listed(entries))
        return entries

    @field_validator("pass_fields")
    @classmethod
    def _pass_fields(cls, entries: str) -> str:
        known = CHAT.keys() | COMPLETIONS.keys()
        for name in _listed(entries):
            if name in known or ("." in name and name not in OPTIONAL):
                msg = (
                    f"cannot change what happens to {name!r}: it names fields that Florin does not know, and "
                )
                msg += ", ".join(OPTIONAL)
                raise ValueError(msg)
        return entries

    @field_validator("ledger_url")
    @classmethod
    def _ledger_driver(cls, url: str) -> str:
        """A URL that nothing here can open would be noticed by a background thread only, hours later."""
        if url:
            try:
                make_url(url).get_dialect().import_dbapi()
            except ImportError as error:
                msg = f"needs a driver that is not installed ({error.name}); for PostgreSQL: "
                msg += "pip install 'florin-gateway[postgres]' and postgresql+psycopg://…"
                raise ValueError(msg) from error
            except SQLAlchemyError as error:
                msg = "must be an SQLAlchemy URL: sqlite:///… or postgresql+psycopg://…"
                raise ValueError(msg) from error
        return url

    @property
    def bootstrap_key(self) -> str:
        """As given, or as it stands in its file now. Raises KeyFileError when that has changed meanwhile."""
        if self.operator_key_file is not None:
            return read_key(self.operator_key_file)
        return self.operator_key.get_secret_value()

    @property
    def allowed_sources(self) -> tuple[str, ...]:
        return _listed(self.source_private)

    @property
    def allowed_media_hosts(self) -> tuple[str, ...]:
        return _listed(self.media_hosts)

    @property
    def passed_fields(self) -> tuple[str, ...]:
        return _listed(self.pass_fields)

    @property
    def artifacts(self) -> Path:
        return self.artifact_dir or self.state_dir / "artifacts"

    @property
    def exports(self) -> Path:
        return self.export_dir or Path(tempfile.gettempdir())

    @property
    def ledger(self) -> str:
        return self.ledger_url or f"sqlite:///{self.state_dir / 'ledger.db'}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


RELOADABLE: Final = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("reload")
)
"""Settings that SIGHUP takes into use, from florin.yaml."""


def _listed(entries: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in entries.split(",") if entry.strip())


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment and florin.yaml. Raises SettingsError in words for the operator."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("\n".join(_sentence(e) for e in error.errors())) from None
    except (yaml.YAMLError, TypeError, ValueError, OSError) as error:
        raise SettingsError(f"florin.yaml cannot be read as a mapping of settings: {error}") from None


def _sentence(error: Any) -> str:
    """One wrong setting. What may hold a password is not repeated."""
    name = str(error["loc"][0])
    shown = "" if name in _SECRET else f" (it is {error['input']!r})"
    known = name in Settings.model_fields
    where = f"FLORIN_{name.upper()}" if known else f"florin.yaml: {name}"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}{shown}"
