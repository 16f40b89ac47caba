"""`python -m loadtests.head_of_line`: how much later do events come while long prompts are sent?

One worker, one engine, 100 streams. In turn, without and with one client that sends prompts of 100,000
tokens of code, one after the other. The engine stamps each event, so that its own pauses do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

from adapters.store.embedded import EmbeddedValkey
from loadtests import prompts, result_file
from loadtests.overhead import cpu
from loadtests.overhead.contestants import ThinMockProcess
from loadtests.overhead.loadgen import BENCH_CORE, Ask, Result, generate
from loadtests.overhead.loads import LOADS
from loadtests.scale.__main__ import filled
from loadtests.scale.gateway import ScaledGateway
from loadtests.scale.registry import BASE, SLOTS

STREAMS = replace(LOADS["streams"], connections=100)
PAUSE_SECONDS = 0.1
"""Between two long prompts."""


class LongPrompts:
    """A thread that sends them while the block lasts."""

    def __init__(self, port: int, model: str, key: str, tokens: int) -> None:
        self._port = port
        self._body = prompts.body(prompts.text(tokens, "code"), model)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.statuses: list[int] = []

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        while not self._stop.wait(PAUSE_SECONDS):
            connection.request("POST", "/v1/chat/completions", self._body, self._headers)
            response = connection.getresponse()
            response.read()
            self.statuses.append(response.status)
        connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.head_of_line", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a round")
    parser.add_argument("--tokens", type=int, default=100_000, help="of a long prompt")
    result_file.add_option(parser)
    options = parser.parse_args()
    without, beside, statuses = _measure(options)
    _show(without, beside, statuses)
    result_file.write(options.json, without=without, beside=beside)
    return 1 if set(statuses) != {200} or any(r.errors for r in (*without, *beside)) else 0


def _measure(options: argparse.Namespace) -> tuple[list[Result], list[Result], list[int]]:
    without, beside, statuses = list[Result](), list[Result](), list[int]()
    engine = {"base": BASE, "max_loras": SLOTS, "max_cpu_loras": 2 * SLOTS, "max_lora_rank": 64}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-prompts-"))
        with cpu.on_core(BENCH_CORE):
            mock = stack.enter_context(ThinMockProcess(**engine, max_model_len=1_000_000))
        mock.faults(event_delay=STREAMS.event_delay)
        state = Path(directory) / "state"
        with EmbeddedValkey(state, fsync="everysec") as store:
            registry = asyncio.run(filled(store.url, SLOTS, SLOTS, mock.url))
        gateway = stack.enter_context(ScaledGateway(state, registry.customers[0]))
        asks = [
            Ask(STREAMS.body(model), STREAMS.expect(version.engine_name), key)
            for (model, key), version in zip(registry.customers, registry.versions, strict=False)
        ]
        job = STREAMS.job(gateway.port, asks, options.seconds, {"gateway": gateway.pids, "mock": [mock.pid]})
        time.sleep(2)
        for _ in range(options.rounds):
            without.append(generate(job))
            with LongPrompts(gateway.port, *registry.customers[0], options.tokens) as long_prompts:
                beside.append(generate(job))
            statuses += long_prompts.statuses
    return without, beside, statuses


def _show(without: list[Result], beside: list[Result], statuses: list[int]) -> None:
    table = Table(title="Milliseconds from an event's sending to its arrival", title_justify="left")
    for heading in ("", "p50", "p99", "max", "errors"):
        table.add_column(heading, justify="right")
    for title, results in (("streams alone", without), ("beside long prompts", beside)):
        cells = [
            f"{statistics.median(r.delay_ms[what] for r in results):.2f}" for what in ("p50", "p99", "max")
        ]
        table.add_row(title, *cells, str(sum(r.errors for r in results)))
    Console(width=120).print(table)
    Console(width=120).print(f"{len(statuses)} long prompts. Processor: {cpu.machine()['processor']}.")


if __name__ == "__main__":
    sys.exit(main())
