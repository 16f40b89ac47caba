"""Settings of what Florin stores: Redis, ledger, artifacts, exports."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from adapters.sources.url_policy import Allowed
from adapters.store.redis.discovery import Seeds
from gateway.config.field_types import RELOAD, AbsolutePath, listed

TENANT_SOURCES: Final = frozenset({"https", "http", "hf", "oci", "private", "s3", "gs", "az", "file"})
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+)(?::(?P<port>[0-9]{1,5}))?\Z")
_WRITABLE: Final = ("target_session_attrs", "read-write")
"""libpq's option to connect to whichever of several servers accepts writes."""


class StorageSettings(BaseModel):
    state_dir: AbsolutePath = Field(
        Path("~/.local/state/florin"),
        description="Directory of the embedded Valkey, the SQLite ledger, the usage logs and the artifacts.",
    )
    redis_url: str = Field(
        "",
        description="redis://, rediss:// or unix:// URL; `redis+sentinel://HOST,HOST,HOST/SERVICE` for the "
        "primary that Sentinels name, `redis+cluster://HOST,HOST` for a Cluster, both with `rediss+…` for "
        "TLS. Empty: an embedded Valkey in the state directory.",
    )
    redis_prefix: str = Field(
        "florin",
        pattern="^[a-zA-Z0-9_-]{1,40}$",
        description="Hash tag of every key, so that several installations can share one Redis.",
    )
    ledger_url: str = Field(
        "",
        description="SQLAlchemy URL of the ledger; `postgresql+psycopg://USER@HOST:PORT,HOST:PORT/DATABASE` "
        "for whichever of several PostgreSQL servers accepts writes. Empty: SQLite in the state directory.",
    )
    separate_ledgers: bool = Field(
        False,
        description="Start even if another gateway on the same Redis uses another ledger. "
        "Each ledger then has only a part of the records; `florin doctor` and reports say so.",
    )
    usage_kept_seconds: NonNegativeFloat = Field(
        1800.0,
        description="Seconds for which usage that a PostgreSQL ledger has acknowledged stays in the usage "
        "log, so that it can be inserted again if a failover loses it. 0: it is deleted at once.",
    )
    retention_days: NonNegativeInt = Field(
        400,
        description="Days after which usage records of closed months are deleted; reports and closed "
        "periods are kept. 0: never.",
    )
    ledger_maintenance_interval: PositiveFloat = Field(
        60.0, description="Minimum seconds between two roll-ups of the ledger into the metrics."
    )
    ledger_warm_up: bool = Field(
        True,
        description="Start each worker's ledger process with the worker. It takes about 75 MiB of memory "
        "while idle; without it, the first report of a worker takes one or two seconds longer.",
    )
    tenant_reports: PositiveInt = Field(
        2,
        description="Finance API queries that a worker runs at a time for one tenant; four more may wait. "
        "Operators and analysts never wait for tenants.",
    )
    export_dir: AbsolutePath | None = Field(
        None,
        description="Directory of export files while they are sent; best on a different disk than the state "
        "directory. Empty: the system's temporary directory.",
    )
    export_max_bytes: PositiveInt = Field(
        1024**3,
        description="Maximum total size in bytes of a worker's export files. Tenants may use half of it, one "
        "tenant a quarter.",
    )
    issuer: str = Field(
        "Florin",
        min_length=1,
        max_length=100,
        description="Company name on statements and in FOCUS exports.",
        json_schema_extra=RELOAD,
    )
    artifact_dir: AbsolutePath | None = Field(
        None,
        description="Directory of adapter versions, at a path that is the same on every engine host. "
        "Empty: `artifacts` in the state directory. Each installation needs its own; if two share one, files "
        "are never deleted. With FLORIN_ARTIFACT_BUCKET only what is being received and checked.",
    )
    artifact_bucket: str = Field(
        "",
        pattern=r"^((s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?)?$",
        max_length=800,
        description="Bucket of adapter versions, in place of a directory: `s3://BUCKET/PREFIX`, "
        "`gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`, with the credentials of the environment. Hosts "
        "with an agent read from it by signed URLs and need no credentials; other engines cannot. Each "
        "installation needs a prefix of its own.",
    )
    artifact_grace: NonNegativeFloat = Field(
        24.0,
        description="Minimum hours that the files of a removed or retired version are kept.",
        json_schema_extra=RELOAD,
    )
    max_adapter_bytes: PositiveInt = Field(
        2 * 1024**3, description="Maximum total size in bytes of an adapter version's files."
    )
    upload_idle_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds without data after which an upload is aborted.",
        json_schema_extra=RELOAD,
    )
    source_private: str = Field(
        "",
        description="Comma-separated private hosts and networks that http(s) and oci sources may access: "
        "`models.internal,10.0.0.0/8`.",
    )
    tenant_sources: str = Field(
        "https,hf",
        description="Comma-separated kinds of sources from which tenants' own administrators may register "
        "adapters, besides uploads: `https`, `http`, `hf` and `oci`, without the gateway's credentials; "
        "`private`, so that URLs may lead to FLORIN_SOURCE_PRIVATE; `s3`, `gs`, `az` and `file`, with the "
        "gateway's credentials and files. Empty: uploads only.",
        json_schema_extra=RELOAD,
    )
    wal_full: str = Field(
        "refuse",
        pattern="^(refuse|serve)$",
        description="What to do with new requests while the usage log cannot be written: `refuse` them "
        "(503), or `serve` them unmetered and log an error.",
    )

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, url: str) -> str:
        if url and not Seeds.of(url) and not url.startswith(("redis://", "rediss://", "unix://")):
            msg = "must begin with redis://, rediss:// or unix://, or be redis+sentinel://HOST,HOST/SERVICE "
            msg += "or redis+cluster://HOST,HOST"
            raise ValueError(msg)
        return url

    @field_validator("source_private")
    @classmethod
    def _hosts_and_networks(cls, entries: str) -> str:
        Allowed.parse(listed(entries))
        return entries

    @field_validator("tenant_sources")
    @classmethod
    def _kinds_of_sources(cls, entries: str) -> str:
        if unknown := set(listed(entries)) - TENANT_SOURCES:
            msg = f"{min(unknown)!r} is not one of {', '.join(sorted(TENANT_SOURCES))}"
            raise ValueError(msg)
        return entries

    @field_validator("ledger_url")
    @classmethod
    def _ledger_driver(cls, url: str) -> str:
        """Check the driver now: otherwise a background thread would fail hours later."""
        if url:
            try:
                url = sqlalchemy_url(url)
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
    def redis_fails_over(self) -> bool:
        """Whether the URL is of several servers, of which one is the primary."""
        return Seeds.of(self.redis_url) is not None

    @property
    def allowed_sources(self) -> tuple[str, ...]:
        return listed(self.source_private)

    @property
    def tenant_source_kinds(self) -> frozenset[str]:
        return frozenset(listed(self.tenant_sources))

    @property
    def artifacts(self) -> Path:
        return self.artifact_dir or self.state_dir / "artifacts"

    @property
    def exports(self) -> Path:
        return self.export_dir or Path(tempfile.gettempdir())

    @property
    def ledger(self) -> str:
        return self.ledger_url or f"sqlite:///{self.state_dir / 'ledger.db'}"


