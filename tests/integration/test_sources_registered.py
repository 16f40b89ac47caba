"""What the registry keeps of a source, and what a refusal says of it; and a gateway that dies in a download."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from adapters.errors import RejectedError
from adapters.model import Version, load
from adapters.registry.artifacts import ArtifactStore
from adapters.registry.registration import Registrar
from adapters.sources.options import FetchOptions
from tests.support.archives import adapter_files, tar_bytes
from tests.support.forking import FORKED
from tests.support.hostile_http import hostile_server
from tests.unit.adapters.installation import LIMIT, NAME, NOW, Installation


@pytest.fixture
async def installation(tmp_path):
    installation = Installation(tmp_path)
    await installation.seed()
    return installation


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with hostile_server() as server:
        yield server


def registrar(installation: Installation, worker, **fetching) -> Registrar:
    return Registrar(
        installation.store,
        worker.catalog,
        ArtifactStore(installation.tmp_path / "artifacts"),
        tenant_document=lambda name: '{"name":"acme"}',
        fetching=FetchOptions(max_bytes=LIMIT, **fetching),
        now=lambda: NOW,
    )


async def test_neither_the_registry_nor_the_audit_nor_a_refusal_holds_a_secret(
    installation, server, tmp_path
):
    server.handlers["/a.tar.gz"] = lambda r: r.answer(tar_bytes(adapter_files(tmp_path)))
    worker = installation.worker()
    await worker.follow()
    open_one = registrar(installation, worker, allow_private=("127.0.0.1",))
    uri = f"http://me:hush@127.0.0.1:{server.port}/a.tar.gz?sig=hush"
    await open_one.register(NAME, uri, actor="key:1")
    documents = (await installation.store.snapshot()).documents
    version = load(Version, documents["version"][f"{NAME}@v1"])
    assert version.source == f"http://127.0.0.1:{server.port}/a.tar.gz"
    assert "hush" not in str(documents) + str(await installation.store.audit())

    server.handlers["/a.tar.gz"] = lambda r: r.answer(status=403)
    with pytest.raises(RejectedError) as refusal:
        await open_one.register(NAME, uri)
    assert [finding.code for finding in refusal.value.findings] == ["source_denied"]
    assert "hush" not in str(refusal.value) + str(refusal.value.findings)


async def test_private_networks_are_closed_unless_somebody_opens_them(installation, server):
    worker = installation.worker()
    await worker.follow()
    with pytest.raises(RejectedError) as refusal:
        await worker.registrar.register(NAME, f"{server.url}/a")
    assert [finding.code for finding in refusal.value.findings] == ["source_not_public"]
    assert not server.requests


CHILD = (
    FORKED
    + """
import sys
from pathlib import Path
from adapters.registry.artifacts import ArtifactStore
from adapters.checks.findings import Findings
from adapters.sources import fetch
from adapters.sources.options import FetchOptions

def progress(step, done, total):
    if done:
        print(done, flush=True)

store = ArtifactStore(Path(sys.argv[1]))
with store.staging() as staged:
    options = FetchOptions(max_bytes=1 << 30, allow_private=("127.0.0.1",), progress=progress)
    fetch(sys.argv[2], staged, options=options, findings=Findings())
"""
)


def test_killed_in_the_middle_of_a_download(server, tmp_path):
    def half(r):
        r.head(200, content_length=1 << 21)
        r.send(bytes(1 << 20))
        r.stall()

    server.handlers["/a.tar.gz"] = half
    root = tmp_path / "artifacts"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, root, f"{server.url}/a.tar.gz"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert int(child.stdout.readline()) > 0
        box = next((root / ".staging").iterdir())
        deadline = time.monotonic() + 10
        while not any(path.stat().st_size for path in box.rglob("archive")) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        assert any(box.rglob("archive"))
        ArtifactStore(root).open()
        assert [path.name for path in root.rglob("*")] == [".staging"]
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close()
