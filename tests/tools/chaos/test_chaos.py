"""The short form of `python -m loadtests.chaos`: one of each of a few faults, the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from loadtests.chaos.__main__ import QUICK
from loadtests.chaos.run import Result, run
from loadtests.chaos.schedule import plan
from loadtests.chaos.world import ChaosCluster

SEED = 5
CUSTOMERS = 6


async def _chaos(directory: Path) -> Result:
    async with ChaosCluster(directory) as world:
        schedule = plan(SEED, world.counts(), kinds=QUICK, once=True)
        return await run(world, schedule, seed=SEED, customers=CUSTOMERS, progress=lambda *_: None)


@pytest.mark.long
@pytest.mark.timeout(
    600
)  # a machine that is busy starts processes slowly; the faults take a quarter of a minute
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # connections are torn off, on purpose
def test_faults_cost_what_they_may_and_nothing_else(tmp_path: Path):
    result = uvloop.run(_chaos(tmp_path))
    assert {name: found for name, found in result.wrong.items() if found} == {}, (
        f"again: python -m loadtests.chaos --quick --seed {SEED} --customers {CUSTOMERS}"
    )
    assert {window.event.kind for window in result.windows} == set(QUICK)
    assert sum(one.finished for one in result.heard) > 50, "too few were answered for this to show anything"
