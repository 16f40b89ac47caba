"""One tenant floods a real `florin serve`; what another sees, with the fair queue and without.

`python -m loadtests.flood [--workers 1 2] [--callers 200] [--seconds 10]`

Four mock engines of eight seats, a tenth of a second for each request. `acme` keeps its callers going; `bolt`
asks one request after the other, every 20 ms. Seats are not registered, so that Florin learns them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from copy import copy
from pathlib import Path

import httpx2
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from gateway.serving.server import raise_file_limit
from loadtests.mock_engine import MockProcess
from loadtests.overhead import adapter_files
from loadtests.overhead.contestants import Contestant, florin
from loadtests.overload import UNBOUNDED, Clients, Tally

ENGINES, SEATS, TOKENS, EVENT = 4, 8, 10, 0.01
RAMP = 3.0
"""Seconds of the flood that do not count."""
BODY = orjson.dumps(
    {"model": adapter_files.BASE, "max_tokens": TOKENS, "messages": [{"role": "user", "content": "Hello?"}]}
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.flood")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--callers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    raise_file_limit()
    table = Table(title=f"{options.callers} callers of one tenant; a request takes {TOKENS * EVENT:g} s")
    for heading in ("workers", "fair queue", "alone p50, p99 ms", "during the flood p50, p99 ms", "flood /s"):
        table.add_column(heading, justify="right")
    for workers in options.workers:
        for fair in (False, True):
            alone, during, rate = _measured(workers, options.callers, options.seconds, fair=fair)
            table.add_row(str(workers), "on" if fair else "off", _two(alone), _two(during), f"{rate:.0f}")
    Console(width=120).print(table)


def _two(took: list[float]) -> str:
    return f"{statistics.median(took) * 1000:.0f}, {sorted(took)[int(0.99 * (len(took) - 1))] * 1000:.0f}"


def _measured(
    workers: int, callers: int, seconds: float, *, fair: bool
) -> tuple[list[float], list[float], float]:
    settings = {"FLORIN_WORKERS": str(workers), "FLORIN_FAIR_QUEUE": str(fair).lower()}
    with (
        tempfile.TemporaryDirectory() as folder,
        MockProcess(
            count=ENGINES, base=adapter_files.BASE, max_num_seqs=SEATS, max_model_len=10**7, log=0
        ) as engines,
    ):
        gateway = florin(engines.url, Path(folder), UNBOUNDED | settings)
        try:
            acme, bolt = _tenant(gateway, "acme"), _tenant(gateway, "bolt")
            for number, port in enumerate(engines.ports):
                url = f"http://127.0.0.1:{port}"
                httpx2.post(f"{url}/_mock/faults", json={"event_delay": EVENT}).raise_for_status()
                if number:
                    _engine(gateway, f"mock-{number}", url, Path(folder))
            return uvloop.run(_flood(acme, bolt, callers, seconds))
        finally:
            gateway.stop()


def _admin(gateway: Contestant, path: str, body: dict[str, object]) -> dict[str, str]:
    headers = {"authorization": f"Bearer {gateway.operator}"}
    url = f"http://127.0.0.1:{gateway.port}/admin/v1/{path}"
    answer = httpx2.post(url, json=body, headers=headers, timeout=30).raise_for_status()
    created: dict[str, str] = answer.json()
    return created


def _engine(gateway: Contestant, name: str, url: str, folder: Path) -> None:
    about = {"base": adapter_files.BASE, "gpu_type": "mock", "slots": 2, "cpu_slots": 8, "max_rank": 8}
    _admin(
        gateway,
        "engines",
        {"name": name, "url": url, "base_config": str(folder / "base/config.json"), **about},
    )


def _tenant(gateway: Contestant, name: str) -> Clients:
    _admin(gateway, "tenants", {"name": name, "base_access": True})
    caller = copy(gateway)
    caller.key = _admin(gateway, "keys", {"tenant": name, "role": "tenant"})["key"]
    return Clients(caller, BODY)


async def _flood(
    acme: Clients, bolt: Clients, callers: int, seconds: float
) -> tuple[list[float], list[float], float]:
    """Answer times of bolt's requests, alone and during the flood; answers per second of acme."""
    alone, during, flooding = Tally(), Tally(), Tally()
    await asyncio.sleep(2.0)  # until all engines are probed
    await _now_and_then(bolt, alone, seconds / 2)
    over = False

    async def one_after_the_other() -> None:
        while not over:
            await acme.ask(flooding)

    calls = [asyncio.create_task(one_after_the_other()) for _ in range(callers)]
    await asyncio.sleep(RAMP)
    before, began = len(flooding.took), time.monotonic()
    await _now_and_then(bolt, during, seconds)
    rate = (len(flooding.took) - before) / (time.monotonic() - began)
    over = True
    await asyncio.gather(*calls)
    for tally in (alone, during, flooding):
        if tally.other or tally.refused:
            raise RuntimeError(f"{tally.other} and {len(tally.refused)} refusals")
    acme.close()
    bolt.close()
    return alone.took, during.took, rate


async def _now_and_then(clients: Clients, tally: Tally, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await clients.ask(tally)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    main()
