"""Adapters from Google Cloud Storage and Azure: small doubles of both protocols, as far as one prefix needs them.

S3 has a real server, in test_source_s3.py; what all have in common is tested there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from urllib.parse import unquote

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from adapters.sources.options import FetchOptions
from tests.support.archives import WEIGHTS
from tests.support.fetching import fetcher
from tests.support.hostile_http import hostile_server

OPTIONS = FetchOptions(max_bytes=8_000_000, stall_seconds=5, attempts=3, pause_seconds=0.01)
KEY = base64.b64encode(b"the account's key").decode()
MODIFIED = "Sun, 01 Nov 2026 00:00:00 GMT"
GOOGLE_ITEM = (
    "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-11-01T00:00:00.000Z</LastModified></Contents>"
)
AZURE_ITEM = (
    f"<Blob><Name>{{}}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>"
    "<Content-Length>{}</Content-Length><Content-Type>x</Content-Type><Etag>0x8D</Etag></Properties></Blob>"
)


class Double:
    """A bucket with the files of one adapter under `v/`. `signature`: what a signed URL has in its query.
    `wrong`: whether it sends other bytes than it says."""

    def __init__(self, kind: str, server, files: dict[str, bytes]) -> None:
        self.kind, self.server, self.files = kind, server, files
        self.signature = "X-Goog-Signature=" if kind == "gs" else "sig="
        self.cut, self.wrong = 0, False
        server.handlers["/bucket"] = self.list
        for name in files:
            server.handlers[f"/bucket/v/{name}"] = self.give  # Google's signed URLs look like Azure's
            server.handlers["/bucket/" + re.sub("[^A-Za-z0-9]", _escaped, f"v/{name}")] = self.give

    def list(self, r) -> None:
        item = GOOGLE_ITEM if self.kind == "gs" else AZURE_ITEM
        items = "".join(item.format(f"v/{name}", len(content)) for name, content in self.files.items())
        body = (
            f"<ListBucketResult>{items}</ListBucketResult>"
            if self.kind == "gs"
            else f"<EnumerationResults><Blobs>{items}</Blobs><NextMarker/></EnumerationResults>"
        )
        r.answer(body.encode(), content_type="application/xml")

    def give(self, r) -> None:
        name = next(name for name in self.files if name in unquote(r.path))
        content = self.files[name]
        digest = base64.b64encode(hashlib.md5(content).digest()).decode()
        about = {"etag": '"0x8D"', "last_modified": MODIFIED}
        about |= (
            {"x_goog_hash": f"crc32c=AAAAAA==,md5={digest}"} if self.kind == "gs" else {"content_md5": digest}
        )
        if r.method == "HEAD":
            r.head(200, content_length=len(content), **about)
            return
        until, self.cut = (self.cut, 0) if self.cut and name == WEIGHTS else (None, self.cut)
        if r.start and self.kind == "az":
            about["x_ms_blob_content_md5"] = about.pop("content_md5")
        r.ranged(bytes(len(content)) if self.wrong else content, until=until, **about)

    def signed_gets(self) -> list[int]:
        return [r.start for r in self.server.requests if self.signature in r.path and WEIGHTS in r.path]


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


@pytest.fixture(scope="module")
def service_account() -> dict[str, str]:
    key = rsa.generate_private_key(65537, 2048)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return {"private_key": text, "private_key_id": "k", "client_email": "florin@example.com"}


@pytest.fixture(params=["gs", "az"])
def store(request, files, monkeypatch, tmp_path, service_account):
    with hostile_server() as server:
        account = tmp_path / "account.json"
        account.write_text(json.dumps(service_account | {"gcs_base_url": server.url}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "florin")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.url)
        yield Double(request.param, server, files)


@pytest.fixture
def fetch(tmp_path):
    return fetcher(tmp_path, OPTIONS)


def test_a_prefix(store, fetch, files):
    uri = f"{store.kind}://bucket/v"
    fetched = fetch(uri)
    assert (fetched.codes, fetched.landed, fetched.public) == ([], files, uri)
    assert len(store.signed_gets()) == 1
    assert KEY not in "".join(f"{r.path} {r.headers}" for r in store.server.requests)


def test_it_resumes_and_verifies_what_it_got(store, fetch, files):
    store.cut = 1000
    assert fetch(f"{store.kind}://bucket/v").landed == files
    assert store.signed_gets() == [0, 1000]
    store.wrong = True
    assert fetch(f"{store.kind}://bucket/v").codes == ["hash_mismatch"]


def test_a_missing_prefix_and_a_refusal(store, fetch):
    store.files.clear()
    assert fetch(f"{store.kind}://bucket/v").codes == ["source_missing"]
    for path in list(store.server.handlers):
        store.server.handlers[path] = lambda r: r.answer(b"", status=403)
    assert fetch(f"{store.kind}://bucket/v/").codes == ["source_denied"]
