"""SGLang 0.5 (read from the source of 0.5.23; tested against an emulated server).

- Adapters: `POST /load_lora_adapter {lora_name, lora_path}` and `/unload_lora_adapter`, which answer
  `{success, error_message, loaded_adapters}`, 400 if not. An unload waits for the adapter's requests and then
  really frees its memory. Needs `--enable-lora`, `--max-lora-rank` and `--lora-target-modules`.
- A request names an adapter as `BASE:ADAPTER` in `model`, or in `lora_path`. Any other model name, an
  adapter's own included, is answered by the base model. So the name is always sent in the first form.
- An adapter that was never loaded is a 400, or an error event in a stream. One that SGLang itself has evicted
  (`--max-loaded-loras`) is loaded again from its path.
- `stream_options.continuous_usage_stats` works as in vLLM. Cached tokens need `--enable-cache-report`.
- Fields that it does not know are ignored, so Florin refuses them.
- `/health` generates a token, and takes a second for it; metrics need `--enable-metrics`.
- DoRA is refused at load.
"""

from __future__ import annotations

import orjson

from adapters.drivers.driver import (
    CHAT,
    COMPLETIONS,
    Body,
    Capabilities,
    Driver,
    HttpCall,
    Limits,
    Loading,
    Lora,
    Metrics,
    Trouble,
    select,
)

_SAMPLING = frozenset(
    {
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "temperature", "top_p", "top_k"),
        *("min_p", "seed", "n", "logit_bias", "stop", "stop_token_ids", "ignore_eos", "min_tokens"),
        *("skip_special_tokens", "response_format", "return_token_ids", "stream", "max_tokens", "logprobs"),
    }
)
_FIELDS = {
    CHAT: _SAMPLING
    | {
        *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"),
        *("reasoning_effort", "chat_template_kwargs", "continue_final_message"),
    },
    COMPLETIONS: _SAMPLING | {"prompt", "echo", "suffix"},
}
_SPARE = 3
"""More logprobs than a probe needs: they are listed by text, and two tokens may have the same."""


class Sglang(Driver):
    name = "sglang"
    title = "SGLang"
    capabilities = Capabilities(
        loading=Loading.CALL,
        lists=True,
        unloads="removes",
        base_for_unknown=False,
        running_counts=True,
        salts=True,
        routes=frozenset({CHAT, COMPLETIONS}),
    )
    metrics = Metrics(
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        prompt_tokens="sglang:prompt_tokens_total",
        cached_tokens="sglang:cached_tokens_total",
        generation_tokens="sglang:generation_tokens_total",
        moving=("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:realtime_tokens_total"),
    )
    health_path = "/model_info"
    version_path = "/server_info"
    limits_path = "/server_info"
    slots_flag = "--max-loras-per-batch"
    advice = "start it with --enable-lora, --max-lora-rank and --lora-target-modules"

    def is_loaded(self, status: int, message: str) -> bool:
        return status == 400 and "already loaded" in message

    def limits(self, answer: bytes) -> Limits:
        server_info = orjson.loads(answer)
        return Limits(
            bool(server_info.get("enable_lora")),
            server_info.get("max_loras_per_batch"),
            server_info.get("max_lora_rank"),
        )

    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:
        salt, options = body.get("cache_salt"), body.get("stream_options")
        body = select(body, _FIELDS, route, self.title)
        if body.get("top_k") == 0:  # off, which SGLang writes as -1
            body["top_k"] = -1
        body |= {"model": f"{base}:{lora.name}" if lora else base, "cache_salt": salt}
        if options is not None:
            body["stream_options"] = options
        return body

    def ask(self, body: Body, base: str, lora: Lora | None) -> list[HttpCall]:
        if "logprobs" in body:
            body = body | {"logprobs": body["logprobs"] + _SPARE}
        body.pop("return_tokens_as_token_ids", None)
        return [HttpCall("POST", COMPLETIONS, self.request(COMPLETIONS, body, base, lora))]

    def trouble(self, status: int, message: str) -> Trouble | None:
        unknown = "LoRA adapter that has never been loaded" in message or "adapters are not loaded" in message
        return Trouble.UNKNOWN_MODEL if unknown and status == 400 else None
