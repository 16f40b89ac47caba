"""Engines that are not vLLM, emulated: their control routes, how a request names an adapter, what they refuse
and in which words, where their counts are, and their metrics. See the docstrings in `adapters.drivers` for
what was read in each one's source; nothing here uses that code.

The answers' texts are the mock engine's. `received` has the requests as they came.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import orjson

from loadtests.mock_engine import answers
from loadtests.mock_engine.answers import DONE
from loadtests.mock_engine.connection import Connection
from loadtests.mock_engine.engine import MockEngine
from loadtests.mock_engine.generation import STREAM_HEAD
from loadtests.mock_engine.probing import probed
from loadtests.mock_engine.request import GenerationRequest

Body = dict[str, Any]
CHAT = "/v1/chat/completions"
_SERVED = {CHAT, "/v1/completions"}


class RefusedError(Exception):
    """An answer instead of a generation."""

    def __init__(self, status: int, body: Body) -> None:
        super().__init__(str(body))
        self.status = status
        self.body = body


class OtherEngine(MockEngine):
    """Reads a request into vLLM's, and lets the mock of vLLM go on."""

    renamed: ClassVar[dict[str, str]] = {}
    """vLLM's metrics → this engine's. The rest is left out."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.received: deque[Body] = deque(maxlen=1000)
        self._routes = {key: run for key, run in self._routes.items() if key[1].startswith("/_mock/")}
        self._routes |= {("GET", "/health"): lambda connection, _: connection.answer(200, b"")}
        self._routes |= self.own_routes()

    def own_routes(self) -> dict[tuple[str, str], Callable[[Connection, bytes], None]]:
        raise NotImplementedError

    def read(self, fields: Body, *, chat: bool) -> Body:
        """The request as vLLM would get it. Raises RefusedError."""
        raise NotImplementedError

    def metrics(self, connection: Connection, _: bytes) -> None:
        lines = []
        for line in self.state.metrics(self.faults.waiting).decode().splitlines():
            name = re.split(r"[{ ]", line)[0]
            if name in self.renamed:
                lines.append(line.replace(name, self.renamed[name], 1))
        connection.answer(200, "\n".join(lines).encode() + b"\n", b"text/plain; version=0.0.4")

    def _generate(self, connection: Connection, path: str, headers: dict[str, str], body: bytes) -> None:
        if path not in _SERVED:
            connection.answer(404, orjson.dumps({"detail": "Not Found"}))
            return
        fields, chat = orjson.loads(body), path == CHAT
        self.received.append(fields)
        try:
            read = self.read(dict(fields), chat=chat)
        except RefusedError as refused:
            if fields.get("stream") and refused.body.get("_in_stream"):
                error = {k: v for k, v in refused.body.items() if k != "_in_stream"}
                said = b"data: " + orjson.dumps({"error": error}) + b"\n\n" + DONE
                connection.write(STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(said), said))
                connection.finished()
                return
            connection.answer(refused.status, orjson.dumps(refused.body))
            return
        super()._generate(connection, path, headers, orjson.dumps(read))

    def _likeliest(self, model: str, tokens: int, top: int) -> tuple[str, list[float]]:
        """The text and the logprobs of the likeliest first tokens that a probe gets."""
        self.state.verifications[model] += 1
        asked = {"model": model, "prompt": ["one prompt"], "max_tokens": tokens, "logprobs": top}
        _, answer = probed(asked, self.state, self.faults, distinct=str(self.port))
        choice = orjson.loads(answer)["choices"][0]
        return choice["text"], list(choice["logprobs"]["top_logprobs"][0].values())

    def _load(self, name: str, path: str) -> bool:
        """Load what a request names, if it is there."""
        if name in self.state.adapters:
            return True
        return self.state.load({"lora_name": name, "lora_path": path})[0] == 200

    def cards(self, owner: str, adapters: dict[str, str]) -> bytes:
        spec = self.state.spec
        listed = orjson.loads(answers.model_cards(spec.base, spec.root, adapters, spec.max_model_len))
        for card in listed["data"]:
            card["owned_by"] = owner
            del card["permission"]
        return orjson.dumps(listed)


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
        told = {
            "version": "0.5.23",
            "enable_lora": True,
            "max_loras_per_batch": spec.max_loras,
            "max_lora_rank": spec.max_lora_rank,
            "served_model_name": spec.base,
        }
        return {
            ("GET", "/metrics"): self.metrics,
            ("GET", "/model_info"): lambda connection, _: connection.answer(200, b"{}"),
            ("GET", "/server_info"): lambda connection, _: connection.answer(200, orjson.dumps(told)),
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
            connection.answer(400, orjson.dumps(_error(message, 400)))
            return
        name = fields["lora_name"]
        if name in self.state.adapters:
            said = f"Failed to load LoRA adapter {name} because it is already loaded"
        else:
            status, _ = self.state.load(fields)
            said = "" if status == 200 else f"Failed to load LoRA adapter {name}: no such file"
        self._updated(connection, said)

    def _unload_route(self, connection: Connection, body: bytes) -> None:
        name = orjson.loads(body)["lora_name"]
        known = name in self.state.adapters
        self.state.unload({"lora_name": name})
        said = "" if known else f"LoRA with name {name} does not exist. Loaded LoRAs: dict_keys([])"
        self._updated(connection, said)

    def _updated(self, connection: Connection, said: str) -> None:
        body = {"success": not said, "error_message": said, "loaded_adapters": self.state.adapters}
        connection.answer(400 if said else 200, orjson.dumps(body))

    def read(self, fields: Body, *, chat: bool) -> Body:  # noqa: ARG002
        _, _, name = fields["model"].partition(":")
        name = name or fields.get("lora_path") or ""  # any other model name means the base model
        if name and name not in self.state.adapters:
            message = (
                f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: dict_keys([])."
            )
            raise RefusedError(400, _error(message, 400) | {"_in_stream": True})
        if type(fields.get("prompt")) is list and fields.get("logprobs"):
            fields["return_tokens_as_token_ids"] = True  # what marks a probe for the mock
        return fields | {"model": name or self.state.spec.base}


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
            raise RefusedError(400, _error("cache_salt: Extra inputs are not permitted", 400))
        forbidden = self.unknown & fields.keys()
        if forbidden:
            raise RefusedError(400, _error(f"{min(forbidden)}: Extra inputs are not permitted", 400))
        lora = fields.pop("lora_request", None)
        if lora is None:
            return fields | {"model": self.state.spec.base}
        if not 0 < lora["lora_int_id"] < 2**63:
            raise RefusedError(400, _error("lora_int_id is out of range", 400))
        if not self._load(lora["lora_name"], lora["lora_path"]):
            raise RefusedError(400, _error(f"lora_path ({lora['lora_path']}) does not exist.", 400))
        return fields | {"model": lora["lora_name"]}


class FinalCountsMock(OtherEngine):
    """TGI and its fork LoRAX: counts at the end only, errors in words."""

    def _words(self, said: str, kind: str) -> Body:
        return {"error": said, "error_type": kind}

    def _info(self, **more: Any) -> Callable[[Connection, bytes], None]:
        spec = self.state.spec
        told = {"model_id": spec.base, "max_total_tokens": spec.max_model_len, "version": "3.3.7", **more}
        return lambda connection, _: connection.answer(200, orjson.dumps(told))

    def named(self, fields: Body) -> str:
        """Which adapter's text answers, or the base model's name. Raises RefusedError."""
        raise NotImplementedError

    def read(self, fields: Body, *, chat: bool) -> Body:  # noqa: ARG002
        if type(fields.get("stop", [])) is not list:
            raise RefusedError(422, self._words("Failed to deserialize: stop: invalid type", "validation"))
        known = {"messages", "prompt", "stream", "max_tokens"}
        read = {name: value for name, value in fields.items() if name in known}
        if fields.get("stream"):
            read["stream_options"] = {"include_usage": True}
        return read | {"model": self.named(fields)}

    def events(self, request: GenerationRequest, request_id: str, cached: int) -> Iterator[bytes]:
        """The stream: no counts until the end, and there those of `final`."""
        last: Body | None = None
        for event in answers.events(request, request_id, cached, details=False):
            if event is DONE:
                break
            chunk = orjson.loads(event[6:])
            if not chunk["choices"]:
                yield from self.final(last, chunk["usage"], chat=request.chat)
                continue
            chunk["id"] = ""
            for choice in chunk["choices"]:
                choice.pop("token_ids", None)
            if last is not None:
                yield self.chunk(last, chat=request.chat)
            last = chunk
        yield DONE

    def chunk(self, chunk: Body, *, chat: bool) -> bytes:  # noqa: ARG002
        return _event(chunk)

    def final(self, last: Body | None, usage: Body, *, chat: bool) -> Iterator[bytes]:
        raise NotImplementedError


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
        asked = fields["parameters"]
        model = self.named({"model": asked.get("adapter_id")})
        text, top = self._likeliest(model, asked["max_new_tokens"], asked.get("top_n_tokens") or 1)
        tokens = [{"id": i, "text": "t", "logprob": lp, "special": False} for i, lp in enumerate(top)]
        details = {
            "finish_reason": "length",
            "generated_tokens": asked["max_new_tokens"],
            "prefill": [{"id": 1, "text": "t", "logprob": None}] * 3,
            "tokens": tokens[:1],
            "top_tokens": [tokens] if asked.get("top_n_tokens") else [],
        }
        connection.answer(200, orjson.dumps({"generated_text": text, "details": details}))

    def chunk(self, chunk: Body, *, chat: bool) -> bytes:
        if not chat:
            for choice in chunk["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or ""
        return _event(chunk)

    def final(self, last: Body | None, usage: Body, *, chat: bool) -> Iterator[bytes]:
        assert last is not None
        if chat:
            yield self.chunk(last, chat=chat)
            yield _event(last | {"choices": [], "usage": usage})
        else:
            yield self.chunk(last | {"usage": usage}, chat=chat)


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
            said = f"Request failed during generation: Server error: No adapter found in {model}"
            raise RefusedError(424, self._words(said, "generation"))
        return name

    def _generate_route(self, connection: Connection, body: bytes) -> None:
        asked = orjson.loads(body)["parameters"]
        try:
            model = self.named(
                {"model": asked.get("adapter_id"), "adapter_source": asked.get("adapter_source")}
            )
        except RefusedError as refused:
            connection.answer(refused.status, orjson.dumps(refused.body))
            return
        text, top = self._likeliest(model, asked["max_new_tokens"], asked.get("return_k_alternatives") or 1)
        others = [{"id": i, "text": "t", "logprob": lp} for i, lp in enumerate(top)]
        token = {"id": 0, "text": "t", "logprob": top[0], "special": False, "alternative_tokens": others}
        details = {
            "finish_reason": "length",
            "prompt_tokens": 3,
            "generated_tokens": asked["max_new_tokens"],
            "tokens": [token],
        }
        connection.answer(200, orjson.dumps({"generated_text": text, "details": details}))

    def chunk(self, chunk: Body, *, chat: bool) -> bytes:
        if not chat:
            chunk = chunk | {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
        return _event(chunk)

    def final(self, last: Body | None, usage: Body, *, chat: bool) -> Iterator[bytes]:  # noqa: ARG002
        assert last is not None
        yield _event(last | {"usage": usage})


def _event(chunk: Body) -> bytes:
    return b"data:" + orjson.dumps(chunk) + b"\n\n"  # as axum writes it, without a space


def _error(message: str, code: int) -> Body:
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": code}
