"""Fetches adapters from OCI registries: `oci://HOST/REPOSITORY:TAG`, or `…@sha256:<hex>` of a manifest.

The layout is that of ORAS: each file is a layer, named by the annotation `org.opencontainers.image.title`; or
one layer is an archive. Each blob is verified by its digest, and the registry shows the manifest's.
Credentials are those of Docker's `config.json`, if it contains them itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, NonNegativeInt, StringConstraints, ValidationError
from yarl import URL

from adapters.checks.adapter_folder import adapter_folder
from adapters.checks.file_kinds import KNOWN
from adapters.checks.findings import Findings
from adapters.progress import ProgressMeter
from adapters.sources.archive_download import check_hash, fetch_archive
from adapters.sources.download import download, run
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.public_uri import public
from adapters.sources.staging_area import SourceRefusedError, StagingArea, archive_limit, malformed, too_much
from adapters.sources.web_client import WebClient

_NAME = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_URI = re.compile(
    r"oci://(?P<host>[A-Za-z0-9][A-Za-z0-9.-]{0,252}(?::(?P<port>[0-9]{1,5}))?)"
    rf"/(?P<repository>{_NAME}(?:/{_NAME})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_LAST_PORT = 65_535
_TITLE = "org.opencontainers.image.title"
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_MANIFEST_BYTES = 4 * 1024 * 1024
_TOKEN_BYTES = 64 * 1024
_ARCHIVE = re.compile(r".*[.+](tar|tar\+gzip|tar\.gz|tgz|tar\.xz|gzip|zip)", re.ASCII)
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"', re.ASCII | re.IGNORECASE)
_PLAIN_HOSTS = frozenset({"localhost", "127.0.0.1"})
"""Registries there speak HTTP without TLS, as for Docker."""


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `adapters.sources.Fetch`. Returns the URI with the manifest's digest."""
    try:
        place = _Place.parse(uri)
        meter = ProgressMeter(FETCHING, options.progress)
        staging = StagingArea(destination, options.max_bytes)
        registry, digest, archive = run(_fetch(place, staging, options, meter, findings), meter)
        if archive is not None:
            blob = registry.client(f"blobs/{archive.digest}")
            if archive.size > (limit := archive_limit(options.max_bytes)):
                raise too_much("The archive", archive.size, limit)
            fetch_archive(
                partial(blob.open, plain=True),
                destination,
                options=options,
                findings=findings,
                check=lambda path, _: check_hash(path, archive.sha256),
            )
    except SourceRefusedError as refusal:
        refusal.add_to(findings)
        return public(uri)
    return f"oci://{place.host}/{place.repository}@{digest}"


_Text = Annotated[str, StringConstraints(pattern="^[!-~]*$")]


class _Layer(BaseModel):
    digest: Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")]
    size: NonNegativeInt
    media_type: str = Field("", alias="mediaType")
    annotations: dict[str, str] | None = None

    @property
    def title(self) -> str:
        return (self.annotations or {}).get(_TITLE, "")

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")

    @property
    def packed(self) -> bool:
        return any(_ARCHIVE.fullmatch(kind) for kind in (self.title, self.media_type))


class _Manifest(BaseModel):
    layers: list[_Layer] = Field(max_length=1000)


class _Token(BaseModel):
    token: _Text | None = None
    access_token: _Text | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    repository: str
    reference: str
    """A tag or a digest."""

    @classmethod
    def parse(cls, uri: str) -> Self:
        named = _URI.fullmatch(uri)
        if named is None or int(named["port"] or 0) > _LAST_PORT:
            forms = "oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:<hex>"
            raise malformed(uri, "a valid reference to a registry", forms)
        return cls(named["host"].lower(), named["repository"], named["digest"] or named["tag"] or "latest")


