"""What only real engines can show of the walls between tenants: engines that die of scoring a prompt, and what engines say
of wrong requests. That the prefix cache tells nothing: test_gateway.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.store.protocol.registry import Change
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from gateway.fleet.engines.operations import prompt_scores
from gateway.routing.engine_answers import read_error
from gateway.routing.engine_messages import OTHERWISE, refusal
from tests.engine.conftest import SETTINGS, add_tenant, post, register
from tests.support.harness import running_gateway
from tests.support.waiting import until
from tests.unit.gateway.routing.test_engine_messages import NEVER

COMPLETIONS = "/v1/completions"
# -- scores of prompts

SCORED: tuple[dict[str, Any], ...] = (
    {"prompt_logprobs": 0}, {"prompt_logprobs": 5}, {"echo": True, "logprobs": 0},
)  # fmt: skip


@pytest.mark.long  # an engine is restarted; tests/integration/test_walls.py has the same with mock engines
async def test_an_engine_that_dies_of_scoring_prompts_is_found_out_and_spared(
    repaired_fleet: Fleet,
    demo_model: DemoModel,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    valkey_url: str,
    prefix: str,
):
    engine, model = repaired_fleet.engines[0], demo_model.served_name
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **SETTINGS) as gateway:
        assert (await register(gateway, engine.url, model))["prompt_scores"] == "unsafe"
        assert gateway.state.catalog.engines["e0"].version.startswith("0.32.")
        await add_tenant(gateway, "acme", base_access=True)
        async with gateway.http(gateway.keys["acme"]) as http:
            for fields in SCORED:
                answer = await http.post(COMPLETIONS, json={"model": model, "prompt": "Hi", **fields})
                assert answer.json()["error"]["code"] == "unsupported_parameter"
        assert engine.alive
        # Were its version not known, it would be tried once, and would die of it.
        monkeypatch.setattr(prompt_scores, "UNSAFE_VERSIONS", ())
        monkeypatch.setattr(prompt_scores, "_same_process", lambda _old, _new: False)
        await gateway.commit(Change("engine", "e0", None))
        assert (await register(gateway, engine.url, model))["prompt_scores"] == "unsafe"
        await until(lambda: not engine.alive)


# -- what engines say

WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": "Hi"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": {"secret": 1}}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100_000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "secret " * 5000}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "chat_template": "{{ secret }}"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "secret"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}],
                              "structured_outputs": {"regex": "a", "choice": ["secret"]}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "secret"}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "secret"}]}]}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 100_000}),
    ("/v1/completions", {"prompt": [1] * 3000}),
    ("/v1/completions", {"prompt": [10**6]}),
    ("/v1/completions", {"prompt": "Hi", "temperature": "secret"}),
    ("/v1/completions", {"prompt": "Hi", "structured_outputs": {"regex": "(a"}}),
    ("/v1/completions", {"prompt": "Hi", "structured_outputs": {"json": {"type": "odd"}}}),  # grammars are quoted
    ("/v1/completions", {"prompt": "Hi", "suffix": "secret"}),
    ("/v1/completions", {"prompt": "Hi", "logit_bias": {"secret": 1}}),
)  # fmt: skip


def test_no_real_message_tells_of_the_engines_insides(clean_fleet: Fleet, demo_model: DemoModel):
    told = {}
    for path, fields in WRONG:
        body = {"model": demo_model.served_name, **fields}
        answer = post(clean_fleet.engines[0].url + path, body)
        error = read_error(answer.content)
        found = refusal(error)
        told[str(fields)[:80]] = (answer.status_code, error.get("message"), error.get("param"), found)
        assert 400 <= answer.status_code < 500, told
        assert not [word for word in NEVER if word in found.message], found
    useful = [found for *_, found in told.values() if found.message != OTHERWISE]
    assert len(useful) >= len(WRONG) - 3
    assert sum(found.code == "context_length_exceeded" for found in useful) >= 4
