"""The tables of fields and flags against the vLLM that is installed, and the worst of what they keep from its engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from adapters.engine_agent import engine_command
from adapters.engine_agent import engine_flags as flags
from deploy.demo.engine_env import EngineEnv
from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from gateway.fields.registry import without_rule
from tests.engine.libraries import told_by
from tests.engine.test_gateway import ask, counters, messages
from tests.support.harness import Gateway

SNAPSHOT = Path(__file__).parents[1] / "unit" / "gateway" / "fields" / "vllm_fields.json"


@pytest.fixture(scope="module")
def installed(engine_env: EngineEnv) -> dict[str, Any]:
    return told_by(engine_env.python)[2]


def test_every_field_of_the_installed_vllm_has_a_rule(installed: dict[str, Any]):
    """A new field must be looked at before it reaches an engine: give it a row in gateway/fields, and write
    what vllm_fields.py prints of fields to the snapshot."""
    assert without_rule(installed["fields"]) == []
    snapshot = json.loads(SNAPSHOT.read_text())
    if installed["vllm"] == snapshot["vllm"]:
        assert installed["fields"] == snapshot["fields"]


def test_vllm_has_the_flags_that_florin_knows_and_no_others_like_them(installed: dict[str, Any]):
    """A flag of ours that vLLM does not have would never be seen; one of vLLM's that begins one of ours would
    be taken for an abbreviation."""
    long = {name[2:] for name in installed["flags"] if name.startswith("--")}
    assert long >= flags.KNOWN
    assert not {a for a in long - flags.KNOWN for ours in flags.KNOWN if ours.startswith(a)}
    short = {name for name in installed["flags"] if not name.startswith("--")}
    assert engine_command.SHORT.keys() <= short
    assert short - engine_command.SHORT.keys() == engine_command.OTHER_SHORT


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
TAKEN: list[dict[str, object]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "x": 1}}},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"regex": "P([0-9]+Y)?([0-9]+M)?([0-9]+D)?"}},
    {"tools": [TOOL], "tool_choice": "none"},
    {"logit_bias": {"5": -100}, "stop": ["zz"], "stop_token_ids": [7], "bad_words": ["zz"], "min_tokens": 1},
    {
        "allowed_token_ids": [5, 6, 7],
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "temperature": 0.5,
    },
    {"repetition_detection": {"max_pattern_size": 64, "min_pattern_size": 1, "min_count": 3}},
    {"chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "a", "text": "b"}]},
    {"logprobs": True, "top_logprobs": 20, "return_token_ids": True, "truncate_prompt_tokens": 20},
    {"store": True, "metadata": {}, "brand_new": 1, "watermarking": True, "stream_interval": 50, "user": "u"},
]
"""What a client may say; the tables' own form of each is one that vLLM takes."""


async def test_what_the_tables_send_is_what_vllm_takes(gateway: Gateway):
    parts = [{"type": "text", "text": "When will"}, {"type": "input_text", "text": " it arrive?"}, "Please."]
    asked = [(messages("Hi"), fields) for fields in TAKEN]
    asked.append(([{"role": "user", "content": parts}], {}))
    async with gateway.client("acme", timeout=120) as client:
        for turns, fields in asked:
            answer = await client.chat.completions.create(
                model="support", messages=turns, max_tokens=16, extra_body=fields
            )
            assert answer.usage.prompt_tokens > 0, fields


async def test_harmful_fields_neither_crash_the_engine_nor_escape_metering(
    gateway: Gateway, clean_fleet: Fleet, demo_model: DemoModel
):
    """Each of these, in a batch that others share, would end the engine or make it work unseen."""
    deadly = [
        ("/v1/chat/completions", {"messages": messages("Hi"), **fields})
        for fields in ({"prompt_logprobs": False}, {"prompt_logprobs": 0}, {"echo": True}, {"use_beam_search": True, "n": 8})
    ]  # fmt: skip
    deadly += [
        ("/v1/completions", {"prompt": "Hi", **fields})
        for fields in ({"prompt_logprobs": False}, {"echo": True, "logprobs": 0}, {"use_beam_search": True, "n": 8})
    ]  # fmt: skip
    question = demo_model.questions[0]
    await ask(gateway, "acme", question)
    known = {r.id for r in await gateway.usage()}
    before = counters(clean_fleet)
    async with gateway.http(gateway.keys["bolt"]) as http:
        sent = [http.post(path, json={"model": "support", **body}, timeout=120) for path, body in deadly]
        answers, refused = await asyncio.gather(
            asyncio.gather(*(ask(gateway, "acme", question) for _ in range(8))), asyncio.gather(*sent)
        )
    assert set(answers) == {demo_model.adapters["acme"].answers[question]}
    assert {answer.status_code for answer in refused} == {400}
    assert all(engine.alive for engine in clean_fleet.engines)
    records = [r for r in await gateway.usage() if r.id not in known]
    spent = counters(clean_fleet) - before
    assert spent["prompt"] == sum(r.prompt_tokens for r in records)
    assert spent["generation"] == sum(r.completion_tokens for r in records)
