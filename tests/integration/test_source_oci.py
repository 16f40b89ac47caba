"""Adapters from an OCI registry: a small double of the protocol, which asks for tokens and redirects to blobs."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from adapters.sources.options import FetchOptions
from tests.support.archives import WEIGHTS, tar_bytes
from tests.support.fetching import fetcher
from tests.support.hostile_http import hostile_server

OPTIONS = FetchOptions(
    max_bytes=8_000_000, stall_seconds=5, attempts=1, pause_seconds=0.01, allow_private=("127.0.0.1",)
)
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
REPOSITORY = "/v2/acme/support"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """Wants a token for everything, and keeps blobs elsewhere, to where it redirects."""

    def __init__(self, server, storage) -> None:
        self.server, self.storage = server, storage
        self.host = server.url.removeprefix("http://")
        server.handlers["/token"] = lambda r: r.answer(b'{"token": "t0ken"}')

    def push(self, files: dict[str, bytes], *, media_type: str = "application/octet-stream") -> str:
        """As `oras push` does; the manifest's digest."""
        layers = []
        for title, content in files.items():
            annotations = {"org.opencontainers.image.title": title}
            digest = digest_of(content)
            layers.append(
                {"mediaType": media_type, "digest": digest, "size": len(content), "annotations": annotations}
            )
            self.blob(digest, content)
        return self.manifest({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers})

    def blob(self, digest: str, content: bytes) -> None:
        self.serve(f"/blobs/{digest}", b"", status=307, location=f"{self.storage.url}/{digest}")
        self.storage.handlers[f"/{digest}"] = lambda r: r.ranged(content, etag='"e"')

    def manifest(self, document: object) -> str:
        content = json.dumps(document).encode()
        for reference in ("v1", digest := digest_of(content)):
            self.serve(f"/manifests/{reference}", content, content_type=MANIFEST)
        return digest

    def serve(self, path: str, content: bytes, **answer) -> None:
        challenge = f'Bearer realm="{self.server.url}/token",service="double"'

        def handle(r) -> None:
            if r.headers.get("authorization") != "Bearer t0ken":
                r.answer(b"{}", status=401, www_authenticate=challenge)
            else:
                r.answer(content, **answer)

        self.server.handlers[REPOSITORY + path] = handle

    @property
    def reference(self) -> str:
        return f"oci://{self.host}/acme/support:v1"


@pytest.fixture
def registry(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with hostile_server() as server, hostile_server() as storage:
        yield Registry(server, storage)


@pytest.fixture
def fetch(tmp_path):
    return fetcher(tmp_path, OPTIONS)


@pytest.mark.parametrize("folder", ["", "support/"])
def test_files_as_layers(registry, fetch, files, folder):
    digest = registry.push({f"{folder}{name}": content for name, content in files.items()})
    fetched = fetch(registry.reference)
    assert (fetched.codes, fetched.landed) == ([], files)
    assert fetched.public == f"oci://{registry.host}/acme/support@{digest}"
    assert fetch(fetched.public).landed == files
    assert not [r for r in registry.storage.requests if "authorization" in r.headers]
    (scope,) = {r.path for r in registry.server.requests if r.path.startswith("/token")}
    assert scope == "/token?scope=repository:acme/support:pull&service=double"


def test_an_archive_as_the_only_layer(registry, fetch, files):
    registry.push({"support": tar_bytes(files)}, media_type="application/vnd.oci.image.layer.v1.tar+gzip")
    assert fetch(registry.reference).landed == files


def test_own_credentials_are_those_of_docker(registry, fetch, files, tmp_path):
    registry.push(files)
    auth = base64.b64encode(b"robot:s3cret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    for own, sent in ((True, {f"Basic {auth}"}), (False, set())):
        registry.server.requests.clear()
        assert fetch(registry.reference, own_access=own).codes == []
        basic = {r.headers["authorization"] for r in registry.server.requests if "authorization" in r.headers}
        assert basic - {"Bearer t0ken"} == sent


def test_what_is_not_what_the_digest_says_is_refused(registry, fetch, files):
    digest = registry.push(files)
    other = bytes(len(files[WEIGHTS]))
    registry.blob(digest_of(files[WEIGHTS]), other)
    assert fetch(registry.reference).codes == ["hash_mismatch"]
    registry.blob(digest_of(files[WEIGHTS]), other + b"x")
    assert fetch(registry.reference).codes == ["too_large"]
    registry.serve(f"/manifests/{digest}", b"{}")
    assert fetch(f"oci://{registry.host}/acme/support@{digest}").codes == ["hash_mismatch"]


def test_files_over_the_limit_are_not_fetched(registry, fetch, files):
    registry.push(files)
    assert fetch(registry.reference, max_bytes=sum(map(len, files.values())) - 1).codes == ["too_large"]
    assert not [r for r in registry.storage.requests if digest_of(files[WEIGHTS]) in r.path]


@pytest.mark.parametrize(
    ("manifest", "codes"),
    [
        ({"schemaVersion": 2, "manifests": []}, ["source_unavailable"]),
        ({"layers": [{"digest": "sha256:../../etc", "size": 1}]}, ["source_unavailable"]),
        ({"layers": [{"digest": f"sha256:{'0' * 64}", "size": -1}]}, ["source_unavailable"]),
        ({"layers": []}, ["file_missing", "file_missing"]),
        (["x"], ["source_unavailable"]),
    ],
)
def test_other_manifests(registry, fetch, manifest, codes):
    registry.manifest(manifest)
    assert fetch(registry.reference).codes == codes


def test_a_registry_at_a_private_address_must_be_allowed(registry, fetch, files):
    registry.push(files)
    assert fetch(registry.reference, allow_private=()).codes == ["source_not_public"]
    assert registry.server.requests == []


def test_a_token_from_a_private_address_must_be_allowed(registry, fetch, files):
    registry.push(files)
    registry.server.handlers[f"{REPOSITORY}/manifests/v1"] = lambda r: r.answer(
        b"", status=401, www_authenticate='Bearer realm="http://[::1]:9/latest/meta-data"'
    )
    assert fetch(registry.reference).codes == ["source_not_public"]


@pytest.mark.parametrize("answer", [b"[" * 60_000, b'{"token": 1}', b'{"token": "a\\nb"}', b"{}", b"[]"])
def test_answers_without_a_token(registry, fetch, files, answer):
    registry.push(files)
    registry.server.handlers["/token"] = lambda r: r.answer(answer)
    assert fetch(registry.reference).codes == ["source_unavailable"]


def test_invalid_references(fetch):
    for uri in ("oci://", "oci://host", "oci://host/Upper", "oci://u:p@host/x", "oci://host/a/../b",
                "oci://host/a@sha256:12", "oci://host/a:v1?x=1", "oci://host:99999/a"):  # fmt: skip
        assert fetch(uri).codes == ["source_unsupported"], uri


def test_missing_artifact(registry, fetch):
    assert fetch(registry.reference).codes == ["source_missing"]
