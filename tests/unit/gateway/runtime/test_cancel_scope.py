"""Scopes that end a wait from outside, each with an exception of its own."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway.runtime.cancel_scope import CancelScope


class ReasonError(Exception):
    pass


@pytest.fixture
def scope() -> CancelScope:
    return CancelScope()


async def wait_in(*scopes: CancelScope, then: BaseException | None = None) -> int:
    """Wait in these scopes, the first of which is the outermost. `then`: raised by what cleans up. Returns the
    cancellation requests that the task has left."""
    task = asyncio.current_task()
    assert task is not None
    try:
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(scope)
            try:
                await asyncio.Event().wait()
            finally:
                if then is not None:
                    raise then
    finally:
        left = task.cancelling()
        if left == 0:
            await asyncio.sleep(0)  # raises if a cancellation is left behind
    return left


async def waiting(*scopes: CancelScope, then: BaseException | None = None) -> asyncio.Task[int]:
    task = asyncio.create_task(wait_in(*scopes, then=then))
    await asyncio.sleep(0)
    return task


async def test_wait_ends_with_reason(scope: CancelScope):
    task = await waiting(scope)
    scope.cancel(ReasonError())
    with pytest.raises(ReasonError):
        await task
    assert task.cancelling() == 0


async def test_scope_cancelled_before_it_is_entered_raises_at_once(scope: CancelScope):
    scope.cancel(ReasonError())
    with pytest.raises(ReasonError), scope:
        pytest.fail("the block ran")


async def test_scope_can_be_entered_again(scope: CancelScope):
    for _ in range(2):
        with scope:
            await asyncio.sleep(0)
    task = await waiting(scope)
    scope.cancel(ReasonError())
    with pytest.raises(ReasonError):
        await task


async def test_scope_cancelled_between_two_blocks_raises_in_second(scope: CancelScope):
    with scope:
        pass
    scope.cancel(ReasonError())
    await asyncio.sleep(0)  # outside, nothing is interrupted
    with pytest.raises(ReasonError), scope:
        pass


@pytest.mark.parametrize("first", ["scope", "task"])
async def test_cancelled_task_is_cancelled_whatever_the_scope_says(scope: CancelScope, first: str):
    task = await waiting(scope)
    if first == "task":
        task.cancel()
    scope.cancel(ReasonError())
    if first == "scope":
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_outer_reason_wins_if_both_are_cancelled():
    outer, inner = CancelScope(), CancelScope()
    task = await waiting(outer, inner)
    inner.cancel(LookupError())
    outer.cancel(ReasonError())
    with pytest.raises(ReasonError):
        await task
    assert task.cancelling() == 0


async def test_inner_scope_raises_its_own_reason():
    outer, inner = CancelScope(), CancelScope()
    task = await waiting(outer, inner)
    inner.cancel(LookupError())
    with pytest.raises(LookupError):
        await task


async def test_error_raised_while_leaving_passes(scope: CancelScope):
    task = await waiting(scope, then=ZeroDivisionError())
    scope.cancel(ReasonError())
    with pytest.raises(ZeroDivisionError):
        await task
    assert task.cancelling() == 0


async def test_timeout_around_it_stays_a_timeout(scope: CancelScope):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_in(scope), 0.01)
    assert scope.reason is None
