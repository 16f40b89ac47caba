"""vLLM 0.32 and 0.33: the reference. What it takes and sends is what Florin speaks inside."""

from __future__ import annotations

import re
from typing import Any

from adapters.drivers.driver import (
    CHAT,
    COMPLETIONS,
    Body,
    Capabilities,
    Driver,
    HttpCall,
    Limits,
    Listing,
    Loading,
    Lora,
    Metrics,
    owned_by,
    parented,
)

_MAX_LORAS = re.compile(rb'^vllm:lora_requests_info\{[^}\n]*max_lora="(\d+)"', re.MULTILINE)


class Vllm(Driver):
    name = "vllm"
    title = "vLLM"
    capabilities = Capabilities(
        loading=Loading.CALL,
        lists=True,
        running_counts=True,
        salts=True,
        resumes=True,
        prompt_scores=True,
        routes=frozenset({CHAT, COMPLETIONS}),
        tasks=frozenset({"generate", "embed", "score"}),
    )
    metrics = Metrics(
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        prompt_tokens="vllm:prompt_tokens_total",
        cached_tokens="vllm:prompt_tokens_cached_total",
        generation_tokens="vllm:generation_tokens_total",
        kv_usage="vllm:kv_cache_usage_perc",
        ready="vllm:prompt_tokens_created",
        # The last is the time of the latest step, which also changes during a long prefill.
        moving=(
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:iteration_tokens_total_count",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:num_preemptions_total",
            "vllm:lora_requests_info",
        ),
    )
    limits_path = "/metrics"
    slots_flag = "--max-loras"
    advice = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"

    def is_mine(self, models: Any, info: Any) -> bool:  # noqa: ARG002
        return owned_by(models, "vllm")

    def load(self, lora: Lora) -> HttpCall:
        return HttpCall("POST", "/v1/load_lora_adapter", {"lora_name": lora.name, "lora_path": lora.path})

    def unload(self, name: str) -> HttpCall:
        return HttpCall("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def is_loaded(self, status: int, message: str) -> bool:
        return status == 400 and "already" in message

    def listing(self, answer: Any) -> Listing:
        return parented(answer)

    def limits(self, answer: bytes) -> Limits:
        """One metric tells --max-loras, once the engine has answered anything; none its other limits."""
        max_loras = _MAX_LORAS.search(answer)
        return Limits(slots=int(max_loras[1]) if max_loras else None)

    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:  # noqa: ARG002
        """The gateway sends vLLM's requests as they are, without asking."""
        return body

    def ask(self, body: Body, base: str, lora: Lora | None) -> list[HttpCall]:
        return [HttpCall("POST", COMPLETIONS, body | {"model": lora.name if lora else base})]
