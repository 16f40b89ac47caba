"""Adapters from a hub that speaks the Hugging Face Hub's routes over real sockets, and from its local cache."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import close_session

from adapters.sources.options import FetchOptions
from tests.support.archives import CONFIG, WEIGHTS
from tests.support.fetching import Fetched, fetcher
from tests.support.hostile_http import hostile_server

OPTIONS = FetchOptions(max_bytes=8_000_000, stall_seconds=5, attempts=2, pause_seconds=0.01)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "acme/support"
TOKEN = "hf_a_secret_token"


class Hub:
    """One repository. Files that end in .safetensors lie in the storage behind the hub, as with git-lfs."""

    def __init__(self, server, storage, files: dict[str, bytes]) -> None:
        self.server, self.storage, self.files = server, storage, files
        for revision in ("main", "v1", COMMIT, "refs%2Fpr%2F1"):
            server.handlers[f"/api/models/{REPO}/revision/{revision}"] = self.info
        for name in files:
            server.handlers[f"/{REPO}/resolve/{COMMIT}/{name}"] = self.resolve
            storage.handlers[f"/blob/{name}"] = self.blob
        self.cuts: list[int | None] = []

    def info(self, r):
        siblings = []
        for name, content in self.files.items():
            item = {"rfilename": name, "size": len(content), "blobId": self.git(content)}
            if name.endswith(".safetensors"):
                sha = hashlib.sha256(content).hexdigest()
                item["lfs"] = {"sha256": sha, "size": len(content), "pointerSize": 130}
            siblings.append(item)
        r.answer(json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode())

    @staticmethod
    def git(content: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def resolve(self, r):
        name = r.path.partition(COMMIT + "/")[2]
        content = self.files[name]
        common = {"x_repo_commit": COMMIT, "etag": f'"{self.git(content)}"'}
        if name.endswith(".safetensors"):
            common |= {
                "x_linked_etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "x_linked_size": len(content),
                "location": f"{self.storage.url}/blob/{name}?Signature=signed-secret",
            }
            r.head(302, content_length=0, **common)
        else:
            r.head(200, content_length=len(content), **common)
            r.send(b"" if r.method == "HEAD" else content)

    def blob(self, r):
        content = self.files[r.path.removeprefix("/blob/").partition("?")[0]]
        until = self.cuts.pop(0) if self.cuts else None
        span = f"bytes {r.start}-{len(content) - 1}/{len(content)}"
        more = {"content_range": span} if r.start else {}
        r.head(206 if r.start else 200, content_length=len(content) - r.start, **more)
        r.send(content[r.start : until])

    def asked(self, name: str) -> list[int]:
        return [r.start for r in self.storage.requests if r.path.startswith(f"/blob/{name}")]


@pytest.fixture
def hub(files, monkeypatch, tmp_path):
    with hostile_server() as server, hostile_server(host="127.0.0.9") as storage:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        extra = {"README.md": b"#", ".gitattributes": b"", "training_args.bin": b"x"}
        yield Hub(server, storage, {**files, **extra, "checkpoint-1/optimizer.pt": b"x"})
        close_session()


@pytest.fixture
def fetch(tmp_path):
    return fetcher(tmp_path, OPTIONS)


@pytest.mark.parametrize("revision", ["", "@main", "@v1", f"@{COMMIT}", "@refs/pr/1", "@refs%2Fpr%2F1"])
def test_a_repository(hub, fetch, files, revision):
    told = []
    fetched = fetch(f"hf://{REPO}{revision}", progress=lambda *step: told.append(step))
    assert (fetched.landed, fetched.public) == (files, f"hf://{REPO}@{COMMIT}")
    total = sum(map(len, files.values()))
    assert told[-1] == ("fetch", total, total)


def test_only_the_known_files_are_fetched_and_the_token_stays_with_the_hub(hub, fetch, files, caplog):
    caplog.set_level(logging.INFO)
    fetch(f"hf://{REPO}")
    gets = {r.path for r in hub.server.requests if "/resolve/" in r.path}
    assert gets == {f"/{REPO}/resolve/{COMMIT}/{name}" for name in files}
    assert {r.headers["authorization"] for r in hub.server.requests} == {f"Bearer {TOKEN}"}
    assert hub.asked(WEIGHTS)
    assert not [r for r in hub.storage.requests if "authorization" in r.headers]
    assert "signed-secret" not in caplog.text


def test_a_folder(hub, fetch, files):
    for name, content in files.items():
        hub.files[f"a/b/{name}"] = content + b" " * (name == CONFIG)
        hub.server.handlers[f"/{REPO}/resolve/{COMMIT}/a/b/{name}"] = hub.resolve
        hub.storage.handlers[f"/blob/a/b/{name}"] = hub.blob
    fetched = fetch(f"hf://{REPO}@v1/a/b/")
    assert fetched.codes == []
    assert fetched.public == f"hf://{REPO}@{COMMIT}/a/b"
    assert fetched.landed[CONFIG] == files[CONFIG] + b" "
    assert fetch(f"hf://{REPO}/nowhere").codes == ["file_missing", "file_missing"]


def test_weights_in_other_files_are_named(hub, fetch, files):
    hub.files |= {"adapter_model.gguf": b"x", "run.py": b"x"}
    fetched = fetch(f"hf://{REPO}")
    assert (fetched.codes, fetched.landed) == (["other_weights", "files_ignored"], files)


def test_a_repository_that_has_its_adapter_in_a_folder(hub, fetch, files):
    for name in files:
        hub.files[f"train/{name}"] = hub.files.pop(name)
        hub.server.handlers[f"/{REPO}/resolve/{COMMIT}/train/{name}"] = hub.resolve
        hub.storage.handlers[f"/blob/train/{name}"] = hub.blob
    fetched = fetch(f"hf://{REPO}")
    assert (fetched.public, fetched.landed) == (f"hf://{REPO}@{COMMIT}/train", files)


def test_a_repository_of_pickles(hub, fetch):
    hub.files["adapter_model.bin"] = hub.files.pop(WEIGHTS)
    fetched = fetch(f"hf://{REPO}")
    assert fetched.codes == ["unsafe_file", "file_missing"]
    assert not [r for r in hub.server.requests if "/resolve/" in r.path]


def test_download_resumes_after_a_storage_failure(hub, fetch, files):
    hub.files[WEIGHTS] = files[WEIGHTS] = files[WEIGHTS] + bytes(range(256)) * 80_000
    hub.cuts = [12_000_000, None]
    assert fetch(f"hf://{REPO}", max_bytes=1 << 30).landed == files
    assert len(hub.asked(WEIGHTS)) == 2


@pytest.mark.parametrize("fault", ["stall", "reset", "503"])
def test_transient_faults(hub, fetch, files, fault, monkeypatch):
    if fault == "stall":
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)

    def faulty(r):
        if r.count:
            hub.blob(r)
        elif fault == "stall":
            r.head(200, content_length=len(hub.files[WEIGHTS]))
            r.stall()
        elif fault == "reset":
            r.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        else:
            r.answer(status=503)

    hub.storage.handlers[f"/blob/{WEIGHTS}"] = faulty
    assert fetch(f"hf://{REPO}").landed == files


def test_other_bytes_than_the_hash_of_the_pointer(hub, fetch, files):
    hub.storage.handlers[f"/blob/{WEIGHTS}"] = lambda r: r.answer(b"x" * len(files[WEIGHTS]))
    assert fetch(f"hf://{REPO}").codes == ["hash_mismatch"]


def test_other_bytes_than_git_has(hub, fetch, files):
    right = hub.info

    def wrong(r):
        hub.files[CONFIG] = b"{}" + files[CONFIG][2:]
        right(r)
        hub.files[CONFIG] = files[CONFIG]

    hub.server.handlers[f"/api/models/{REPO}/revision/main"] = wrong
    assert fetch(f"hf://{REPO}").codes == ["hash_mismatch"]


def test_files_over_the_limit(hub, fetch, files):
    total = sum(map(len, files.values()))
    assert fetch(f"hf://{REPO}", max_bytes=total).codes == []
    assert fetch(f"hf://{REPO}", max_bytes=total - 1).codes == ["too_large"]
    assert len(hub.asked(WEIGHTS)) == 1


def test_more_bytes_than_the_hub_announced(hub, fetch):
    def flood(r):
        r.head(200, transfer_encoding="chunked")
        for _ in range(100):
            r.send(b"100000\r\n", bytes(1 << 20), b"\r\n")

    hub.storage.handlers[f"/blob/{WEIGHTS}"] = flood
    assert fetch(f"hf://{REPO}").codes == ["too_large"]


def test_what_progress_raises_ends_it(hub, fetch, files):
    class CancelledError(Exception):
        pass

    def cancel(step, done, total):
        if done:
            raise CancelledError

    with pytest.raises(CancelledError):
        fetch(f"hf://{REPO}", progress=cancel)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (403, "GatedRepo", "source_denied"),
        (401, "GatedRepo", "source_denied"),
        (401, "RepoNotFound", "source_missing"),
        (404, "RepoNotFound", "source_missing"),
        (404, "RevisionNotFound", "source_missing"),
        (401, "", "source_denied"),
        (403, "", "source_denied"),
        (400, "", "source_unavailable"),
        (503, "", "source_unavailable"),
        (200, "", "source_unavailable"),
    ],
)
def test_answers_of_the_hub(hub, fetch, status, error, code):
    headers = {"x_error_code": error} if error else {}
    hub.server.handlers[f"/api/models/{REPO}/revision/main"] = lambda r: r.answer(
        b"<html>", status=status, **headers
    )
    fetched = fetch(f"hf://{REPO}")
    assert fetched.codes == [code]
    assert TOKEN not in fetched.said


@pytest.mark.parametrize(
    "answer",
    [b"[]", b"{}", b'{"id": "a/b", "sha": "../x", "siblings": []}', b'{"id":1,"siblings":[{}]}', b"3"],
)
def test_server_that_is_not_a_hub(hub, fetch, answer):
    hub.server.handlers[f"/api/models/{REPO}/revision/main"] = lambda r: r.answer(answer)
    assert fetch(f"hf://{REPO}").codes == ["source_unavailable"]


def test_a_hub_that_is_away(hub, fetch, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    assert fetch(f"hf://{REPO}").codes == ["source_unavailable"]


def test_invalid_uri(hub, fetch):
    for uri in (
        "hf://", "hf://acme", "hf:///acme/support", "hf://acme/support/../x", "hf://acme/support/a//b",
        "hf://acme/support?x=y", "hf://acme/support@a@b", f"hf://{TOKEN}@acme/support", "hf://../x", "hf:a/b",
        "hf://acme/support@", "hf://acme/sup\\port",
    ):  # fmt: skip
        fetched = fetch(uri)
        assert fetched.codes == ["source_unsupported"], uri
        assert TOKEN not in fetched.said + fetched.public
    assert not hub.server.requests


@pytest.fixture
def cached(hub, tmp_path):
    """The hub's repository in a cache, as huggingface_hub itself writes it; then nobody is asked."""
    for name in (CONFIG, WEIGHTS):
        hub_path = hf_hub_download(
            REPO, name, revision=COMMIT, cache_dir=tmp_path / "cache", endpoint=hub.server.url
        )
    refs = tmp_path / "cache" / "models--acme--support" / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "main").write_text(COMMIT)
    hub.server.requests.clear()
    hub.storage.requests.clear()
    return Path(hub_path).parent


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_offline_from_the_cache(hub, cached, fetch, files, monkeypatch, revision):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(f"hf://{REPO}{revision}") == Fetched([], files, f"hf://{REPO}@{COMMIT}", "")
    assert not hub.server.requests


