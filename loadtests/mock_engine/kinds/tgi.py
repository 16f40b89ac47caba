"""Text Generation Inference (TGI), emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import orjson

from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.kinds.final_counts import FinalCountsMock, event
from loadtests.mock_engine.kinds.other_engine import Body


class TgiMock(FinalCountsMock):
    """`started_with`: name → path, its LORA_ADAPTERS."""

    renamed: ClassVar[dict[str, str]] = {
        "vllm:num_requests_running": "tgi_batch_current_size",
        "vllm:num_requests_waiting": "tgi_queue_size",
        "vllm:prompt_tokens_total": "tgi_request_input_length_sum",
        "vllm:generation_tokens_total": "tgi_request_generated_tokens_sum",
    }

    def start_with(self, adapters: dict[str, str]) -> None:
        """As a restart with these LORA_ADAPTERS."""
        self.state.forget()
        for name, path in adapters.items():
            assert self.state.load({"lora_name": name, "lora_path": path})[0] == 200

    def own_routes(self) -> dict[tuple[str, str], Callable[[Connection, bytes], None]]:
        spec = self.state.spec
        card = {"id": spec.base, "object": "model", "created": 0, "owned_by": spec.base}
        return {
            ("GET", "/metrics"): self.metrics,
            ("GET", "/info"): self._info(router="text-generation-router"),
            ("GET", "/v1/models"): lambda connection, _: connection.answer(
                200, orjson.dumps({"object": "list", "data": [card]})
            ),
            ("POST", "/generate"): self._generate_route,
        }

    def named(self, fields: Body) -> str:
        """A name that it was not started with means the base model."""
        model = fields.get("model")
        return model if model in self.state.adapters else self.state.spec.base

    def _generate_route(self, connection: Connection, body: bytes) -> None:
        fields = orjson.loads(body)
        parameters = fields["parameters"]
        model = self.named({"model": parameters.get("adapter_id")})
        text, top = self._likeliest(model, parameters["max_new_tokens"], parameters.get("top_n_tokens") or 1)
        tokens = [{"id": i, "text": "t", "logprob": lp, "special": False} for i, lp in enumerate(top)]
        details = {
            "finish_reason": "length",
            "generated_tokens": parameters["max_new_tokens"],
            "prefill": [{"id": 1, "text": "t", "logprob": None}] * 3,
            "tokens": tokens[:1],
            "top_tokens": [tokens] if parameters.get("top_n_tokens") else [],
        }
        connection.answer(200, orjson.dumps({"generated_text": text, "details": details}))

    def chunk(self, chunk: Body, *, chat: bool) -> bytes:
        if not chat:
            for choice in chunk["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or ""
        return event(chunk)

    def final(self, last: Body | None, usage: Body, *, chat: bool) -> Iterator[bytes]:
        assert last is not None
        if chat:
            yield self.chunk(last, chat=chat)
            yield event(last | {"choices": [], "usage": usage})
        else:
            yield self.chunk(last | {"usage": usage}, chat=chat)
