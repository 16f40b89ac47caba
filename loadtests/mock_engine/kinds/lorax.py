"""LoRAX, emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import orjson

from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.kinds.final_counts import FinalCountsMock, event
from loadtests.mock_engine.kinds.other_engine import Body, RefusedError


class LoraxMock(FinalCountsMock):
    renamed: ClassVar[dict[str, str]] = {
        "vllm:num_requests_running": "lorax_batch_current_size",
        "vllm:num_requests_waiting": "lorax_queue_length",
        "vllm:prompt_tokens_total": "lorax_request_input_length_sum",
        "vllm:generation_tokens_total": "lorax_request_generated_tokens_sum",
    }

    def own_routes(self) -> dict[tuple[str, str], Callable[[Connection, bytes], None]]:
        return {
            ("GET", "/metrics"): self.metrics,
            ("GET", "/info"): self._info(model_device_type="cuda", eager_prefill=False),
            ("POST", "/generate"): self._generate_route,
        }

    def named(self, fields: Body) -> str:
        model = fields.get("model")
        if model in {None, "", self.state.spec.base}:
            return self.state.spec.base
        name = Path(str(model)).name
        if fields.get("adapter_source") != "local" or not self._load(name, str(model)):
            message = f"Request failed during generation: Server error: No adapter found in {model}"
            raise RefusedError(424, self._words(message, "generation"))
        return name

    def _generate_route(self, connection: Connection, body: bytes) -> None:
        parameters = orjson.loads(body)["parameters"]
        try:
            model = self.named(
                {"model": parameters.get("adapter_id"), "adapter_source": parameters.get("adapter_source")}
            )
        except RefusedError as refused:
            connection.answer(refused.status, orjson.dumps(refused.body))
            return
        text, top = self._likeliest(
            model, parameters["max_new_tokens"], parameters.get("return_k_alternatives") or 1
        )
        others = [{"id": i, "text": "t", "logprob": lp} for i, lp in enumerate(top)]
        token = {"id": 0, "text": "t", "logprob": top[0], "special": False, "alternative_tokens": others}
        details = {
            "finish_reason": "length",
            "prompt_tokens": 3,
            "generated_tokens": parameters["max_new_tokens"],
            "tokens": [token],
        }
        connection.answer(200, orjson.dumps({"generated_text": text, "details": details}))

    def chunk(self, chunk: Body, *, chat: bool) -> bytes:
        if not chat:
            chunk = chunk | {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
        return event(chunk)

    def final(self, last: Body | None, usage: Body, *, chat: bool) -> Iterator[bytes]:  # noqa: ARG002
        assert last is not None
        yield event(last | {"usage": usage})
