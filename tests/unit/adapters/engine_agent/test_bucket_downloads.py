"""An agent whose gateway sends it to a bucket, by URLs that the gateway signs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from adapters.engine_agent import artifact_download
from adapters.engine_agent.artifact_download import StageError, download
from adapters.engine_agent.gateway_client import GatewayClient
from adapters.registry.artifacts import digest_of
from tests.support.archives import CONFIG, WEIGHTS
from tests.support.hostile_http import hostile_server

SIZE = 300_000


class Fleet:
    """A gateway that signs URLs, and the bucket to which they lead. `cuts`: after how many bytes the bucket's
    answers break off; `expired`: how many signatures it takes for expired."""

    def __init__(self, gateway, bucket, tmp_path: Path) -> None:
        self.gateway, self.bucket = gateway, bucket
        directory = tmp_path / "files"
        directory.mkdir()
        self.files = {CONFIG: b"{}", WEIGHTS: bytes(range(256)) * (SIZE // 256)}
        for name, content in self.files.items():
            (directory / name).write_bytes(content)
        self.hexdigest = digest_of(directory)
        self.size = sum(map(len, self.files.values()))
        self.bucket_url = bucket.url
        self.cuts: list[int] = []
        self.expired = 0
        for name in self.files:
            gateway.handlers[f"/admin/v1/artifacts/{self.hexdigest}/{name}"] = self.sign
            bucket.handlers[f"/b/{name}"] = self.give

    def sign(self, r) -> None:
        name = r.path.rpartition("/")[2]
        r.answer(b"", status=307, location=f"{self.bucket_url}/b/{name}?signature=s3cret{r.count}")

    def give(self, r) -> None:
        name = r.path.partition("?")[0].rpartition("/")[2]
        if name == WEIGHTS and self.expired:
            self.expired -= 1
            r.answer(b"<Error><Code>AccessDenied</Code></Error>", status=403)
            return
        content = self.files[name]
        until = self.cuts.pop(0) if self.cuts and name == WEIGHTS else None
        if r.start:
            span = f"bytes {r.start}-{len(content) - 1}/{len(content)}"
            r.head(206, content_length=len(content) - r.start, content_range=span)
        else:
            r.head(200, content_length=len(content))
        r.send(content[r.start : until])

    def asked(self, server) -> list[int]:
        return [r.start for r in server.requests if WEIGHTS in r.path]


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_download, "PAUSE_SECONDS", 0.0)
    with hostile_server() as gateway, hostile_server() as bucket:
        yield Fleet(gateway, bucket, tmp_path)


@pytest.fixture
async def agent(fleet):
    async with GatewayClient(fleet.gateway.url, "fl_own_key") as client:
        yield client


async def fetched(agent, fleet, tmp_path) -> Path:
    directory = tmp_path / "staged"
    directory.mkdir()
    await download(agent, fleet.hexdigest, fleet.size, directory)
    return directory


async def test_the_bucket_is_asked_without_the_host_s_key(agent, fleet, tmp_path):
    directory = await fetched(agent, fleet, tmp_path)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == fleet.files
    assert all(r.headers["authorization"] == "Bearer fl_own_key" for r in fleet.gateway.requests)
    assert not [r for r in fleet.bucket.requests if "authorization" in r.headers]


async def test_a_bucket_behind_a_proxy_is_not_sent_what_a_netrc_says(agent, fleet, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("default login florin password s3cret")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", fleet.bucket.url)
    fleet.bucket.handlers = {f"http://bucket.test{p}": give for p, give in fleet.bucket.handlers.items()}
    fleet.bucket_url = "http://bucket.test"
    await fetched(agent, fleet, tmp_path)
    assert fleet.asked(fleet.bucket) == [0]
    assert not [r for r in fleet.bucket.requests if "authorization" in r.headers]


async def test_it_goes_on_where_it_broke_with_a_new_signature(agent, fleet, tmp_path):
    fleet.cuts = [100_000, 200_000]
    await fetched(agent, fleet, tmp_path)
    assert fleet.asked(fleet.bucket) == fleet.asked(fleet.gateway) == [0, 100_000, 200_000]
    signatures = [r.path.rpartition("=")[2] for r in fleet.bucket.requests if WEIGHTS in r.path]
    assert signatures == ["s3cret0", "s3cret1", "s3cret2"]


async def test_an_expired_signature_is_replaced(agent, fleet, tmp_path):
    fleet.expired = 1
    await fetched(agent, fleet, tmp_path)
    fleet.expired = artifact_download.ATTEMPTS
    with pytest.raises(StageError, match="returned HTTP 403") as refusal:
        await download(agent, fleet.hexdigest, fleet.size, tmp_path)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize("damage", ["truncated", "changed", "longer"])
async def test_what_is_not_the_version_is_not_staged(agent, fleet, tmp_path, damage):
    content = fleet.files[WEIGHTS]
    changes = {"truncated": content[:-1], "changed": b"x" + content[1:], "longer": content + b"x"}
    fleet.files[WEIGHTS] = changes[damage]
    with pytest.raises(StageError, match="larger than announced" if damage == "longer" else "are damaged"):
        await fetched(agent, fleet, tmp_path)


async def test_what_is_not_there_is_not_asked_for_again(agent, fleet, tmp_path):
    del fleet.bucket.handlers[f"/b/{WEIGHTS}"]
    with pytest.raises(StageError, match="returned HTTP 404"):
        await fetched(agent, fleet, tmp_path)
    assert fleet.asked(fleet.bucket) == [0]


async def test_a_bucket_that_goes_away(agent, fleet, tmp_path):
    fleet.cuts = [100_000]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"http://127.0.0.1:{closed.getsockname()[1]}/b/x?signature=s3cret"
    path = f"/admin/v1/artifacts/{fleet.hexdigest}/{WEIGHTS}"
    fleet.gateway.handlers[path] = lambda r: (
        r.answer(b"", status=307, location=away) if r.count else fleet.sign(r)
    )
    with pytest.raises(StageError, match=r"the bucket at 127\.0\.0\.1 does not respond") as refusal:
        await fetched(agent, fleet, tmp_path)
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize("location", ["", "file:///etc/passwd", "https://", "ftp://x/y"])
async def test_no_other_redirect_is_followed(agent, fleet, tmp_path, location):
    fleet.gateway.handlers[f"/admin/v1/artifacts/{fleet.hexdigest}/{CONFIG}"] = lambda r: r.answer(
        b"", status=307, location=location
    )
    with pytest.raises(StageError, match="without the URL of a bucket"):
        await fetched(agent, fleet, tmp_path)
