"""Evaluation tools that have prompts scored, on vLLM 0.32.

Source: a survey of clients (lm-eval's loglikelihood tasks)
Sent: completions with `echo` and `logprobs`, to a model whose only engine runs vLLM 0.32.
Right: refused on engines that may crash of it; answered on one with a single seat (`--max-num-seqs 1`), where nothing
shares the batch, once it was tried, and on one of which its operator says that it is safe.
Why: every engine of 0.32 was refused, though only its build for CPUs crashes, and only if a request shares the batch.
"""

from __future__ import annotations

from typing import Any

from loadtests.mock_engine import MockEngine
from tests.integration.test_walls import TEXT, post, register
from tests.support.harness import Gateway

SCORED: dict[str, Any] = {"model": "base", "echo": True, "logprobs": 1, "max_tokens": 1}


async def answered_by(gateway: Gateway) -> str:
    answer = await post(gateway, "acme", TEXT, **SCORED)
    return answer.headers["x-florin-engine"] if answer.status_code == 200 else answer.json()["error"]["code"]


async def test_the_operator_has_a_switch_and_one_seat_is_tried(gateway: Gateway):
    await gateway.add_tenant("acme", base_access=True)
    async with MockEngine(version="0.32.0") as one, MockEngine(version="0.32.0") as two:
        assert (await register(gateway, "one", one, seats=8))["prompt_scores"] == "unsafe"
        assert not one.state.calls
        assert await answered_by(gateway) == "unsupported_parameter"
        assert (await register(gateway, "two", two, seats=1))["prompt_scores"] == "safe"
        assert two.state.calls
        assert await answered_by(gateway) == "two"
        assert (await register(gateway, "two", two, seats=1, prompt_scores="unsafe"))[
            "prompt_scores"
        ] == "unsafe"
        assert (await register(gateway, "one", one, seats=8, prompt_scores="safe"))["prompt_scores"] == "safe"
        assert not one.state.calls
        assert await answered_by(gateway) == "one"
        assert (await register(gateway, "one", one, seats=8))["prompt_scores"] == "unsafe"
        assert (await register(gateway, "two", two, seats=1))["prompt_scores"] == "safe"


async def test_an_engine_of_one_seat_that_dies_of_it_is_not_tried_again(gateway: Gateway):
    async with MockEngine(version="0.32.0", answer_tokens=50) as engine:
        engine.faults.scores_kill, engine.faults.event_delay = True, 0.02
        assert (await register(gateway, "a", engine, seats=1))["prompt_scores"] == "unsafe"
        await engine.revive()
        tried = len(engine.state.calls)
        assert (await register(gateway, "a", engine, seats=1))["prompt_scores"] == "unsafe"
        assert len(engine.state.calls) == tried
