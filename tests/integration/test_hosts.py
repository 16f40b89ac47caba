"""`florin engine run` as a process of its own, around a mock engine, at a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import httpx2
import psutil
from redis.asyncio import Redis

from adapters.placement.engine_client import EngineClient
from adapters.store.protocol.registry import Change
from gateway.runtime.settings_reload import Reload
from loadtests.mock_engine import MockEngine
from tests.support.engine_hosts import add_version, ask, free_port, registered, roots, slow_down
from tests.support.waiting import until


async def test_an_engine_is_started_registered_staged_to_and_stopped(gateway, run):
    await gateway.add_tenant("acme")
    agent = await run("--mock-core")
    engine = await registered(gateway, agent)
    assert (engine.slots, engine.cpu_slots, engine.max_rank, engine.gpu_type) == (2, 8, 8, "H100")
    assert engine.epoch
    assert engine.agent.startswith("http://127.0.0.1:")
    version = await add_version(gateway, "acme/support")
    answer = await ask(gateway)
    assert answer.choices[0].message.content
    staged = agent.home / version.digest.removeprefix("sha256:")
    assert roots(agent) == [str(staged)]
    assert sorted(f.name for f in staged.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    async with gateway.http() as http:
        shown = (await http.get("/admin/v1/engines")).json()["data"][0]
    assert shown["heartbeat"]["instance"]
    assert len(agent.engines()) >= 2
    assert await agent.stop() == 0
    assert agent.engines() == []
    stopped = gateway.state.catalog.engines["h1"]
    assert (stopped.stopping, stopped.state, stopped.epoch) == (True, "active", engine.epoch)
    async with gateway.http() as http:
        assert (await http.get("/admin/v1/engines")).json()["data"][0]["heartbeat"] is None
        await until(lambda: gateway.state.catalog.engines["h1"].stopped)

        async def silent() -> bool:
            return 'florin_engine_up{engine="h1"' not in (await http.get("/metrics")).text

        await until(silent)
        doctor = (await http.get("/admin/v1/doctor")).json()
        assert [(d["check"], d["status"]) for d in doctor["data"] if d["subject"] == "h1"] == [
            ("engine_stopped", "ok")
        ]
    gateway.app.apply(Reload(gateway.app.settings.model_copy(update={"stopped_engine_hours": 1e-6})))
    await until(lambda: "h1" not in gateway.state.catalog.engines)
    again = await registered(gateway, await run())  # its key is good for the next start
    assert (again.stopping, again.stopped) == (False, 0)


async def test_a_killed_engine_comes_back_as_a_new_epoch_with_its_adapters(gateway, run):
    await gateway.add_tenant("acme")
    await gateway.add_engine("old", "http://127.0.0.1:9", version="0.31.0", state="draining")
    agent = await run("--mock-core", options=("--prompt-scores", "safe", "--trial", "5"))
    first = await registered(gateway, agent)
    assert first.trial.share == 5
    versions = [await add_version(gateway, f"acme/{name}") for name in ("one", "two")]
    for name in ("one", "two"):
        await ask(gateway, model=name)
    old = agent.engines()
    agent.leader().kill()
    _, left = psutil.wait_procs(old, timeout=30)
    assert left == []  # the core went with its server
    await until(lambda: gateway.state.catalog.engines["h1"].epoch != first.epoch, what=lambda: agent.log)
    new = await registered(gateway, agent)
    wanted = {str(agent.home / v.digest.removeprefix("sha256:")) for v in versions}
    await until(lambda: set(roots(agent)) == wanted, what=lambda: f"{roots(agent)} {agent.log}")
    assert new.epoch != first.epoch
    assert new.prompt_scores == first.prompt_scores == "safe"
    assert new.trial == first.trial
    await until(lambda: "killed by signal 9" in agent.log, what=lambda: agent.log)
    entries = [e.note for e in await gateway.state.store.audit()]
    assert [n.action for n in entries if n.subject == "h1"] == ["engine.add", "engine.epoch"]


async def test_nothing_survives_a_killed_agent(gateway, run):
    agent = await run("--mock-core")
    await registered(gateway, agent)
    engines = agent.engines()
    await agent.kill()
    _, left = psutil.wait_procs(engines, timeout=30)
    assert left == []


async def test_orphans_of_a_killed_agent_and_subreaper_end_at_the_next_start(gateway, run):
    agent = await run("--mock-core")
    await registered(gateway, agent)
    engines = agent.engines()
    guard = agent.guard()
    core = next(p for p in engines if "-c" in p.cmdline()[:3])
    guard.suspend()
    agent.process.kill()
    guard.kill()
    await agent.process.wait()
    assert core.is_running()  # or this test shows nothing
    again = await run("--mock-core")
    await registered(gateway, again)
    assert not core.is_running()


async def test_sigterm_during_streams_is_invisible_to_clients(gateway, run):
    await gateway.add_tenant("acme")
    first, second = await run(name="h1"), await run(name="h2")
    for agent, name in ((first, "h1"), (second, "h2")):
        await registered(gateway, agent, name)
        await slow_down(agent, 0.05)
    await add_version(gateway, "acme/support")
    stop, answers, engines = asyncio.Event(), [], []

    async def caller() -> None:
        async with gateway.client("acme") as client:
            while not stop.is_set():
                raw = await client.chat.completions.with_raw_response.create(
                    model="support", messages=[{"role": "user", "content": "hello"}], stream=True, max_tokens=30,
                    extra_body={"ignore_eos": True},
                )  # fmt: skip
                chunks = [c async for c in raw.parse()]
                answers.append(chunks[-1].choices[0].finish_reason)
                engines.append(raw.headers["x-florin-engine"])

    callers = [asyncio.create_task(caller()) for _ in range(8)]
    await until(lambda: len(answers) >= 8)
    name = engines[-1]
    mine = {"h1": first, "h2": second}[name]
    before = len(answers)
    stopping = asyncio.create_task(mine.stop())
    assert await stopping == 0
    await until(lambda: len(answers) >= before + 16)
    stop.set()
    await asyncio.gather(*callers)
    assert set(answers) == {"length"}
    assert len(set(engines)) == 2
    assert mine.engines() == []
    assert f"Engine {name}: drained" in mine.log
    assert "drain timed out" not in mine.log


async def test_requests_that_outlast_the_drain_are_cut_off_then(gateway, run):
    await gateway.add_tenant("acme")
    agent = await run(options=("--drain-timeout", "1"))
    await registered(gateway, agent)
    await add_version(gateway, "acme/support")
    await ask(gateway)
    await slow_down(agent, 1.0)
    asking = asyncio.create_task(ask(gateway, max_tokens=100, extra_body={"ignore_eos": True}))
    await until(lambda: httpx2.get(f"{agent.url}/_mock/log", trust_env=False).json()["running"])
    assert await agent.stop() == 0
    assert "drain timed out; aborting 1 requests" in agent.log
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_name_belongs_to_one_living_agent(gateway, run):
    first = await run()
    await registered(gateway, first)
    async with gateway.http() as http:
        removal = await http.delete("/admin/v1/engines/h1")
        by_url = await http.post(
            "/admin/v1/engines",
            json={"name": "h1", "url": first.url, "base": "base", "gpu_type": "x", "slots": 2, "max_rank": 8},
        )
    assert (removal.status_code, by_url.status_code) == (409, 409)
    second = await run(options=("--cache-dir", str(first.home.with_name("other"))))
    assert await asyncio.wait_for(second.process.wait(), 60) == 1
    await until(lambda: "is run by another live agent" in second.log)
    assert gateway.state.catalog.engines["h1"].url == first.url
    await first.kill()
    third = await run()  # waits for the dead one's last heartbeat to lapse
    await registered(gateway, third)


async def test_an_agent_whose_gateway_is_away_starts_its_engine_and_registers_later(gateway, run):
    port, target = free_port(), int(gateway.url.rpartition(":")[2])
    agent = await run(FLORIN_URL=f"http://127.0.0.1:{port}")
    await until(lambda: "Engine h1: healthy after" in agent.log, what=lambda: agent.log)
    await until(lambda: "does not respond" in agent.log)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)

        async def pipe(a: asyncio.StreamReader, b: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await a.read(65536):
                    b.write(data)
            b.close()

        await asyncio.gather(pipe(reader, back), pipe(there, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", port)
    try:
        await registered(gateway, agent)
        assert await agent.stop() == 0
    finally:
        server.close()


async def test_an_agent_whose_gateway_hangs_ends_when_it_is_told_to(run):
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        while await reader.read(65536):
            pass
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        agent = await run(FLORIN_URL=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(60):
            await asked.wait()
        assert await agent.stop(25) == 0  # its patience with the gateway is twice that
    assert "starting, pid" not in agent.log


async def test_an_agent_that_the_gateway_has_forgotten_registers_again(gateway, run):
    agent = await run()
    engine = await registered(gateway, agent)
    await gateway.commit(Change("engine", "h1", None))
    again = await until(lambda: gateway.state.catalog.engines.get("h1"), what=lambda: agent.log)
    assert again == engine or again.registered > engine.registered
    assert again.epoch == engine.epoch


async def test_after_redis_was_emptied_workers_that_start_later_are_known_to_the_agents(
    gateway, run, valkey_url, prefix
):
    agent = await run()
    first = await registered(gateway, agent)
    async with Redis.from_url(valkey_url) as redis:
        await redis.delete(*[key async for key in redis.scan_iter(f"{{{prefix}}}:*")])
    store = gateway.state.store
    async with gateway.http() as http:
        await until(lambda: gateway.state.follower.lost, what=lambda: agent.log)
        assert "h1" in gateway.state.catalog.engines
        shown = (await http.get("/admin/v1/registry")).json()
        restored = await http.post("/admin/v1/registry/rewrite", json={"found": shown["found"]})
        assert restored.status_code == 200, restored.text

    async def told() -> bool:
        return "h1" in await store.heartbeats() and "h1" in gateway.state.catalog.engines

    await until(told, what=lambda: agent.log)
    assert gateway.state.catalog.engines["h1"].epoch == first.epoch
    later = EngineClient(
        None,  # type: ignore[arg-type]  # calls nobody
        timeout=1,
        agent_secret=(await store.secret("agent", "of a worker that starts now")).encode(),
    )
    assert later.agent_token("h1") == gateway.state.engine_client.agent_token("h1")


async def test_failed_start_is_reported_with_the_end_of_its_log_and_retried(gateway, run):
    agent = await run("--mock-fail", "CUDA out of memory")
    await until(lambda: agent.log.count("exited with code 3 before it became healthy") >= 2)
    await until(lambda: "restarting in 2 s" in agent.log, what=lambda: agent.log)
    words = agent.log[agent.log.index("Last output:") :].splitlines()
    assert words[1].endswith("Engine h1: CUDA out of memory")
    assert "restarting in 1 s" in agent.log
    assert await agent.stop() == 0


async def test_foreign_engine_on_the_port_is_not_adopted(gateway, run):
    async with MockEngine() as other:
        agent = await run(port=other.port)
        await until(lambda: "another process listens" in agent.log, what=lambda: agent.log)
        await asyncio.sleep(1)
        assert gateway.state.catalog.engines == {}
    await registered(gateway, agent)


async def test_an_agent_that_is_told_to_stop_while_its_engine_starts_does_not_wait_for_it(gateway, run):
    agent = await run("--mock-start-seconds", "60")
    await until(lambda: "starting, pid" in agent.log, what=lambda: agent.log)
    assert await agent.stop(45) == 0
    assert agent.engines() == []


async def test_agent_restarts_itself_while_its_engine_keeps_running(gateway, run):
    await gateway.add_tenant("acme")
    agent = await run()
    engine = await registered(gateway, agent)
    version = await add_version(gateway, "acme/support")
    await ask(gateway)
    processes = {p.pid for p in agent.engines()}
    await slow_down(agent, 0.05)
    over, answers = asyncio.Event(), []

    async def caller() -> None:
        async with gateway.client("acme") as client:
            while not over.is_set():
                stream = await client.chat.completions.create(
                    model="support", messages=[{"role": "user", "content": "hello"}], stream=True,
                    max_tokens=20, extra_body={"ignore_eos": True},
                )  # fmt: skip
                answers.append([c async for c in stream][-1].choices[0].finish_reason)

    callers = [asyncio.create_task(caller()) for _ in range(4)]
    for times in (1, 2):  # what has been handed over can be handed over again
        agent.process.send_signal(signal.SIGHUP)
        await until(
            lambda n=times: agent.log.count("Agent restarted; engine h1 keeps running") == n,
            60,
            lambda: agent.log,
        )
        before = len(answers)
        await until(lambda n=before: len(answers) >= n + 8)
    over.set()
    await asyncio.gather(*callers)
    assert set(answers) == {"length"}
    assert {p.pid for p in agent.engines()} == processes
    assert agent.log.count("starting, pid") == agent.log.count("registered, epoch") == 1
    await until(lambda: httpx2.get(f"{engine.agent}/health", trust_env=False).json()["engine"] == "up")
    assert gateway.state.catalog.engines["h1"] == engine
    assert gateway.state.residency.holds("h1", version.engine_name)
    another = await add_version(gateway, "acme/other")  # and files still come by the way of before
    await ask(gateway, model="other")
    assert str(agent.home / another.digest.removeprefix("sha256:")) in roots(agent)
    agent.leader().kill()  # and the next agent is the engine's keeper
    await until(lambda: agent.log.count("starting, pid") == 2, what=lambda: agent.log)
    assert await agent.stop() == 0
    assert agent.engines() == []


async def test_agent_continues_if_its_successor_cannot_start(gateway, run, tmp_path):
    (tmp_path / "broken").mkdir()
    agent = await run(PYTHONPATH=str(tmp_path / "broken"))
    await registered(gateway, agent)
    (tmp_path / "broken" / "typer.py").write_text("raise ImportError('half an upgrade')")
    agent.process.send_signal(signal.SIGHUP)
    await until(lambda: "half an upgrade" in agent.log, 60, lambda: agent.log)
    (tmp_path / "broken" / "typer.py").unlink()
    await until(lambda: httpx2.get(f"{agent.url}/health", trust_env=False).status_code == 200)
    agent.process.send_signal(signal.SIGHUP)
    await until(lambda: "Agent restarted; engine h1 keeps running" in agent.log, 60, lambda: agent.log)
    engines = agent.engines()
    await agent.kill()  # the guard is still its child
    _, left = psutil.wait_procs(engines, timeout=30)
    assert left == []
