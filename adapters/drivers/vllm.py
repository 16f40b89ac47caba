"""vLLM 0.32 and 0.33: the reference. What it takes and sends is what Florin speaks inside."""

from __future__ import annotations

import re
from itertools import islice

from adapters.drivers.driver import (
    CHAT,
    COMPLETIONS,
    MAX_MODELS,
    Body,
    Capabilities,
    Driver,
    HttpCall,
    Limits,
    Loading,
    Lora,
    Metrics,
)

_MAX_LORAS = re.compile(
    rb'^vllm:(?:max_gpu_lora_adapters\{[^}\n]*\} (\d+)|lora_requests_info\{[^}\n]*max_lora="(\d+)")',
    re.MULTILINE,
)
_TELLS = b"\nvllm:num_gpu_loaded_lora_adapters{"
"""There from the start, if an engine tells what it holds."""
_SERIES = b"\nvllm:lora_adapter_loaded{"
_LOADED = re.compile(rb"^vllm:lora_adapter_loaded\{([^}\n]*)\} 1(?:\.0)?$", re.MULTILINE)
_LABEL = re.compile(rb'(adapter_name|level)="([^"\\]*)"')


class Vllm(Driver):
    name = "vllm"
    title = "vLLM"
    versions = ("0.32", "0.33")
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
        # The last, which is to be hidden, is the time of the latest step. The third counts steps, those of a
        # long prefill too.
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
    loading_path = "/v1"
    slots_flag = "--max-loras"
    advice = "start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"

    def is_loaded(self, status: int, message: str) -> bool:
        return status == 400 and "already" in message

    def limits(self, answer: bytes) -> Limits:
        """Two metrics tell --max-loras: one that is proposed, and one that is to be hidden, and is there once
        the engine has answered anything. None tells its other limits."""
        max_loras = _MAX_LORAS.search(answer)
        return Limits(slots=int(max_loras[1] or max_loras[2]) if max_loras else None)

    def residency(self, metrics: bytes) -> dict[str, bool] | None:
        if _TELLS not in metrics:
            return None
        loaded = dict[str, bool]()
        first, last = metrics.find(_SERIES) + 1, metrics.rfind(_SERIES) + 1
        part = metrics[first : metrics.find(b"\n", last) + 1]  # of a page that is a hundred times as long
        for series in islice(_LOADED.finditer(part), MAX_MODELS):
            labels = dict(_LABEL.findall(series[1]))
            if b"adapter_name" in labels:
                loaded[labels[b"adapter_name"].decode(errors="replace")] = labels.get(b"level") == b"gpu"
        return loaded

    def request(self, route: str, body: Body, base: str, lora: Lora | None) -> Body:  # noqa: ARG002
        """The gateway sends vLLM's requests as they are, without asking."""
        return body

    def ask(self, body: Body, base: str, lora: Lora | None) -> list[HttpCall]:
        return [HttpCall("POST", COMPLETIONS, body | {"model": lora.name if lora else base})]
