from __future__ import annotations

import asyncio

from gateway.routing.outlier_ejection import EjectionState
from gateway.routing.prober import METRICS_EVERY, QUIET_EVERY, QUIET_SECONDS
from tests.support.waiting import PATIENCE_S, until
from tests.unit.gateway.routing.conftest import ProberHarness


async def stop(task) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_an_engine_that_nobody_uses_is_scraped_less_often(world: ProberHarness):
    state, probes = world.pool.state("a"), world.engine.state.probes
    scrapes = []
    for unused in (0.0, QUIET_SECONDS + 1):
        state.used_at = world.elapsed.now - unused
        probes.clear()
        task = asyncio.create_task(world.prober.run())
        await until(lambda: probes["/health"] >= 3 * QUIET_EVERY)
        scrapes.append(probes["/metrics"])
        assert scrapes[-1] <= probes["/health"] / METRICS_EVERY + 2
        await stop(task)
    assert scrapes[0] >= 3 * QUIET_EVERY / METRICS_EVERY
    assert scrapes[1] < scrapes[0] / 2


async def test_a_process_that_restarted_between_two_probes_is_noticed(world: ProberHarness):
    state = world.pool.state("a")
    await world.prober.probe(state)
    first = state.process_started
    await world.engine.stop()
    await asyncio.sleep(0.02)  # its start is told in hundredths of a second
    await world.engine.revive()
    assert await world.prober.probe(state, scrape=False), "its connection was gone"
    assert state.process_started > first


async def test_what_becomes_of_an_engine_is_told(world: ProberHarness):
    state = world.pool.state("a")
    await world.prober.probe(state, scrape=False)
    world.engine.faults.health_delay = 60
    world.prober.reconfigure(interval=60, timeout=0.1)
    for _ in range(3):
        await world.prober.probe(state)
    world.prober.reconfigure(interval=60, timeout=PATIENCE_S)
    world.engine.faults.reset()
    world.engine.faults.health_status = 503
    await world.prober.probe(state)
    world.engine.die()
    await world.prober.probe(state)
    await world.engine.revive()
    world.engine.faults.reset()
    await world.prober.probe(state)
    assert world.time.told == ["alive", "missed", "missed", "down", "down", "down", "alive"]


async def test_a_worker_that_was_blocked_blames_no_engine(world: ProberHarness):
    state = world.pool.state("a")
    await world.prober.probe(state, scrape=False)
    world.engine.faults.health_delay = 60
    world.prober.reconfigure(interval=60, timeout=0.05)
    world.elapsed.step = 8.0  # what a probe of 0.05 s took, by this worker's clock
    for _ in range(5):
        await world.prober.probe(state)
    assert (world.time.told, state.consecutive_failures, state.healthy) == (["alive"], 0, True)
    world.elapsed.step = 0.0
    await world.prober.probe(state)
    assert (world.time.told, state.consecutive_failures) == (["alive", "missed"], 1)


async def test_an_engine_is_up_only_once_its_process_is_known(world: ProberHarness):
    """Versions are not verified again in a process in which they were sound."""
    world.prober.reconfigure(interval=60, timeout=PATIENCE_S)
    task = asyncio.create_task(world.prober.run())
    state, engine = world.pool.state("a"), world.catalog.engines["a"]
    await until(lambda: state.healthy)
    first = world.pool.process(engine)
    world.engine.die()
    state.probe_soon()
    await until(lambda: state.healthy is False)
    assert first
    assert world.pool.process(engine) == ""
    await world.engine.revive()
    state.probe_soon()
    await until(lambda: state.healthy)
    second = world.pool.process(engine)
    assert second not in {first, ""}

    await world.engine.stop()  # it restarts between two probes, and only a request notices
    await asyncio.sleep(0.02)
    await world.engine.revive()
    state.suspect = True
    state.probe_soon()
    await until(lambda: not state.suspect)
    assert world.pool.process(engine) not in {first, second, ""}
    await stop(task)


async def test_one_that_left_the_registry_is_told_too_and_forgotten(world: ProberHarness):
    world.engine.faults.metrics = "process_start_time_seconds -1\n"
    task = asyncio.create_task(world.prober.run())
    await until(lambda: world.time.told and world.scraper._refused)
    del world.catalog.engines["a"]
    await until(lambda: "gone a" in world.time.told)
    assert not world.scraper._refused
    count = len(world.time.told)
    await asyncio.sleep(0.05)
    assert len(world.time.told) == count
    await stop(task)


async def test_the_last_look_asks_those_that_are_up(world: ProberHarness):
    await world.prober.final_probe()
    assert world.time.told == []  # not looked at yet
    await world.prober.probe(world.pool.state("a"), scrape=False)
    world.engine.state.generation_tokens = 9
    await world.prober.final_probe()
    assert world.time.samples[-1].completion_tokens == 9
    world.engine.die()
    await world.prober.final_probe()
    assert world.time.told[-1] == "down"


async def test_an_engine_that_hangs_is_booked_as_up(world: ProberHarness):
    """It costs all the same."""
    state = world.pool.state("a")
    state.ejection = EjectionState(since=0.0)
    world.engine.stop_core()
    await world.prober.probe(state)
    assert (world.time.told, state.healthy, state.usable) == (["alive"], True, False)


async def test_an_ask_that_had_to_connect_tells_of_a_restart_like_a_probe(world: ProberHarness):
    state, engine = world.pool.state("a"), world.catalog.engines["a"]
    await world.prober.probe(state)
    connections = state.connections
    assert (await world.prober.get(engine, "/v1/models", PATIENCE_S))[0] == 200
    assert (state.connections, state.scrape_wanted) == (connections, False)
    await world.engine.stop()
    await world.engine.revive()
    assert (await world.prober.get(engine, "/v1/models", PATIENCE_S))[0] == 200
    assert (state.connections, state.scrape_wanted) == (connections + 1, True)


async def test_a_kept_connection_that_stays_silent_counts_as_missed(world: ProberHarness):
    state = world.pool.state("a")
    state.used_at = world.elapsed.now - QUIET_SECONDS - 1  # it is seldom scraped
    world.prober.reconfigure(interval=0.01, timeout=0.2)
    task = asyncio.create_task(world.prober.run())
    await until(lambda: world.time.told.count("alive") >= 3)
    told = len(world.time.told)
    world.engine.faults.health_delay = 60
    await until(lambda: "down" in world.time.told[told:])
    down = world.time.told.index("down", told)
    assert world.time.told[down - 2 : down] == ["missed", "missed"]
    world.engine.faults.reset()
    world.prober.reconfigure(interval=0.01, timeout=PATIENCE_S)
    await until(lambda: state.healthy)
    await stop(task)


async def test_an_answer_after_the_engine_has_left_the_registry_tells_nothing(world: ProberHarness):
    world.pool.state("a").used_at = world.elapsed.now - QUIET_SECONDS - 1
    task = asyncio.create_task(world.prober.run())
    await until(lambda: world.time.told.count("alive") >= 3)
    world.engine.faults.health_delay = 0.05
    del world.catalog.engines["a"]
    await until(lambda: "gone a" in world.time.told)
    await asyncio.sleep(0.2)
    assert world.time.told[-1] == "gone a"
    await stop(task)
