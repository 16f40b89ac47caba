"""The clock of a gateway's host is set, under traffic: nothing is booked that did not exist."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
from sqlalchemy import select

from gateway.costs.rollups.attribution import BRIDGED, union
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import engine_spans, usage_records
from loadtests.mock_engine import MockEngine
from tests.support.alerting import fires, silent
from tests.support.fork_server import SUPPORTED
from tests.support.forms import LONG
from tests.support.harness import OPERATOR_KEY
from tests.support.missing import optional
from tests.support.promtool import NoPromtoolError
from tests.support.waiting import PATIENCE_S, until

STEPPED = Path(__file__).parents[1] / "stepped_clock"
HOUR = 3600.0
AHEAD = 'florin_clock_offset_seconds{against="system"} 7'
"""Two hours: some 7,200 seconds."""
ASKED = {"model": "base", "messages": [{"role": "user", "content": "x"}]}


class Clock:
    """Of the processes under test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.off(0)

    def off(self, seconds: float) -> None:
        hidden = self._path.with_suffix(".new")
        hidden.write_text(str(seconds))
        hidden.replace(self._path)

    @property
    def environment(self) -> dict[str, str]:
        clock = {"FLORIN_TEST_CLOCK": str(self._path)}
        return clock if SUPPORTED else clock | {"PYTHONPATH": str(STEPPED)}


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, valkey_url: str, prefix: str, clock: Clock) -> AsyncIterator[str]:
    """`florin serve`; gives its URL."""
    settings = {
        "FLORIN_STATE_DIR": str(tmp_path / "state"),
        "FLORIN_REDIS_URL": valkey_url,
        "FLORIN_REDIS_PREFIX": prefix,
        "FLORIN_OPERATOR_KEY": OPERATOR_KEY,
        "FLORIN_PORT": "0",
        "FLORIN_WORKERS": "2" if LONG else "1",
        "FLORIN_PROBE_INTERVAL": "0.1",
        "FLORIN_LEDGER_MAINTENANCE_INTERVAL": "0.3",
    }
    log = tmp_path / f"log-{time.monotonic_ns()}"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", "serve",
            env={**os.environ, **settings, **clock.environment}, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        url = await until(lambda: re.search(r"http://127.0.0.1:\d+", log.read_text()), what=log.read_text)
        yield url[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()
    assert "Traceback" not in log.read_text(), log.read_text()


def booked(state_dir: Path) -> float:
    """Seconds that the only engine was counted as alive, as bills count them."""
    ledger = Ledger(f"sqlite:///{state_dir / 'ledger.db'}")
    with ledger.read() as connection:
        spans = connection.execute(select(engine_spans.c.started, engine_spans.c.seen)).all()
        runs = connection.execute(select(usage_records.c.dispatched, usage_records.c.ended)).all()
    ledger.close()
    whole = union([*union([tuple(s) for s in spans], bridged=BRIDGED), *(tuple(r) for r in runs)])
    return sum(end - start for start, end in whole) / 1e6


async def test_a_clock_that_steps_books_no_time_that_did_not_exist(
    tmp_path: Path, valkey_url: str, prefix: str
):
    clock = Clock(tmp_path / "clock")
    begun, first, last, calm = time.monotonic(), 0.0, 0.0, ""
    async with MockEngine() as engine:
        for offsets in ((0.0, 2 * HOUR, -HOUR, 2 * HOUR), (2 * HOUR,)):  # restarted between
            async with (
                serving(tmp_path, valkey_url, prefix, clock) as url,
                httpx2.AsyncClient(
                    base_url=url, headers={"authorization": f"Bearer {OPERATOR_KEY}"}, timeout=PATIENCE_S
                ) as client,
            ):
                await client.post(
                    "/admin/v1/engines",
                    json={
                        "name": "a", "url": engine.url, "base": "base", "gpu_type": "h100", "slots": 2,
                        "max_rank": 8,
                    },
                )  # fmt: skip
                await client.post("/admin/v1/tenants", json={"name": "acme", "base_access": True})
                made = (await client.post("/admin/v1/keys", json={"tenant": "acme"})).json()
                customer = {"authorization": f"Bearer {made['key']}"}
                for off in offsets:
                    clock.off(off)
                    seen = engine.state.probes["/metrics"]
                    await until(lambda seen=seen: engine.state.probes["/metrics"] > seen + 3)
                    for _ in range(5):
                        answer = await client.post("/v1/chat/completions", json=ASKED, headers=customer)
                        assert answer.status_code == 200, answer.text
                    first = first or time.monotonic()
                    if not off:
                        calm = calm or (await client.get("/metrics")).text
                last = time.monotonic()
                assert (await client.get("/readyz")).status_code == 200
                if offsets == (2 * HOUR,):

                    async def warned(client: httpx2.AsyncClient = client) -> bool:
                        return "clock_off" in (await client.get("/readyz")).json()["conditions"]

                    async def shown(client: httpx2.AsyncClient = client) -> str:
                        text = (await client.get("/metrics")).text
                        return text if AHEAD in text else ""

                    await until(warned)
                    during = await until(shown)
                    doctor = (await client.get("/admin/v1/doctor")).json()
    existed = time.monotonic() - begun
    assert last - first <= booked(tmp_path / "state") <= existed
    with optional(NoPromtoolError):
        assert silent("FlorinClockOff", calm, tmp_path)
        assert fires("FlorinClockOff", calm, during, tmp_path)
    [said] = [d for d in doctor["data"] if d["check"] == "clock_off" and d["subject"]]
    assert said["status"] == "warning"
    assert "ahead of Florin's" in said["message"]
