from __future__ import annotations

import asyncio

from tests.support.interruption import Interrupted


async def three_waits(seen: list[str]) -> str:
    for name in "abc":
        try:
            await asyncio.sleep(0 if name == "b" else 0.001)
        except asyncio.CancelledError:
            seen.append(f"cancelled in {name}")
            raise
        seen.append(name)
    return "done"


async def run(at: int) -> tuple[list[str], Interrupted]:
    seen: list[str] = []

    async def drive() -> None:
        task = asyncio.current_task()
        assert task
        steps.append(Interrupted(three_waits(seen), at, task.cancel))
        seen.append(await steps[0])

    steps: list[Interrupted] = []
    await asyncio.wait([asyncio.create_task(drive())])
    return seen, steps[0]


async def test_each_wait_in_turn_is_cancelled():
    assert [(await run(at))[0] for at in (1, 2, 3)] == [
        ["cancelled in a"],
        ["a", "cancelled in b"],
        ["a", "b", "cancelled in c"],
    ]


async def test_beyond_the_last_nothing_happens():
    seen, steps = await run(4)
    assert seen == ["a", "b", "c", "done"]
    assert (steps.happened, steps.waits) == (False, 3)
