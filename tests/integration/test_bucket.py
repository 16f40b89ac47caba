"""Versions whose files are in a bucket, with real processes on both sides."""

from __future__ import annotations

import asyncio

import pytest

from adapters.errors import EngineError
from adapters.reconcile.diagnosis import Diagnosis
from gateway.config import Settings
from gateway.installation.backup.operations.restoring import restore
from gateway.installation.backup.operations.taking import take
from gateway.installation.doctor.operations.doctor import diagnose
from loadtests.mock_engine import MockEngine
from tests.support.archives import CONFIG, WEIGHTS
from tests.support.engine_hosts import add_version, ask, registered
from tests.support.harness import running_gateway
from tests.support.s3 import contents, new_bucket, s3_server, set_environment


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    with s3_server() as endpoint:
        set_environment(monkeypatch, tmp_path, endpoint)
        with new_bucket(endpoint) as client:
            yield client


@pytest.fixture
async def gateway(tmp_path, valkey_url, prefix, bucket):
    url = f"s3://{bucket.name}/fleet"
    async with running_gateway(tmp_path / "state", valkey_url, prefix, artifact_bucket=url) as running:
        yield running


async def test_two_hosts_fetch_at_once_and_need_no_credentials(gateway, run, bucket):
    await gateway.add_tenant("acme")
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_ENDPOINT_URL": ""}
    agents = [await run(name=name, **none) for name in ("h1", "h2")]  # of two slots each
    for name, agent in zip(("h1", "h2"), agents, strict=True):
        await registered(gateway, agent, name)
    versions = [await add_version(gateway, f"acme/a{number}") for number in range(4)]
    await asyncio.gather(*(ask(gateway, model=f"a{number}") for number in range(4)))
    objects = contents(bucket)
    staged = {path.name: path for agent in agents for path in agent.home.iterdir() if len(path.name) == 64}
    for version in versions:
        hexdigest = version.digest.removeprefix("sha256:")
        assert (staged[hexdigest] / WEIGHTS).read_bytes() == objects[f"fleet/{hexdigest}/{WEIGHTS}"]
    assert {path.parent for path in staged.values()} == {agent.home for agent in agents}


async def test_an_engine_without_an_agent_is_refused_with_the_reason(gateway, engine: MockEngine):
    await gateway.add_engine("a", engine.url)
    version = await add_version(gateway, "acme/support")
    with pytest.raises(EngineError, match="a has no agent, which could fetch acme/support@v1"):
        await gateway.state.engine_client.load(gateway.state.catalog.engines["a"], version)


async def test_doctor_and_backup_look_into_the_bucket(gateway, bucket, tmp_path):
    version = await add_version(gateway, "acme/support")
    url = gateway.state.artifacts.where

    async def checks() -> dict[str, Diagnosis]:
        return {diagnosis.check: diagnosis for diagnosis in await diagnose(gateway.state)}

    now = await checks()
    assert now["version_files"].status == "ok"
    assert now["artifact_dir"].message.startswith(f"{url} can be written.")

    out = tmp_path / "backup.zip"
    manifest = await asyncio.to_thread(take, gateway.state.settings, out)
    assert (len(manifest.artifacts), manifest.artifact_root) == (1, url)
    elsewhere = Settings(state_dir=tmp_path / "other", artifact_bucket=f"s3://{bucket.name}/other")
    restored = await asyncio.to_thread(restore, elsewhere, out)
    assert restored.absent == ()
    hexdigest = version.digest.removeprefix("sha256:")
    objects = contents(bucket)
    for name in (CONFIG, WEIGHTS):
        assert objects[f"other/{hexdigest}/{name}"] == objects[f"fleet/{hexdigest}/{name}"]

    bucket.delete_object(Bucket=bucket.name, Key=f"fleet/{hexdigest}/{WEIGHTS}")
    now = await checks()
    assert now["version_files"].status == "problem"
    assert f"{url}/{hexdigest} holds" in now["version_files"].message
    for key in contents(bucket):
        bucket.delete_object(Bucket=bucket.name, Key=key)
    bucket.delete_bucket(Bucket=bucket.name)
    now = await checks()
    assert now["artifact_dir"].status == "problem"
    assert "NoSuchBucket" in now["artifact_dir"].message
    assert "version_files" not in now
