"""TensorRT-LLM's `trtllm-serve`, PyTorch backend (read from the source of 1.2 and the documentation of 1.3;
tested against an emulated server).

- A request brings its adapter: `lora_request: {lora_name, lora_int_id, lora_path}`. The engine loads it from
  the path when it first sees the id, keeps it in the caches that `lora_config` sizes (`max_loras`,
  `max_cpu_loras`), and neither lists nor unloads it. The id must never mean another adapter: Florin derives
  it from the version's name, which is never reused.
- `model` names the base model only. Unknown fields are a 400.
- `stream_options.continuous_usage_stats` works as in vLLM.
- `cache_salt` exists for chats only. On /v1/completions, a tenant could find out by the response time what
  others have sent to the base model, so Florin does not use that route. It has no logprobs either.
- Prometheus metrics need `return_perf_metrics: true`, and are at `/prometheus/metrics`.
"""

from __future__ import annotations

import hashlib
from typing import Any

from adapters.drivers.driver import (
    CHAT,
    Body,
    Capabilities,
    HttpCall,
    Listing,
    Loading,
    Lora,
    Metrics,
    cards_of,
    name_of,
    owned_by,
    select,
)
from adapters.drivers.prompt_by_prompt import PromptByPrompt

_FIELDS = {
    CHAT: frozenset(
        {
            *("messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "tools"),
            *("tool_choice", "reasoning_effort", "add_generation_prompt", "documents"),
            *("chat_template_kwargs", "frequency_penalty", "presence_penalty", "repetition_penalty"),
            *("temperature", "top_p", "top_k", "min_p", "seed", "n", "logit_bias", "stop", "stop_token_ids"),
            *("ignore_eos", "min_tokens", "include_stop_str_in_output", "skip_special_tokens"),
            *("spaces_between_special_tokens", "add_special_tokens", "truncate_prompt_tokens"),
            *("response_format", "stream"),
        }
    )
}


class Trtllm(PromptByPrompt):
    name = "trtllm"
    title = "TensorRT-LLM"
    capabilities = Capabilities(
        loading=Loading.REQUEST,
        lists=False,
        running_counts=True,
        salts=True,
        routes=frozenset({CHAT}),
    )
    metrics = Metrics(
        path="/prometheus/metrics",
        running="trtllm_num_requests_running",
        waiting="trtllm_num_requests_waiting",
        prompt_tokens="trtllm_prompt_tokens_total",
        cached_tokens="trtllm_prompt_cached_tokens_total",
        generation_tokens="trtllm_generation_tokens_total",
        moving=(
            "trtllm_num_requests_running",
            "trtllm_num_requests_waiting",
            "trtllm_generation_tokens_total",
        ),
    )
    slots_flag = "lora_config.max_loras"
    advice = "start it with a lora_config (max_lora_rank, max_loras, lora_target_modules)"

    def is_mine(self, models: Any, info: Any) -> bool:  # noqa: ARG002
        return owned_by(models, "tensorrt_llm")

    def listing(self, answer: Any) -> Listing:
        names = [name_of(card["id"]) for card in cards_of(answer)]
        return Listing({name: name for name in names}, None, None)

    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:
        salt, options = body.get("cache_salt"), body.get("stream_options")
        body = select(body, _FIELDS, route, self.title)
        if body.get("top_k") == -1:  # off, which TensorRT-LLM writes as 0
            body["top_k"] = 0
        response_format = body.get("response_format")
        if response_format is not None and response_format["type"] == "json_schema":
            body["response_format"] = {
                "type": "json",
                "schema": response_format["json_schema"].get("schema", {}),
            }
        body |= {"model": base, "cache_salt": salt}
        if options is not None:
            body["stream_options"] = options
        if lora is not None:
            body["lora_request"] = _named(lora)
        return body

    def ask_one(self, prompt: str, body: Body, base: str, lora: Lora | None) -> HttpCall:
        chat: Body = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": body["max_tokens"],
            "ignore_eos": True,
            "cache_salt": body["cache_salt"],
        }
        if "logprobs" in body:
            chat |= {"logprobs": True, "top_logprobs": body["logprobs"]}
        return HttpCall("POST", CHAT, self.request(CHAT, chat, base, lora))

    def read(self, answer: Any) -> tuple[str, list[float], Any]:
        choice = answer["choices"][0]
        steps = (choice.get("logprobs") or {}).get("content") or [{}]
        return (
            choice["message"]["content"] or "",
            [top["logprob"] for top in steps[0].get("top_logprobs", [])],
            answer["usage"],
        )


def _named(lora: Lora) -> Body:
    """The id is positive and fits the engine's 64 bits; two versions share one with a probability of
    10⁻¹³ for a thousand of them."""
    digest = hashlib.sha256(lora.name.encode()).digest()
    return {
        "lora_name": lora.name,
        "lora_int_id": int.from_bytes(digest[:8], "big") >> 1,
        "lora_path": lora.path,
    }