def test_offline_without_it(hub, cached, fetch, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("hf://acme/other").codes == ["source_offline"]
    assert fetch(f"hf://{REPO}@v2").codes == ["source_offline"]
    (cached / WEIGHTS).unlink()
    assert fetch(f"hf://{REPO}").codes == ["source_offline"]


def test_a_damaged_cache(hub, cached, fetch, files, monkeypatch):
    blob = (cached / WEIGHTS).resolve()
    blob.chmod(0o644)
    blob.write_bytes(b"x" * len(files[WEIGHTS]))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(f"hf://{REPO}").codes == ["hash_mismatch"]


def test_what_is_cached_is_not_downloaded_again(hub, cached, fetch, files):
    assert fetch(f"hf://{REPO}").landed == files
    assert not hub.storage.requests


@pytest.mark.parametrize("end", ["models--acme--support", "models--acme--support/snapshots/" + COMMIT])
def test_a_local_directory_laid_out_as_a_cache(cached, fetch, files, tmp_path, end):
    fetched = fetch(f"{tmp_path}/cache/{end}")
    assert (fetched.codes, fetched.landed) == ([], files)
    assert fetched.public == str(cached)


def test_a_local_cache_without_a_main_branch(cached, fetch, files, tmp_path):
    repository = tmp_path / "cache" / "models--acme--support"
    (repository / "refs" / "main").unlink()
    assert fetch(str(repository)).landed == files
    (repository / "snapshots" / ("f" * 40)).mkdir()
    for name in files:
        (repository / "snapshots" / ("f" * 40) / name).write_bytes(b"x")
    assert fetch(str(repository)).codes == ["file_missing", "file_missing"]