def sqlalchemy_url(url: str) -> str:
    """`postgresql+psycopg://USER@HOST:PORT,HOST:PORT/DB` as SQLAlchemy writes it; other URLs unchanged. Among
    several servers, it chooses the one that accepts writes. Raises ValueError, and SQLAlchemy's errors."""
    scheme, separator, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, _, database = rest.partition("/")
    login, at_sign, hosts = netloc.rpartition("@")
    options = parse_qsl(query, keep_blank_values=True)
    if not scheme.startswith("postgresql") or ("," not in hosts and not _several(options)):
        make_url(url)
        return url
    if "," in hosts:
        matches = [_HOST.match(host) for host in hosts.split(",")]
        if not all(matches) or any(name in {"host", "port"} for name, _ in options):
            msg = "with several servers, must be postgresql+psycopg://USER@HOST:PORT,HOST:PORT/DATABASE"
            raise ValueError(msg)
        options = [
            ("host", ",".join(match["host"].strip("[]") for match in matches if match)),
            ("port", ",".join(match["port"] or "" for match in matches if match)),
            *options,
        ]
    if _WRITABLE[0] not in dict(options):
        options.append(_WRITABLE)
    written = f"{scheme}{separator}{login}{at_sign}/{database}?{urlencode(options)}"
    make_url(written)
    return written


def _several(options: list[tuple[str, str]]) -> bool:
    hosts = [value for name, value in options if name == "host"]
    return len(hosts) > 1 or any("," in host for host in hosts)
