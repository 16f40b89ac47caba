"""Adapters from MLflow's model registry: a small double of its REST API, and its files there or in a bucket."""

from __future__ import annotations

import base64
import json
from urllib.parse import parse_qs, unquote

import pytest

from adapters.sources.options import FetchOptions
from tests.support.fetching import fetcher
from tests.support.hostile_http import hostile_server
from tests.support.s3 import new_bucket, s3_server, set_environment

OPTIONS = FetchOptions(max_bytes=8_000_000, stall_seconds=5, attempts=1, pause_seconds=0.01)
API = "/api/2.0"


class Server:
    def __init__(self, server, files: dict[str, bytes]) -> None:
        self.server = server
        self.place = "mlflow-artifacts:/1/models/m-7/artifacts"
        for path, handle in {
            f"{API}/mlflow/registered-models/alias": lambda r: self.say(
                r, {"model_version": {"version": "3"}}
            ),
            f"{API}/mlflow/model-versions/get-download-uri": lambda r: self.say(
                r, {"artifact_uri": self.place}
            ),
            f"{API}/mlflow-artifacts/artifacts": self.list,
        }.items():
            server.handlers[path] = handle
        self.tree = {"MLmodel": b"x", **{f"peft/{name}": content for name, content in files.items()}}
        for path, content in self.tree.items():
            server.handlers[f"{API}/mlflow-artifacts/artifacts/1/models/m-7/artifacts/{path}"] = (
                lambda r, content=content: r.ranged(content)
            )

    def say(self, r, body: object) -> None:
        r.answer(json.dumps(body).encode())

    def list(self, r) -> None:
        path = parse_qs(unquote(r.path).partition("?")[2])["path"][0].removeprefix("1/models/m-7/artifacts")
        inside = [name.removeprefix("peft/") for name in self.tree if path or "/" not in name]
        inside = [name for name in inside if not (path and name == "MLmodel")]
        files = [{"path": name, "is_dir": False, "file_size": 1} for name in inside]
        self.say(r, {"files": files + ([] if path else [{"path": "peft", "is_dir": True}])})


@pytest.fixture
def server(monkeypatch, files):
    for name in ("REGISTRY_URI", "TRACKING_USERNAME", "TRACKING_PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken")
    with hostile_server() as running:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", running.url)
        yield Server(running, files)


@pytest.fixture
def fetch(tmp_path):
    return fetcher(tmp_path, OPTIONS)


@pytest.mark.parametrize("uri", ["models:/support model/3", "models:/support model@champion"])
def test_a_model_whose_files_the_server_keeps(server, fetch, files, uri):
    fetched = fetch(uri)
    assert (fetched.codes, fetched.landed) == ([], files)
    assert fetched.public == "models:/support model/3"
    assert {r.headers["authorization"] for r in server.server.requests} == {"Bearer t0ken"}


def test_a_model_whose_files_are_in_a_bucket(server, fetch, files, monkeypatch, tmp_path):
    with s3_server() as endpoint:
        set_environment(monkeypatch, tmp_path, endpoint)
        with new_bucket(endpoint) as bucket:
            for name, content in files.items():
                bucket.put_object(Bucket=bucket.name, Key=f"7/artifacts/peft/{name}", Body=content)
            server.place = f"s3://{bucket.name}/7/artifacts"
            fetched = fetch("models:/support/3")
    assert (fetched.codes, fetched.landed, fetched.public) == ([], files, "models:/support/3")


@pytest.mark.parametrize(
    "place",
    ["file:///etc", "/etc", "http://127.0.0.1/x", "dbfs:/x", "mlflow-artifacts:/a/../../x", "rubbish"],
)
def test_no_other_place_is_read(server, fetch, place):
    server.place = place
    assert fetch("models:/support/3").codes == ["source_unsupported"]


def test_answers_that_are_not_mlflow_s(server, fetch):
    path = f"{API}/mlflow/model-versions/get-download-uri"
    for answer in (b"x", b"[]", b'{"artifact_uri": 1}'):
        server.server.handlers[path] = lambda r, answer=answer: r.answer(answer)
        assert fetch("models:/support/3").codes == ["source_unavailable"]
    server.server.handlers[path] = lambda r: r.answer(bytes(5 << 20))
    assert fetch("models:/support/3").codes == ["too_large"]
    server.server.handlers[path] = lambda r: r.answer(b"{}", status=404)
    assert fetch("models:/support/3").codes == ["source_missing"]


def test_credentials_in_the_url_of_the_server(server, fetch, monkeypatch, files):
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.server.url.replace("://", "://robot:s3cret@"))
    assert fetch("models:/support/3").landed == files
    sent = {r.headers.get("authorization") for r in server.server.requests}
    assert sent == {f"Basic {base64.b64encode(b'robot:s3cret').decode()}"}


def test_without_a_server(fetch, monkeypatch):
    monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
    for uri in ("", "file:///mlruns", "databricks"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert fetch("models:/support/3").codes == ["source_unavailable"]
    for uri in ("models:/support", "models:/a/b/3", "models://support/3", "models:/support/3?x=1"):
        assert fetch(uri).codes == ["source_unsupported"]