@dataclass(frozen=True, slots=True)
class _Registry:
    """One repository, with what the registry wants to see of its readers."""

    url: URL
    options: FetchOptions
    authorization: str | None = None

    def client(self, path: str, accept: str = "*/*") -> WebClient:
        return WebClient(self.url / path, self.authorization, self.options, accept)

    async def signed_in(self, path: str, place: _Place) -> Self:
        """This repository with the authorization that the registry asks for. Raises SourceRefusedError."""
        challenge = await self.client(path, _MANIFESTS).challenge()
        if challenge is None:
            return self
        own = _credentials(place.host) if self.options.own_access else None
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            return replace(self, authorization=own)
        parameters = {name.lower(): value for name, value in _PARAMETER.findall(rest)}
        try:
            realm = URL(parameters.get("realm", ""))
            if (
                kind.lower() != "bearer"
                or realm.scheme not in ("https", self.url.scheme)
                or not realm.raw_host
            ):
                raise ValueError(challenge)
        except ValueError:
            raise _unusable("a challenge of another kind", "Basic or Bearer authentication") from None
        query = {"scope": f"repository:{place.repository}:pull"}
        if service := parameters.get("service"):
            query["service"] = service
        client = WebClient(realm.update_query(query).with_user(None), own, self.options)
        try:
            answer = _Token.model_validate_json(await client.document("The registry's token", _TOKEN_BYTES))
        except ValidationError:
            answer = _Token()
        token = answer.token or answer.access_token
        if not token:
            raise _unusable("an answer without a token", "a token")
        return replace(self, authorization=f"Bearer {token}")


async def _fetch(
    place: _Place, staging: StagingArea, options: FetchOptions, meter: ProgressMeter, findings: Findings
) -> tuple[_Registry, str, _Layer | None]:
    """Fetch the files and return the manifest's digest; or return the layer that is an archive of them."""
    scheme = "http" if place.host.partition(":")[0] in _PLAIN_HOSTS else "https"
    path = f"manifests/{place.reference}"
    registry = _Registry(URL(f"{scheme}://{place.host}/v2/{place.repository}"), options)
    registry = await registry.signed_in(path, place)
    content = await registry.client(path, _MANIFESTS).document("The manifest", _MANIFEST_BYTES)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if place.reference.startswith("sha256:") and digest != place.reference:
        raise SourceRefusedError(
            "hash_mismatch", "The manifest does not match its digest.", found=digest, expected=place.reference
        )
    try:
        layers = _Manifest.model_validate_json(content).layers
    except ValidationError:
        raise _unusable("something else", "the manifest of one artifact, with its layers") from None
    packed = [layer for layer in layers if layer.packed]
    if len(layers) == len(packed) == 1:
        return registry, digest, packed[0]
    titled = {parts: layer for layer in layers if (parts := _parts(layer.title))}
    adapter = adapter_folder(titled.keys())
    adapter.check("among the layers", findings)
    if findings:
        return registry, digest, None
    for name in KNOWN:
        layer = titled.get((*adapter.path, name))
        if layer is None:
            continue
        file, limit = staging.directory / name, staging.limit(name)
        if layer.size > limit:
            raise too_much(name, layer.size, limit)
        start = partial(registry.client(f"blobs/{layer.digest}").open, plain=True)
        await download(start, file, limit=layer.size, what=name, options=options, meter=meter)
        check_hash(file, layer.sha256)
        staging.took(name, layer.size)
    meter.tell()
    return registry, digest, None


def _parts(title: str) -> tuple[str, ...] | None:
    parts = tuple(title.split("/"))
    return None if {"", ".", ".."} & set(parts) else parts


def _credentials(host: str) -> str | None:
    """Those of Docker for this registry. Helpers, which are programs, are not run."""
    directory = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    try:
        entry = json.loads((Path(directory) / "config.json").read_bytes())["auths"][host]
        auth = (
            entry.get("auth")
            or base64.b64encode(f"{entry['username']}:{entry['password']}".encode()).decode()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return f"Basic {auth}" if isinstance(auth, str) and auth.isascii() and auth.isprintable() else None


def _unusable(actual: str, expected: str) -> SourceRefusedError:
    return SourceRefusedError(
        "source_unavailable", "The registry returned an unexpected response.", found=actual, expected=expected
    )
