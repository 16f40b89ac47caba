"""Adapters from a real S3-protocol server: prefixes, archives, credentials, checksums, broken reads."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket

import pytest

from adapters.sources.options import FetchOptions
from tests.support.archives import CONFIG, WEIGHTS, tar_bytes
from tests.support.fetching import Fetched, fetcher
from tests.support.hostile_http import hostile_server
from tests.support.s3 import SECRET, new_bucket, s3_server, set_environment

OPTIONS = FetchOptions(max_bytes=8_000_000, stall_seconds=5, attempts=3, pause_seconds=0.01)


@pytest.fixture(scope="module")
def endpoint():
    with s3_server() as url:
        yield url


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path, endpoint):
    set_environment(monkeypatch, tmp_path, endpoint)


@pytest.fixture
def bucket(endpoint, environment):
    with new_bucket(endpoint) as client:
        client.put = lambda key, content, **more: client.put_object(
            Bucket=client.name, Key=key, Body=content, **more
        )
        yield client


@pytest.fixture
def fetch(tmp_path):
    return fetcher(tmp_path, OPTIONS)


@pytest.mark.parametrize("prefix", ["adapters/support/v1/", "adapters/ü b+c%20/", ""])
def test_a_prefix(bucket, fetch, files, prefix):
    for name, content in {**files, "README.md": b"#", "tokenizer_config.json": b"{}"}.items():
        bucket.put(prefix + name, content)
    bucket.put(f"{prefix}checkpoint-1/optimizer.pt", b"x")
    told = []
    for end in {prefix, prefix.rstrip("/")}:
        fetched = fetch(f"s3://{bucket.name}/{end}", progress=lambda *step: told.append(step))
        assert fetched.codes == []
        assert fetched.landed == {**files, "tokenizer_config.json": b"{}"}
        assert fetched.public == f"s3://{bucket.name}/{end}"
    assert told[-1][1] == sum(map(len, files.values())) + 2


def test_an_archive(bucket, fetch, files):
    data = tar_bytes(files)
    bucket.put("support.tar.gz", data)
    uri = f"s3://{bucket.name}/support.tar.gz"
    assert fetch(uri) == Fetched([], files, uri, "")
    right = hashlib.sha256(data).hexdigest()
    assert fetch(f"{uri}#sha256={right}").codes == []
    assert fetch(f"{uri}#sha256={'0' * 64}").codes == ["hash_mismatch"]
    assert fetch(f"s3://{bucket.name}/other#sha256={right}").codes == ["source_missing"]


def test_missing_source(bucket, fetch, files):
    assert fetch(f"s3://{bucket.name}/nothing").codes == ["source_missing"]
    assert fetch("s3://no-such-bucket-at-all/x/").codes == ["source_missing"]
    assert fetch("s3://no-such-bucket-at-all/x").codes == ["source_missing"]
    bucket.put(f"half/{CONFIG}", files[CONFIG])
    assert fetch(f"s3://{bucket.name}/half").codes == ["file_missing"]


def test_a_prefix_that_has_its_adapter_in_a_folder(bucket, fetch, files):
    for name, content in files.items():
        bucket.put(f"v/train/{name}", content)
    bucket.put("v/run.sh", b"x")
    fetched = fetch(f"s3://{bucket.name}/v")
    assert (fetched.codes, fetched.landed) == ([], files)
    assert fetched.public == f"s3://{bucket.name}/v/train/"
    bucket.put(f"v/eval/{CONFIG}", files[CONFIG])
    assert set(fetch(f"s3://{bucket.name}/v").codes) == {"files_ignored", "file_missing"}


def test_pickled_weights_are_refused_before_the_download(bucket, fetch, files):
    for name, content in {CONFIG: files[CONFIG], "adapter_model.bin": b"x", "run.sh": b"x"}.items():
        bucket.put(f"v/{name}", content)
    fetched = fetch(f"s3://{bucket.name}/v")
    assert fetched.codes == ["unsafe_file", "files_ignored", "file_missing"]
    assert fetched.landed == {}


def test_files_over_the_limit(bucket, fetch, files):
    for name, content in files.items():
        bucket.put(f"v/{name}", content)
    total = sum(map(len, files.values()))
    assert fetch(f"s3://{bucket.name}/v", max_bytes=total).codes == []
    assert fetch(f"s3://{bucket.name}/v", max_bytes=total - 1).codes == ["too_large"]


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA256"])
def test_checksums_that_the_store_keeps(bucket, fetch, files, algorithm):
    for name, content in files.items():
        bucket.put(f"v/{name}", content, ChecksumAlgorithm=algorithm)
    assert fetch(f"s3://{bucket.name}/v").codes == []


def test_invalid_uri(fetch):
    for uri in (
        "s3://", "s3:///key", "s3://b?x=y/k", "s3://bucket/k?versionId=1", "s3://bucket/k#x",
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/key", "s3:bucket/key", "s3://bucket/a\nb", "s3://bucket/a//b",
        "s3://bucket/../b",
    ):  # fmt: skip
        fetched = fetch(uri)
        assert fetched.codes == ["source_unsupported"], uri
        assert SECRET not in fetched.said + fetched.public


def test_unreachable_object_store(fetch, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert fetch("s3://bucket/key/", attempts=1).codes == ["source_unavailable"]


def test_invalid_credentials_settings(fetch, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "rubbish")
    assert fetch("s3://bucket/key/").codes == ["source_unavailable"]
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    assert fetch("s3://bucket/key/").codes == ["source_unavailable"]


MODIFIED = "Sun, 01 Nov 2026 00:00:00 GMT"


class FakeStore:
    """As much of the S3 protocol as one prefix needs, so that its answers can be wrong."""

    def __init__(self, server, files: dict[str, bytes]) -> None:
        self.server = server
        self.files = files
        self.etags = {name: f'"{hashlib.md5(content).hexdigest()}"' for name, content in files.items()}
        server.handlers["/bucket"] = self.list
        for name in files:
            server.handlers[f"/bucket/v/{name}"] = self.give
        self.cuts: list[int | None] = []
        self.on_get = lambda r, name: None

    def list(self, r):
        items = "".join(
            f"<Contents><Key>v/{name}</Key><Size>1</Size><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            "</Contents>"
            for name in self.files
        )
        r.answer(f"<ListBucketResult>{items}</ListBucketResult>".encode(), content_type="application/xml")

    def give(self, r):
        name = r.path.partition("?")[0].rpartition("/")[2]
        content, etag = self.files[name], self.etags[name]
        if r.method == "HEAD":
            r.head(200, content_length=len(content), etag=etag, last_modified=MODIFIED)
            return
        if self.on_get(r, name):
            return
        until = self.cuts.pop(0) if self.cuts and name == WEIGHTS else None
        if r.start and r.headers["if-range"] == self.etags[name]:
            span = f"bytes {r.start}-{len(content) - 1}/{len(content)}"
            r.head(206, content_length=len(content) - r.start, content_range=span, etag=etag)
        else:
            r.head(200, content_length=len(content), etag=self.etags[name])
        r.send(content[r.start : until])

    def gets(self, name: str) -> list[int]:
        return [r.start for r in self.server.requests if r.method == "GET" and f"{name}?" in r.path]


@pytest.fixture
def store(files, monkeypatch):
    with hostile_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        files[WEIGHTS] += bytes(range(256)) * 8000
        yield FakeStore(server, files)


def test_requests_to_the_store_are_signed(store, fetch, files):
    assert fetch("s3://bucket/v/").landed == files
    sent = [f"{r.path} {r.headers}" for r in store.server.requests]
    assert all("AWS4-HMAC-SHA256" in request and SECRET not in request for request in sent)


def test_download_resumes_after_a_broken_read(store, fetch, files):
    store.cuts = [500_000, 900_000, None]
    fetched = fetch("s3://bucket/v/")
    assert (fetched.codes, fetched.landed == files) == ([], True)
    assert store.gets(WEIGHTS) == [0, 500_000, 900_000]


def test_a_read_that_stalls(store, fetch, files):
    def stall_once(r, name):
        if name == WEIGHTS and r.start == 0:
            r.head(200, content_length=len(files[WEIGHTS]), etag=store.etags[name])
            r.send(files[WEIGHTS][:500_000])
            r.stall()
            return True
        return False

    store.on_get = stall_once
    assert fetch("s3://bucket/v/", stall_seconds=0.5).codes == []
    first, second, *more = store.gets(WEIGHTS)  # on a busy machine, the others may seem to stall, too
    assert (first, second) == (0, 500_000)
    assert all(start >= 500_000 for start in more)


def test_an_object_that_is_replaced_in_between(store, fetch):
    def replace_config(r, name):
        store.etags[WEIGHTS] = '"another"'

    store.on_get = replace_config
    fetched = fetch("s3://bucket/v/")
    assert fetched.codes == ["source_changed"]
    assert store.gets(WEIGHTS) == [0]


def test_an_object_that_is_replaced_between_two_ranges(store, fetch):
    store.cuts = [500_000, None]

    def replace_weights(r, name):
        if r.start:
            store.etags[WEIGHTS] = '"another"'

    store.on_get = replace_weights
    assert fetch("s3://bucket/v/").codes == ["source_changed"]


def test_a_store_that_ignores_the_condition(store, fetch, files):
    def give_another(r, name):
        r.answer(b"x" * len(files[name]), etag='"another"')
        return True

    store.on_get = give_another
    assert fetch("s3://bucket/v/").codes == ["source_changed"]


def test_content_that_does_not_match_the_etag(store, fetch, files):
    def give_wrong(r, name):
        r.answer(b"x" * len(files[name]), etag=store.etags[name])
        return True

    store.on_get = give_wrong
    assert fetch("s3://bucket/v/").codes == ["hash_mismatch"]


def test_more_bytes_than_announced(store, fetch, files):
    def flood(r, name):
        r.head(200, transfer_encoding="chunked", etag=store.etags[name])
        with contextlib.suppress(OSError):
            for _ in range(100):
                r.send(b"100000\r\n", bytes(1 << 20), b"\r\n")
        return True

    store.on_get = flood
    assert fetch("s3://bucket/v/").codes == ["too_large"]


@pytest.mark.parametrize(
    ("status", "code", "means"),
    [
        (403, "SignatureDoesNotMatch", "source_denied"),
        (403, "AccessDenied", "source_denied"),
        (400, "AuthorizationHeaderMalformed", "source_unavailable"),
        (500, "InternalError", "source_unavailable"),
        (503, "SlowDown", "source_unavailable"),
    ],
)
def test_answers_of_the_store(store, fetch, caplog, status, code, means):
    caplog.set_level(logging.INFO)
    body = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
    for path in list(store.server.handlers):
        store.server.handlers[path] = lambda r: r.answer(b"" if r.method == "HEAD" else body, status=status)
    fetched = fetch("s3://bucket/v/", attempts=1)
    assert fetched.codes == [means]
    assert SECRET not in fetched.said + caplog.text


def test_transient_errors(store, fetch):
    seen = set()

    def fail_once(r, name):
        if name not in seen:
            seen.add(name)
            r.answer(b"<Error><Code>SlowDown</Code></Error>", status=503)
            return True
        return False

    store.on_get = fail_once
    assert fetch("s3://bucket/v/").codes == []


def test_a_reader_who_may_not_list(store, fetch, files):
    """Then the store says 403 even of what is not there."""
    store.server.handlers["/bucket"] = lambda r: r.answer(
        b"<Error><Code>AccessDenied</Code></Error>", status=403
    )
    for name in ("v", "v/tokenizer_config.json", "v/chat_template.jinja"):
        store.server.handlers[f"/bucket/{name}"] = lambda r: r.answer(status=403)
    assert fetch("s3://bucket/v").landed == files


def test_public_buckets_need_no_credentials(store, fetch, files, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert fetch("s3://bucket/v/").landed == files
    assert not [r for r in store.server.requests if "authorization" in r.headers or "Signature" in r.path]
