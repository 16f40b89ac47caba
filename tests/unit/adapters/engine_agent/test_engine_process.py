"""An engine's processes, with small Python trees in the engine's place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from adapters.engine_agent import engine_process
from adapters.engine_agent.engine_process import EngineLaunchError, EngineProcess, end_marked
from tests.support.waiting import PATIENCE_S, until

TREE = """
import os, signal, subprocess, sys, time
depth = int(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if depth:
    # every second one leaves the group
    subprocess.Popen([sys.executable, "-IS", "-c", sys.argv[2], str(depth - 1), sys.argv[2]],
                     start_new_session=depth % 2 == 0)
print("here", depth, flush=True)
time.sleep(600)
"""


@pytest.fixture
def mark(tmp_path: Path):
    yield str(tmp_path / "home")
    assert end_marked(str(tmp_path / "home")) == 0


def bearing(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("FLORIN_ENGINE_HOME") == mark and process.status() != "zombie":
                found.append(process)
    return found


def ignores(pid: int, number: signal.Signals) -> bool:
    [mask] = re.findall(r"^SigIgn:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


async def tree(mark: str, depth: int = 3) -> EngineProcess:
    engine = await EngineProcess.start(
        (sys.executable, "-IS", "-c", TREE, str(depth), TREE), os.environ, mark=mark
    )
    await until(lambda: len(engine.tail.lines) > depth)
    assert len(bearing(mark)) == depth + 2  # and the subreaper
    return engine


async def python(mark: str, code: str) -> EngineProcess:
    return await EngineProcess.start(
        (sys.executable, "-IS", "-c", textwrap.dedent(code)), os.environ, mark=mark
    )


async def ended(engine: EngineProcess) -> int:
    """Its exit code, when all its output is here: `wait` waits for the end of that for two seconds."""
    code = await engine.wait()
    for pump in engine._pumps:
        await asyncio.to_thread(pump.join, PATIENCE_S)
    return code


async def test_a_leader_that_is_killed_takes_all_with_it(mark):
    engine = await tree(mark)
    os.kill(engine.pid, signal.SIGKILL)
    assert await engine.wait() == -signal.SIGKILL
    assert bearing(mark) == []
    assert not engine.alive


async def test_stop_kills_what_does_not_hear_sigterm(mark):
    engine = await tree(mark)
    await engine.stop(0.2)
    assert bearing(mark) == []


async def test_stop_waits_for_what_does(mark):
    engine = await python(
        mark,
        """
        import os, signal, sys, time
        def leave(*_):
            time.sleep(0.3)
            os.write(1, b"left properly\\n")  # SIGTERM may come before print has returned
            sys.exit(5)
        signal.signal(signal.SIGTERM, leave)
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    await until(lambda: engine.tail.lines)
    await engine.stop(PATIENCE_S)
    assert await ended(engine) == 5
    assert engine.tail.text() == "ready\nleft properly"


async def test_a_subreaper_that_is_killed_takes_all_with_it(mark):
    engine = await tree(mark)
    subreaper = next(p for p in bearing(mark) if any("subreaper.py" in word for word in p.cmdline()))
    subreaper.kill()
    assert await engine.wait() == -signal.SIGKILL
    assert bearing(mark) == []


async def test_the_subreaper_ignores_signals(mark):
    """As when a service manager sends SIGTERM to all of a control group: the agent drains first."""
    engine = await tree(mark, depth=0)
    subreaper = next(p for p in bearing(mark) if any("subreaper.py" in word for word in p.cmdline()))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert ignores(subreaper.pid, number)
    engine.kill()
    await engine.wait()


def test_an_agent_that_is_killed_takes_all_with_it(mark):
    """However deep, and in whatever session."""
    agent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import asyncio, os, sys
            from adapters.engine_agent.engine_process import EngineProcess
            async def main():
                await EngineProcess.start((sys.executable, "-IS", "-c", sys.argv[1], "3", sys.argv[1]), os.environ,
                                          mark=sys.argv[2])
                await asyncio.sleep(600)
            asyncio.run(main())
            """), TREE, mark],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert agent.stdout
    for _ in range(4):
        assert agent.stdout.readline().startswith(b"here")
    processes = bearing(mark)
    assert len(processes) == 5
    agent.kill()
    agent.wait()
    agent.stdout.close()
    _, left = psutil.wait_procs(processes, timeout=PATIENCE_S)
    assert left == []


async def test_an_exit_code_is_told(mark):
    engine = await python(mark, "import sys; print('one'); sys.stderr.write('two'); sys.exit(7)")
    assert await ended(engine) == 7
    assert sorted(engine.tail.text().splitlines()) == ["one", "two"]


async def test_output_goes_on_to_our_own_streams(mark, capfd):
    engine = await python(mark, "import sys; print('out'); sys.stderr.write('err\\n')")
    await ended(engine)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("out\n", "err\n")


async def test_an_engine_does_not_notice_that_nobody_reads_our_output(mark, tmp_path):
    """Our own stdout is a pipe whose reader has left."""
    code = "for i in range(20000): print('x' * 100)"
    read, write = os.pipe()
    kept = os.dup(1)
    os.close(read)
    try:
        os.dup2(write, 1)
        engine = await python(mark, code)
        assert await asyncio.wait_for(engine.wait(), PATIENCE_S) == 0
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(write)


@pytest.mark.parametrize("command", ["/no/such/thing", "/etc/passwd", "no-such-thing-on-the-path"])
async def test_what_cannot_be_executed_is_an_error_of_the_start(mark, command):
    with pytest.raises(EngineLaunchError, match=command):
        await EngineProcess.start((command, "serve"), os.environ, mark=mark)


async def test_a_start_that_is_given_up_leaves_nothing(mark, monkeypatch):
    told: list[int] = []

    async def deaf(fd: int) -> asyncio.StreamReader:
        told.append(fd)
        return asyncio.StreamReader()  # never hears that the engine has started

    monkeypatch.setattr(engine_process, "_reader", deaf)
    starting = asyncio.create_task(python(mark, "import time; time.sleep(600)"))
    await until(lambda: len(bearing(mark)) >= 2)
    starting.cancel()
    assert isinstance((await asyncio.gather(starting, return_exceptions=True))[0], asyncio.CancelledError)
    assert bearing(mark) == []
    os.close(told[0])


async def test_signals_that_we_ignore_are_heard_by_the_engine(mark):
    """A shell that starts things in the background ignores SIGINT for them; engines hear it all the same."""
    engine = await python(mark, "import signal; print(signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)")
    await ended(engine)
    assert engine.tail.text() == "True"


async def test_an_engine_goes_over_to_the_next_agent_and_back_if_there_is_none(mark):
    engine = await python(
        mark,
        """
        import sys, time
        for line in sys.argv[1:] or map(str, range(1000)):
            print(line, flush=True)
            time.sleep(0.02)
        """,
    )
    left = engine.prepare_handover(began=1.0, healthy_since=2.0)
    said = len(engine.tail.lines)
    assert (left.pid, left.began, left.healthy_since) == (engine.pid, 1.0, 2.0)
    engine.cancel_handover()
    await until(lambda: len(engine.tail.lines) > said)
    await engine.stop(PATIENCE_S)
