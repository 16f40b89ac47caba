"""Hugging Face's Text Generation Inference 3.3 (read from its source, which upstream only maintains any more;
tested against an emulated server).

- It loads adapters at its start only: `LORA_ADAPTERS=NAME=/path,…`. It lists none of them.
- A request names one in `model`. **A name that it was not started with is answered by the base model**, so
  a version is served only after its answers to a probe were compared with the base model's, and again after
  each outage of the engine.
- Streams have counts only at their end: in a chunk of their own for chats if `stream_options.include_usage`,
  in the last chunk for completions. Nothing else of `stream_options` exists.
- With adapters it turns its prefix cache off, unless PREFIX_CACHING=1: do not set that, there is no
  `cache_salt`.
- `n`, `logit_bias` and `presence_penalty` are ignored or mean something else, so they are refused.
- Errors are `{"error": "words", "error_type": …}`; 424 means that the engine failed.
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
    select,
)
from adapters.drivers.prompt_by_prompt import TextGeneration

_SHARED = frozenset({"max_tokens", "stop", "stream", "seed", "temperature", "top_p", "frequency_penalty"})
_FIELDS = {
    CHAT: _SHARED
    | {
        *("messages", "max_completion_tokens", "logprobs", "top_logprobs"),
        *("tools", "tool_choice", "response_format"),
    },
    COMPLETIONS: _SHARED | {"prompt", "repetition_penalty"},
}


class Tgi(TextGeneration):
    name = "tgi"
    title = "Text Generation Inference"
    capabilities = Capabilities(
        loading=Loading.START,
        lists=False,
        base_for_unknown=True,
        running_counts=False,
        salts=False,
        routes=frozenset({CHAT, COMPLETIONS}),
    )
    metrics = Metrics(
        running="tgi_batch_current_size",
        waiting="tgi_queue_size",
        prompt_tokens="tgi_request_input_length_sum",
        generation_tokens="tgi_request_generated_tokens_sum",
    )
    slots_flag = "the number of its LORA_ADAPTERS"
    advice = "start it with LORA_ADAPTERS=NAME=PATH,…"

    def is_mine(self, models: Any, info: Any) -> bool:  # noqa: ARG002
        return bool(info) and info.get("router") == "text-generation-router"

    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:  # noqa: ARG002
        body = select(body, _FIELDS, route, self.title)
        if type(body.get("stop")) is str:
            body["stop"] = [body["stop"]]
        body["model"] = lora.name if lora else "tgi"  # its name for the base model, whichever that is
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return body

    def parameters(self, body: Body, lora: Lora | None) -> Body:
        parameters: Body = {"decoder_input_details": True}
        if "logprobs" in body:
            parameters["top_n_tokens"] = body["logprobs"]
        if lora is not None:
            parameters["adapter_id"] = lora.name
        return parameters

    def read(self, answer: Any) -> tuple[str, list[float], Any]:
        details = answer["details"]
        first = details.get("top_tokens") or [[]]
        counts = {"prompt_tokens": len(details["prefill"]), "completion_tokens": details["generated_tokens"]}
        return answer["generated_text"], [token["logprob"] for token in first[0]], counts
