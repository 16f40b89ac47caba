"""TensorRT-LLM's server, emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import orjson

from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.kinds.other_engine import CHAT, Body, OtherEngine, RefusedError, bad_request


class TrtllmMock(OtherEngine):
    renamed: ClassVar[dict[str, str]] = {
        "vllm:num_requests_running": "trtllm_num_requests_running",
        "vllm:num_requests_waiting": "trtllm_num_requests_waiting",
        "vllm:prompt_tokens_total": "trtllm_prompt_tokens_total",
        "vllm:prompt_tokens_cached_total": "trtllm_prompt_cached_tokens_total",
        "vllm:generation_tokens_total": "trtllm_generation_tokens_total",
    }
    unknown: ClassVar[frozenset[str]] = frozenset(
        {"prompt_logprobs", "return_token_ids", "structured_outputs", "continue_final_message", "bad_words"}
    )
    """Fields of vLLM that it forbids, like all others that it does not know."""

    def own_routes(self) -> dict[tuple[str, str], Callable[[Connection, bytes], None]]:
        return {
            ("GET", "/prometheus/metrics"): self.metrics,
            ("GET", "/version"): lambda connection, _: connection.answer(200, b'{"version":"1.2.0"}'),
            ("GET", "/v1/models"): lambda connection, _: connection.answer(
                200, self.cards("tensorrt_llm", {})
            ),
        }

    def _generate(self, connection: Connection, path: str, headers: dict[str, str], body: bytes) -> None:
        fields = orjson.loads(body)
        if not fields.get("logprobs"):
            super()._generate(connection, path, headers, body)
            return
        try:  # only probes ask for logprobs here
            model = self.read(fields, chat=path == CHAT)["model"]
        except RefusedError as refused:
            connection.answer(refused.status, orjson.dumps(refused.body))
            return
        text, top = self._likeliest(model, fields["max_tokens"], fields["top_logprobs"])
        likeliest = [{"token": str(i), "logprob": lp, "bytes": None} for i, lp in enumerate(top)]
        step = {"token": "0", "logprob": top[0], "bytes": None, "top_logprobs": likeliest}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": [step]},
            "finish_reason": "length",
        }
        usage = {"prompt_tokens": 3, "completion_tokens": fields["max_tokens"], "total_tokens": 7}
        connection.answer(200, orjson.dumps({"choices": [choice], "usage": usage}))

    def read(self, fields: Body, *, chat: bool) -> Body:
        if not chat and fields.get("cache_salt"):
            raise RefusedError(400, bad_request("cache_salt: Extra inputs are not permitted", 400))
        forbidden = self.unknown & fields.keys()
        if forbidden:
            raise RefusedError(400, bad_request(f"{min(forbidden)}: Extra inputs are not permitted", 400))
        lora = fields.pop("lora_request", None)
        if lora is None:
            return fields | {"model": self.state.spec.base}
        if not 0 < lora["lora_int_id"] < 2**63:
            raise RefusedError(400, bad_request("lora_int_id is out of range", 400))
        if not self._load(lora["lora_name"], lora["lora_path"]):
            raise RefusedError(400, bad_request(f"lora_path ({lora['lora_path']}) does not exist.", 400))
        return fields | {"model": lora["lora_name"]}
