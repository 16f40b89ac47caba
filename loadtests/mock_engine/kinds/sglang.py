"""SGLang, emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import orjson

from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.kinds.other_engine import Body, OtherEngine, RefusedError, bad_request


class SglangMock(OtherEngine):
    renamed: ClassVar[dict[str, str]] = {
        "vllm:num_requests_running": "sglang:num_running_reqs",
        "vllm:num_requests_waiting": "sglang:num_queue_reqs",
        "vllm:prompt_tokens_total": "sglang:prompt_tokens_total",
        "vllm:prompt_tokens_cached_total": "sglang:cached_tokens_total",
        "vllm:generation_tokens_total": "sglang:generation_tokens_total",
    }

    def own_routes(self) -> dict[tuple[str, str], Callable[[Connection, bytes], None]]:
        spec = self.state.spec
        fields = {
            "version": "0.5.23",
            "enable_lora": True,
            "max_loras_per_batch": spec.max_loras,
            "max_lora_rank": spec.max_lora_rank,
            "served_model_name": spec.base,
        }
        return {
            ("GET", "/metrics"): self.metrics,
            ("GET", "/model_info"): lambda connection, _: connection.answer(200, b"{}"),
            ("GET", "/server_info"): lambda connection, _: connection.answer(200, orjson.dumps(fields)),
            ("GET", "/v1/models"): lambda connection, _: connection.answer(
                200, self.cards("sglang", self.state.adapters)
            ),
            ("POST", "/load_lora_adapter"): self._load_route,
            ("POST", "/unload_lora_adapter"): self._unload_route,
        }

    def _load_route(self, connection: Connection, body: bytes) -> None:
        fields = orjson.loads(body)
        if not {"lora_name", "lora_path"} <= fields.keys():
            message = "Field required"
            connection.answer(400, orjson.dumps(bad_request(message, 400)))
            return
        name = fields["lora_name"]
        if name in self.state.adapters:
            error = f"Failed to load LoRA adapter {name} because it is already loaded"
        else:
            status, _ = self.state.load(fields)
            error = "" if status == 200 else f"Failed to load LoRA adapter {name}: no such file"
        self._updated(connection, error)

    def _unload_route(self, connection: Connection, body: bytes) -> None:
        name = orjson.loads(body)["lora_name"]
        known = name in self.state.adapters
        self.state.unload({"lora_name": name})
        error = "" if known else f"LoRA with name {name} does not exist. Loaded LoRAs: dict_keys([])"
        self._updated(connection, error)

    def _updated(self, connection: Connection, error: str) -> None:
        body = {"success": not error, "error_message": error, "loaded_adapters": self.state.adapters}
        connection.answer(400 if error else 200, orjson.dumps(body))

    def read(self, fields: Body, *, chat: bool) -> Body:  # noqa: ARG002
        _, _, name = fields["model"].partition(":")
        name = name or fields.get("lora_path") or ""  # any other model name means the base model
        if name and name not in self.state.adapters:
            message = (
                f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: dict_keys([])."
            )
            raise RefusedError(400, bad_request(message, 400) | {"_in_stream": True})
        if type(fields.get("prompt")) is list and fields.get("logprobs"):
            fields["return_tokens_as_token_ids"] = True  # what marks a probe for the mock
        return fields | {"model": name or self.state.spec.base}
