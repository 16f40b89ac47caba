"""Fields of requests over real sockets: an engine gets what was checked, and nothing else."""

from __future__ import annotations

import orjson

from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO, voice

CHAT = "/v1/chat/completions"
OPENAIS_OWN = {
    "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k", "verbosity": "low",
    "prediction": {"type": "content", "content": "x"}, "safety_identifier": "s", "user": "u", "modalities": ["text"],
    "parallel_tool_calls": True, "reasoning_effort": "low",
}  # fmt: skip
STEERING = {
    "cache_salt": "another-tenants", "priority": -5, "request_id": "r", "session_id": "s", "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {}, "vllm_xargs": {"a": 1}, "stream_interval": 10_000, "watermarking": False,
}  # fmt: skip


async def test_an_application_written_for_openai_runs_unchanged(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        answer = await client.chat.completions.create(model="support", messages=HELLO, **OPENAIS_OWN)
        stream = await client.chat.completions.create(
            model="support", messages=HELLO, stream=True, stream_options={"include_usage": True, "include_obfuscation": False},
            **OPENAIS_OWN,
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    assert voice(deployment, "acme/support") in answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens > 0
    sent = {"parallel_tool_calls", "reasoning_effort", "model", "messages", "cache_salt"}
    whole, streamed = sorted((call.body for call in deployment.calls()), key=len)
    assert whole.keys() == sent
    assert streamed.keys() == sent | {"stream", "stream_options"}
    assert streamed["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


async def test_an_engine_gets_what_was_checked_and_nothing_else(deployment: Deployment):
    data = "DATA:image/png;base64,AAAA"
    body = {
        "model": "support",
        "messages": [
            {"role": "system", "content": "Be brief.", "unknown": 1},
            {"role": "user", "channel": "x", "content": [
                {"type": "text", "text": "Hi", "cache_control": {}, "image_url": "http://10.0.0.1/"},
                {"type": "input_image", "image_url": data, "uuid": "another-tenants", "detail": "low"}]},
        ],
        "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1}, "brand_new": {"a": 1}, "prompt_logprobs": None,
        "echo": False, "use_beam_search": False, "response_format": {"type": "text", "extra": 1},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "extra": 1}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}, "extra": 1},
        **OPENAIS_OWN, **STEERING,
    }  # fmt: skip
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        answer = await http.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
    (call,) = deployment.calls()
    salt = call.body.pop("cache_salt")
    assert salt != "another-tenants"
    assert call.body == {
        "model": voice(deployment, "acme/support"),
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        ],
        "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1}, "response_format": {"type": "text"},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": True, "reasoning_effort": "low",
    }  # fmt: skip
    metrics = deployment.gateway.state.metrics.render().decode()
    # brand_new, unknown, cache_control, the text's image_url, and three times extra
    assert "\nflorin_unknown_fields_total 7.0\n" in metrics


async def test_a_key_said_twice_is_judged_as_it_is_sent(deployment: Deployment):
    """The engine would take the last; so does the gateway, whatever the spelling, and sends only that."""
    raw = b'{"model":"support","messages":[{"role":"user","content":"Hi"}],"prompt_logprobs":null,"prompt_\\u006cogprobs":%s}'
    async with deployment.gateway.http(deployment.gateway.keys["acme"]) as http:
        assert (await http.post(CHAT, content=raw % b"false")).status_code == 400
        assert deployment.calls() == []
        assert (await http.post(CHAT, content=raw % b"null")).status_code == 200
    (call,) = deployment.calls()
    assert b"logprobs" not in orjson.dumps(call.body)
