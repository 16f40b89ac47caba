"""Versions on their way from the artifact store to a host's disk, with real processes on both sides."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.support.engine_hosts import add_version, ask, registered
from tests.support.harness import OPERATOR_KEY
from tests.support.waiting import until


@pytest.mark.parametrize("damage", ["changed", "gone"])
async def test_files_that_are_not_what_they_should_be_are_the_reason_of_the_load(gateway, run, damage):
    await gateway.add_tenant("acme")
    agent = await run()
    await registered(gateway, agent)
    version = await add_version(gateway, "acme/support")
    weights = Path(version.path) / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if damage != "gone":
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    async with gateway.http(gateway.keys["acme"]) as http:
        answer = await http.post(
            "/v1/chat/completions", json={"model": "support", "messages": [{"role": "user", "content": "x"}]}
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "load_failed")
    said = {"gone": "does not hold", "changed": "are damaged"}[damage]
    assert said in error["message"]
    assert not (agent.home / version.digest.removeprefix("sha256:")).exists()
    assert list((agent.home / ".staging").iterdir()) == []


async def test_files_that_change_on_the_hosts_disk_are_not_believed_after_a_restart(gateway, run):
    await gateway.add_tenant("acme")
    agent = await run()
    await registered(gateway, agent)
    version = await add_version(gateway, "acme/support")
    await ask(gateway)
    assert await agent.stop() == 0
    staged = agent.home / version.digest.removeprefix("sha256:") / "adapter_model.safetensors"
    good = staged.read_bytes()
    staged.chmod(0o644)
    staged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    again = await run()
    await registered(gateway, again)
    await ask(gateway)
    assert staged.read_bytes() == good
    await until(lambda: "is damaged; fetching it again" in again.log, what=lambda: again.log)


async def test_agent_server_accepts_only_its_gateway(gateway, run):
    agent = await run()
    engine = await registered(gateway, agent)
    async with httpx2.AsyncClient(trust_env=False) as http:
        rubbish = {"authorization": b"Bearer \xff\xfe"}
        wrong = {"authorization": "Bearer x"}, {"authorization": f"Bearer {OPERATOR_KEY}"}
        for headers in ({}, rubbish, *wrong):
            answer = await http.post(f"{engine.agent}/stage", json={}, headers=headers)
            assert answer.status_code == 401
        token = {"authorization": f"Bearer {gateway.state.engine_client.agent_token('h1', engine.key)}"}
        for body in (b"", b"[]", b'{"digest": 1}', b'{"digest": "sha256:../..", "size_bytes": "x"}'):
            answer = await http.post(f"{engine.agent}/stage", content=body, headers=token)
            assert answer.status_code == 400, body
        answer = await http.post(
            f"{engine.agent}/stage", json={"digest": "sha256:../../etc", "size_bytes": 1}, headers=token
        )
        assert answer.status_code == 503
        assert "is not a digest" in answer.text
        assert (await http.get(f"{engine.agent}/health")).json()["engine"] == "up"
        assert (await http.get(f"{engine.agent}/metrics")).status_code == 404


async def test_artifacts_are_given_whole_in_ranges_and_by_their_two_names_only(gateway):
    version = await add_version(gateway, "acme/support", size=1000)
    hexdigest = version.digest.removeprefix("sha256:")
    content = (Path(version.path) / "adapter_model.safetensors").read_bytes()
    async with gateway.http() as http:
        url = f"/admin/v1/artifacts/{hexdigest}"
        assert (await http.get(f"{url}/adapter_model.safetensors")).content == content
        part = await http.get(f"{url}/adapter_model.safetensors", headers={"range": "bytes=990-"})
        assert (part.status_code, part.content) == (206, content[990:])
        for bad in (f"{url}/x", f"{url}/..%2F..%2Fledger.db", "/admin/v1/artifacts/.staging/adapter_config.json",
                    f"/admin/v1/artifacts/{'0' * 64}/adapter_config.json"):  # fmt: skip
            assert (await http.get(bad)).status_code == 404, bad
