"""Fetches adapters from MLflow's model registry: `models:/NAME/VERSION`, or `models:/NAME@ALIAS`.

The server is `MLFLOW_REGISTRY_URI` or `MLFLOW_TRACKING_URI`, with `MLFLOW_TRACKING_TOKEN`, or
`MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`, or those in the URL. It says where a version's
files are: with itself, or in a bucket, which is read as any other.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError
from yarl import URL

from adapters.checks.adapter_folder import DEPTH, Parts, adapter_folder
from adapters.checks.file_kinds import FILES, KNOWN
from adapters.checks.findings import Findings
from adapters.progress import ProgressMeter
from adapters.sources import object_store
from adapters.sources.download import download, run
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.public_uri import public, scheme_of
from adapters.sources.staging_area import SourceRefusedError, StagingArea, malformed
from adapters.sources.web_client import WebClient

_URI = re.compile(
    r"models:/(?P<name>[^/?#@:\x00-\x1f]{1,256})(?:/(?P<version>[0-9]{1,9})|@(?P<alias>[^/?#@:\x00-\x1f]{1,256}))"
)
_ANSWER_BYTES = 4 * 1024 * 1024
_FOLDERS = 50
"""Folders that are looked into for an adapter, at most."""
_BUCKETS = ("s3", "gs")

M = TypeVar("M", bound=BaseModel)


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `adapters.sources.Fetch`. Returns the URI with the version that an alias stands for."""
    try:
        named = _URI.fullmatch(uri)
        if named is None:
            forms = "models:/NAME/VERSION or models:/NAME@ALIAS"
            raise malformed(uri, "a model of MLflow's registry", forms)
        server = _Server.configured(options)
        meter = ProgressMeter(FETCHING, options.progress)
        version, place = run(_resolved(server, named["name"], named["version"], named["alias"]), meter)
        if scheme_of(place) in _BUCKETS:
            object_store.fetch(place, destination, options=options, findings=findings)
        else:
            staging = StagingArea(destination, options.max_bytes)
            run(_fetch(server, _path(place), staging, meter, findings), meter)
        return f"models:/{named['name']}/{version}"
    except SourceRefusedError as refusal:
        refusal.add_to(findings)
    return public(uri)


class _ModelVersion(BaseModel):
    version: str = Field(pattern="^[0-9]{1,9}$")


class _Alias(BaseModel):
    model_version: _ModelVersion


class _DownloadUri(BaseModel):
    artifact_uri: str


class _File(BaseModel):
    path: str
    is_dir: bool = False
    file_size: NonNegativeInt | None = None


class _Listing(BaseModel):
    files: list[_File] = Field(default=[], max_length=10_000)


@dataclass(frozen=True, slots=True)
class _Server:
    url: URL
    authorization: str | None
    options: FetchOptions

    @classmethod
    def configured(cls, options: FetchOptions) -> Self:
        """The server of the environment. Raises SourceRefusedError."""
        environ = os.environ
        text = environ.get("MLFLOW_REGISTRY_URI") or environ.get("MLFLOW_TRACKING_URI", "")
        try:
            url = URL(text)
            if url.scheme not in ("http", "https") or not url.raw_host:
                raise ValueError(text)
        except ValueError:
            raise SourceRefusedError(
                "source_unavailable",
                "The gateway does not know the MLflow server.",
                found="MLFLOW_TRACKING_URI is not an http(s) URL",
                expected="MLFLOW_TRACKING_URI in the gateway's environment",
            ) from None
        user = environ.get("MLFLOW_TRACKING_USERNAME", url.user)
        password = environ.get("MLFLOW_TRACKING_PASSWORD", url.password or "")
        authorization = None
        if token := environ.get("MLFLOW_TRACKING_TOKEN"):
            authorization = f"Bearer {token}"
        elif user:
            authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        # Where the server is, is the operator's choice: it may be private.
        private = (*options.allow_private, url.raw_host)
        return cls(url.with_user(None), authorization, replace(options, allow_private=private))

    def client(self, path: str, /, **query: str) -> WebClient:
        url = (self.url / "api/2.0" / path).with_query(query or None)
        return WebClient(url, self.authorization, self.options)

    async def ask(self, model: type[M], path: str, /, **query: str) -> M:
        """Raises SourceRefusedError."""
        content = await self.client(path, **query).document("MLflow's answer", _ANSWER_BYTES)
        try:
            return model.model_validate_json(content)
        except ValidationError:
            raise SourceRefusedError(
                "source_unavailable",
                "The MLflow server returned an unexpected response.",
                found=f"an answer to {path} of another kind",
                expected="MLflow's REST API 2.0",
            ) from None


async def _resolved(server: _Server, name: str, version: str | None, alias: str | None) -> tuple[str, str]:
    """The version, and where MLflow keeps its files."""
    if version is None:
        query: dict[str, Any] = {"name": name, "alias": alias}
        version = (await server.ask(_Alias, "mlflow/registered-models/alias", **query)).model_version.version
    path = "mlflow/model-versions/get-download-uri"
    return version, (await server.ask(_DownloadUri, path, name=name, version=version)).artifact_uri


def _path(place: str) -> str:
    """The path of files that the server itself keeps. Raises SourceRefusedError."""
    served = re.fullmatch(r"mlflow-artifacts:(?://[^/]*)?/([^?#\x00-\x1f]*)", place)
    path = served[1].strip("/") if served else ""
    if not path or {"", ".", ".."} & set(path.split("/")):
        raise SourceRefusedError(
            "source_unsupported",
            "MLflow keeps the files where the gateway does not fetch from.",
            found=f"{scheme_of(place) or 'a path'}:…",
            expected="s3://…, gs://…, or the server's own artifact store",
        )
    return path


async def _fetch(
    server: _Server, root: str, staging: StagingArea, meter: ProgressMeter, findings: Findings
) -> None:
    adapter = adapter_folder(await _paths(server, root))
    adapter.check("of the model", findings)
    if findings:
        return
    folder = "/".join((root, *adapter.path))
    for name in (name for name in KNOWN if name in adapter.names):
        client = server.client(f"mlflow-artifacts/artifacts/{folder}/{name}")
        file, start = staging.directory / name, partial(client.open, plain=True)
        limit = staging.limit(name)
        await download(start, file, limit=limit, what=name, options=server.options, meter=meter)
        staging.took(name, file.stat().st_size)
    meter.tell()


async def _paths(server: _Server, root: str) -> set[Parts]:
    """Files of the model, and of its folders unless those of an adapter are at the top."""
    paths, folders = set[Parts](), list[Parts]([()])
    for count, folder in enumerate(folders):  # which grows meanwhile
        if count == _FOLDERS:
            break
        listing = await server.ask(_Listing, "mlflow-artifacts/artifacts", path="/".join((root, *folder)))
        for file in listing.files:
            path = (*folder, file.path.rpartition("/")[2])
            paths.add((*path, "") if file.is_dir else path)
            if file.is_dir and len(path) <= DEPTH:
                folders.append(path)
        if not folder and {path[0] for path in paths} & set(FILES):
            break
    return paths
