from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.api.admin_requests import listed


@pytest.mark.parametrize("count", [0, 1, 100, 1001])
async def test_a_long_list_is_rendered_in_steps_between_which_others_are_served(count):
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(another())
    response = await listed(range(count), lambda number: {"number": number})
    task.cancel()
    assert orjson.loads(response.body) == {"data": [{"number": number} for number in range(count)]}
    assert turns >= count // 100
