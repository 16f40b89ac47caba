"""Which build a gateway runs.

Source: a day of operations
Sent: `florin version`, `/metrics`, `florin doctor` and the first line of the log, of commits 71 apart
Right: each names the version and the commit; `florin version --gateways` names them of every running gateway, with
ledger, Redis, uptime and restarts
Why: all of them said 0.1.0, so nobody could tell whether an upgrade had reached a host
"""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.observability import build_info
from tests.integration.test_cli import florin
from tests.integration.test_doctor import doctor
from tests.support.commands import command
from tests.support.harness import Gateway, running_gateway


@pytest.mark.skipif(not build_info.commit(), reason="these sources are no checkout: git clone")
async def test_each_place_names_the_commit(gateway: Gateway, tmp_path, valkey_url, prefix):
    commit = build_info.commit()
    assert json.loads((await command(gateway, "version", "--json")).stdout)["commit"] == commit
    _, findings = await doctor(gateway)
    assert f"commit {commit}" in findings["gateway"]["message"]
    async with gateway.http() as client:
        assert f'florin_build_info{{commit="{commit}",' in (await client.get("/metrics")).text
    failed = await asyncio.to_thread(
        florin,
        "serve",
        FLORIN_REDIS_URL="unix:///none",
        FLORIN_STATE_DIR=str(tmp_path / "none"),
        FLORIN_PORT="0",
    )
    assert f"(commit {commit}) starts, with ledger sqlite:///{tmp_path}" in failed.stderr.splitlines()[0]

    async with running_gateway(tmp_path / "second", valkey_url, prefix) as second:
        shown = json.loads((await command(second, "version", "--gateways", "--json")).stdout)["data"]
        assert [one["commit"] for one in shown] == [commit, commit]
        assert len({one["name"] for one in shown}) == len({one["ledger"] for one in shown}) == 2
        table = (await command(second, "version", "--gateways")).stdout
        assert commit in table
        assert "They do not share a ledger" in table
