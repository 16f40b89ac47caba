"""GPU hosts with keys of their own, as processes: enrolled, spied on by their engines, cut off, enrolled anew."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path

import pytest

from adapters.security.secret_files import read_key, write_private
from gateway.tenants.directory import Role
from tests.support.engine_hosts import add_version, ask, registered
from tests.support.forms import some_of
from tests.support.harness import OPERATOR_KEY
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]

SPY = """
import json, os, sys
seen = {"environ": dict(os.environ), "parents": []}
pid = os.getppid()
while pid > 1:
    environ, cmdline = (open(f"/proc/{pid}/{name}", "rb").read().decode() for name in ("environ", "cmdline"))
    seen["parents"].append({"environ": environ, "cmdline": cmdline})
    if "gateway.cli" in cmdline:
        break
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
partial = os.environ["VLLM_SPY"] + ".partial"
with open(partial, "w") as file:
    json.dump(seen, file)
os.replace(partial, os.environ["VLLM_SPY"])
os.execv(sys.executable, [sys.executable, "-m", "loadtests.mock_engine.vllm", *sys.argv[1:]])
"""
"""An engine that looks at what it and its ancestors up to the agent show, and then serves. Run as root it reads
even what is not dumpable."""


async def florin(gateway, *args: str, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", *args, cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "FLORIN_URL": gateway.url, **env},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def new_token(gateway, *options: str, name: str = "h1") -> str:
    status, out, err = await florin(
        gateway, "engine", "token", "create", "--name", name, *options, FLORIN_OPERATOR_KEY=OPERATOR_KEY
    )
    assert status == 0, err
    return out.strip()


def own_key(gateway):
    return next(k for k in gateway.state.directory.keys.values() if k.role is Role.ENGINE and not k.revoked)


@pytest.mark.usefixtures("executed")  # /proc shows what they were started with
@pytest.mark.parametrize(
    "secret", some_of(["FLORIN_OPERATOR_KEY", "FLORIN_ENGINE_TOKEN"], "FLORIN_OPERATOR_KEY")
)
async def test_an_engine_finds_no_secret_in_its_environment_nor_in_its_ancestors(
    gateway, run, tmp_path, secret
):
    spy, seen = tmp_path / "spy.py", tmp_path / "seen.json"
    spy.write_text(SPY)
    given = OPERATOR_KEY if secret == "FLORIN_OPERATOR_KEY" else await new_token(gateway)
    agent = await run(
        engine=(sys.executable, str(spy), "serve", "/models/base"), options=("--pass-env", "MINE_*"),
        VLLM_SPY=str(seen), AWS_SECRET_ACCESS_KEY="aws-s3cret", HF_TOKEN="hf-given", MINE_X="passed",
        **{secret: given},
    )  # fmt: skip
    await registered(gateway, agent)
    found = json.loads(seen.read_text())
    assert len(found["parents"]) == 2, "guard and agent"
    text = json.dumps(found)
    for hidden in (given, "aws-s3cret", secret, "AWS_SECRET_ACCESS_KEY", *gateway.keys.values()):
        assert hidden not in text
    assert not [n for n in found["environ"] if n.startswith("FLORIN_") and n != "FLORIN_ENGINE_HOME"]
    assert (found["environ"]["HF_TOKEN"], found["environ"]["MINE_X"]) == ("hf-given", "passed")
    await until(lambda: "withheld from the engine: " in agent.log, what=lambda: agent.log)
    assert ("Using an operator key on a GPU host" in agent.log) == (secret == "FLORIN_OPERATOR_KEY")


async def test_a_host_is_enrolled_by_its_first_start_and_keeps_its_key(gateway, run, tmp_path):
    await gateway.add_tenant("acme")
    token = tmp_path / "token"
    write_private(token, await new_token(gateway, "--gpu-type", "H100") + "\n")
    agent = await run(options=("--token-file", str(token)))
    engine = await registered(gateway, agent)
    kept = tmp_path / "xdg" / "florin" / "engines" / "h1" / "key"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [f.name for f in kept.parent.iterdir()] == ["key"]
    assert engine.key == own_key(gateway).id
    version = await add_version(gateway, "acme/support")
    assert (await ask(gateway)).choices[0].message.content  # its files came by the host's own key
    assert (agent.home / version.digest.removeprefix("sha256:")).is_dir()
    key = read_key(kept)
    await gateway.set_state("h1", "cordoned")
    assert await agent.stop() == 0
    again = await run(options=("--token-file", str(token)))  # as a unit file says it each time
    engine = await registered(gateway, again)
    assert (engine.state, engine.stopping) == ("cordoned", False), "an operator's word outlives the process"
    assert (read_key(kept), own_key(gateway).id) == (key, engine.key)
    assert await again.stop() == 0
    token.unlink()
    third = await run(options=("--token-file", str(token)))
    await registered(gateway, third)


async def test_a_running_agent_whose_key_is_revoked_says_so_and_comes_back_with_a_new_one(
    gateway, run, tmp_path
):
    await gateway.add_tenant("acme")
    token = tmp_path / "token"
    write_private(token, await new_token(gateway))
    agent = await run(options=("--token-file", str(token)))
    first = await registered(gateway, agent)
    await add_version(gateway, "acme/support")
    await ask(gateway)
    processes = {p.pid for p in agent.engines()}
    async with gateway.http() as http:
        await http.delete(f"/admin/v1/keys/{first.key}")
        await until(lambda: "The gateway has revoked this host's key" in agent.log, what=lambda: agent.log)
        assert gateway.state.catalog.engines["h1"].state == "draining"
        assert {p.pid for p in agent.engines()} == processes, "its engine stays up"
        write_private(token, await new_token(gateway))
        environ = {"XDG_STATE_HOME": str(tmp_path / "xdg")}
        status, _, err = await florin(
            gateway, "engine", "enrol", "--name", "h1", "--token-file", str(token), **environ
        )
        assert status == 0, err

        def back():
            engine = gateway.state.catalog.engines["h1"]
            return engine if engine.key == own_key(gateway).id else None

        engine = await until(back, what=lambda: agent.log)
        assert (engine.epoch, engine.state) == (first.epoch, "draining"), "an operator lets it serve again"
        await http.put("/admin/v1/engines/h1/state", json={"state": "active"})
    await until(lambda: gateway.state.catalog.engines["h1"].takes_requests)
    await add_version(gateway, "acme/other")
    assert (await ask(gateway, model="other")).choices[0].message.content  # the agent knows the gateway again
    assert {p.pid for p in agent.engines()} == processes


async def test_what_is_wrong_with_its_credentials_ends_an_agent_before_its_engine_starts(
    gateway, run, tmp_path
):
    await gateway.engine_key("h1")
    async with gateway.http() as http:
        await http.delete(f"/admin/v1/keys/{own_key(gateway).id}")
    key = tmp_path / "other.key"
    write_private(key, await gateway.engine_key("h2"))
    cases: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
        ((), {}, "This API key has been revoked"),
        (("--key-file", str(key)), {}, "for engine h2 and no other"),
        (("--operator-key", OPERATOR_KEY), {}, "--operator-key exposes the key"),
        ((), {"FLORIN_ENGINE_TOKEN": "flt_no_token"}, "This API key does not exist"),
        ((), {"FLORIN_OPERATOR_KEY": ""}, "This host has no key"),
    )
    for options, env, words in cases:
        agent = await run(options=options, **env)
        assert await asyncio.wait_for(agent.process.wait(), 60) in {1, 2}
        await until(lambda agent=agent, words=words: words in agent.log, what=lambda agent=agent: agent.log)
        assert "starting, pid" not in agent.log


async def test_the_commands_take_their_key_from_a_file(gateway, tmp_path):
    key = tmp_path / "operator.key"
    write_private(key, OPERATOR_KEY)
    for args, env in (
        (("--key-file", str(key)), {}),
        ((), {"FLORIN_OPERATOR_KEY_FILE": str(key)}),
        (("--key-file", str(key)), {"FLORIN_OPERATOR_KEY": "another"}),
        (("--operator-key", OPERATOR_KEY), {"FLORIN_OPERATOR_KEY_FILE": "/no/such"}),
    ):
        status, out, err = await florin(gateway, "tenant", "list", "--json", *args, **env)
        assert (status, json.loads(out)) == (0, {"data": []}), err
    both = {"FLORIN_OPERATOR_KEY": OPERATOR_KEY, "FLORIN_OPERATOR_KEY_FILE": str(key)}
    status, _, err = await florin(gateway, "tenant", "list", **both)
    assert (status, "Both a key and a key file are set" in err) == (2, True)
    key.chmod(0o644)
    status, _, err = await florin(gateway, "tenant", "list", "--key-file", str(key))
    assert status == 2
    assert f"chmod 600 {key}" in err
