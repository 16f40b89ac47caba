"""Predibase's LoRAX 0.12.1 (read from its source of May 2026; tested against an emulated server).

- A request brings its adapter: its path in `model`, and `adapter_source: "local"`. The engine loads it when
  it first sees it, evicts it as it likes, and neither lists nor unloads it. The base model's own id, or none,
  means the base model.
- Streams have counts in their last chunk only; earlier ones have none or zeros. There is no `stream_options`.
- It has no `cache_salt`; its prefix cache is off unless --prefix-caching true: leave it so.
- /v1/completions samples only if `n` is given, and takes one prompt.
- Errors are as TGI's, of which LoRAX is a fork: 424 means that generation failed; an adapter that cannot be
  loaded is one of these.
"""

from __future__ import annotations

from typing import Any

from adapters.drivers.driver import (
    CHAT,
    COMPLETIONS,
    Body,
    Capabilities,
    Loading,
    Lora,
    Metrics,
    UnsupportedFieldError,
    select,
)
from adapters.drivers.prompt_by_prompt import TextGeneration

_SHARED = frozenset(
    {
        *("max_tokens", "stop", "stream", "seed", "temperature", "top_p", "top_k", "ignore_eos"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
    }
)
_FIELDS = {
    CHAT: _SHARED | {"messages", "max_completion_tokens", "tools", "tool_choice", "response_format"},
    COMPLETIONS: _SHARED | {"prompt"},
}


class Lorax(TextGeneration):
    name = "lorax"
    title = "LoRAX"
    capabilities = Capabilities(
        loading=Loading.REQUEST,
        lists=False,
        running_counts=False,
        salts=False,
        routes=frozenset({CHAT, COMPLETIONS}),
    )
    metrics = Metrics(
        running="lorax_batch_current_size",
        waiting="lorax_queue_length",
        prompt_tokens="lorax_request_input_length_sum",
        generation_tokens="lorax_request_generated_tokens_sum",
    )
    slots_flag = "--max-active-adapters"
    advice = "start it with --adapter-source local"

    def is_mine(self, models: Any, info: Any) -> bool:  # noqa: ARG002
        return bool(info) and "router" not in info and "model_device_type" in info and "eager_prefill" in info

    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:
        body = select(body, _FIELDS, route, self.title)
        if type(body.get("stop")) is str:
            body["stop"] = [body["stop"]]
        if "max_completion_tokens" in body:
            body["max_tokens"] = body.pop("max_completion_tokens")
        if "ignore_eos" in body:
            body["ignore_eos_token"] = body.pop("ignore_eos")
        if body.get("top_k", 1) < 1:  # off
            del body["top_k"]
        if route == COMPLETIONS:
            if type(body["prompt"]) is not str:
                raise UnsupportedFieldError(
                    "prompt", f"{self.title}, which serves this model, takes one text"
                )
            if body.get("temperature") == 0:
                del body["temperature"]
            else:
                body["n"] = 1
        body["model"] = base
        if lora is not None:
            body |= {"model": lora.path, "adapter_source": "local"}
        return body

    def parameters(self, body: Body, lora: Lora | None) -> Body:
        parameters: Body = {"ignore_eos_token": True}
        if "logprobs" in body:
            parameters["return_k_alternatives"] = body["logprobs"]
        if lora is not None:
            parameters |= {"adapter_id": lora.path, "adapter_source": "local"}
        return parameters

    def read(self, answer: Any) -> tuple[str, list[float], Any]:
        details = answer["details"]
        likeliest = [t["logprob"] for t in details["tokens"][0].get("alternative_tokens") or []]
        counts = {"prompt_tokens": details["prompt_tokens"], "completion_tokens": details["generated_tokens"]}
        return answer["generated_text"], likeliest, counts
