"""`python -m loadtests.mock_engine --port 0`: prints {"port": …, "ports": […], "pid": …} when it listens, and
ends on SIGTERM or with its parent process. With `--count`, one process is several engines."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import fields

import uvloop

from loadtests.mock_engine.engine import MockEngine
from loadtests.mock_engine.state import Spec


def main(engine: type[MockEngine] = MockEngine) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.mock_engine", description="A fake vLLM engine."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="number of engines, each on a free port")
    for field in fields(Spec):
        default = field.default
        kind = _flag if isinstance(default, bool) else type(default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=default)
    options = vars(parser.parse_args())
    options = vars(parser.parse_args())
    count = options.pop("count")
    uvloop.run(_serve([engine(**options) for _ in range(count)]))


def _flag(word: str) -> bool:
    return word.lower() in {"1", "true", "yes"}


async def _serve(engines: list[MockEngine]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        for engine in engines:
            engine.on_death = lambda: os._exit(137)
            await stack.enter_async_context(engine)
        ports = [engine.port for engine in engines]
        print(json.dumps({"port": ports[0], "ports": ports, "pid": os.getpid()}), flush=True)
        watch = asyncio.create_task(_orphaned(os.getppid(), stop))
        await stop.wait()
        watch.cancel()


async def _orphaned(parent: int, stop: asyncio.Event) -> None:
    """Poll, because there is no event for a killed parent."""
    while os.getppid() == parent:  # noqa: ASYNC110 - as the docstring says
        await asyncio.sleep(1.0)
    stop.set()


if __name__ == "__main__":
    main()
